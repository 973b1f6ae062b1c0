"""Looking into a running stack from another process: a local socket that answers questions.

`open_stack` starts `serve` for a stack in real time. The socket lies in a directory only its user can
enter (`rundir`), mode 0600; where none can be had the stack runs without. A question is one line of
JSON, the answer one JSON value per line, the last one an object: `{"done": true}`, or `{"error": errno,
"message": ...}`. Sockets are sent one per line, with a pause for the stack after every few, so that ten
thousand of them do not hold up traffic. Between questions nothing here runs.

    {"get": "sockets", "protocols": ["tcp"]}    {"get": "sysctl", "name": "net.ipv4.tcp_sack"}
    {"get": "counters"}                         {"set": "sysctl", "name": ..., "value": "0"}
    {"get": "trace"}, which goes on until the asker has heard enough (`feed`)

Whatever else arrives is answered by an error; who asks slowly or does not read is dropped after `PATIENCE`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from pytcp.net import snapshot, sysctl

from . import feed, rundir

if TYPE_CHECKING:
    from pytcp.net.stack import Stack

PATIENCE = 10.0  # seconds for one question and its answer
LONGEST = 4096  # bytes of a question
AT_ONCE = 8  # questions answered at the same time; further ones wait in the listener's queue
BATCH = 32  # lines between two turns of the stack


class Refused(Exception):
    """The question cannot be answered: `number` is an errno."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def _about(stack: Stack) -> dict[str, Any]:
    """Who the stack belongs to."""
    return {
        "pid": os.getpid(),
        "name": _program(),
        "command": _command(),
        "addresses": [entry["address"] for dev in snapshot.interfaces(stack) for entry in dev["addresses"] if entry["scope"] == "global"],
    }


def _program() -> str:
    """The name of the program, as a person would say it."""
    path = Path(sys.argv[0] if sys.argv else "")
    if path.name == "__main__.py":
        return path.parent.name
    return path.name if path.name not in ("", "-c", "-m") else "python"


def _command() -> str:
    """The process's short name, as `ss -p` shows it."""
    try:
        return Path("/proc/self/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return os.path.basename(sys.executable)


def _sockets(stack: Stack, question: dict[str, Any]) -> Iterator[object]:
    protocols = question.get("protocols", ["tcp", "udp"])
    if not isinstance(protocols, list) or not all(name in ("tcp", "udp") for name in protocols):
        raise Refused(errno.EINVAL, "protocols is a list of tcp and udp")
    return snapshot.sockets(stack, tuple(protocols))


def _get_sysctl(stack: Stack, question: dict[str, Any]) -> Iterator[object]:
    name = _name(question)
    value = sysctl.get(stack.sysctl, name)
    yield {"name": name, "value": list(value) if isinstance(value, tuple) else value}


def _set_sysctl(stack: Stack, question: dict[str, Any]) -> Iterator[object]:
    value = question.get("value")
    if not isinstance(value, str | int):
        raise Refused(errno.EINVAL, "value is a string or a number")
    name = _name(question)
    if sysctl.lookup(name).attr == "profile" and stack.table:
        raise OSError(errno.EBUSY, f"{name}: the stack has connections, which began under {stack.sysctl.profile}")
    sysctl.set_(stack.sysctl, name, value)
    yield from _get_sysctl(stack, question)


def _name(question: dict[str, Any]) -> str:
    name = question.get("name")
    if not isinstance(name, str):
        raise Refused(errno.EINVAL, "name is a string")
    return name


Answer = Callable[["Stack", dict[str, Any]], Iterable[object]]

ANSWERS: dict[tuple[str, str], Answer] = {
    ("get", "stack"): lambda stack, question: [_about(stack)],
    ("get", "sockets"): _sockets,
    ("get", "sockstat"): lambda stack, question: [snapshot.sockstat(stack)],
    ("get", "counters"): lambda stack, question: [snapshot.counters(stack)],
    ("get", "sysctls"): lambda stack, question: [snapshot.sysctls(stack)],
    ("get", "explanations"): lambda stack, question: snapshot.explanations(stack),
    ("get", "sysctl"): _get_sysctl,
    ("set", "sysctl"): _set_sysctl,
    ("get", "neighbours"): lambda stack, question: snapshot.neighbours(stack),
    ("get", "routes"): lambda stack, question: snapshot.routes(stack),
    ("get", "interfaces"): lambda stack, question: snapshot.interfaces(stack),
    ("get", "qdiscs"): lambda stack, question: snapshot.qdiscs(stack),
}


TRACE = ("get", "trace")  # has no end, so it is no list of answers


def parse(line: bytes) -> dict[str, Any]:
    """A question. Raises Refused."""
    try:
        question = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused(errno.EINVAL, f"a question is one line of JSON: {error}") from None
    if not isinstance(question, dict):
        raise Refused(errno.EINVAL, "a question is a JSON object")
    return question


def answer(stack: Stack, line: bytes) -> Iterator[object]:
    """The values that answer one question. Raises Refused."""
    return _answer(stack, parse(line))


def _answer(stack: Stack, question: dict[str, Any]) -> Iterator[object]:
    for verb in ("get", "set"):
        what = question.get(verb)
        if isinstance(what, str):
            found = ANSWERS.get((verb, what))
            if found is not None:
                return iter(found(stack, question))
    raise Refused(errno.EOPNOTSUPP, f"known: {', '.join(f'{verb} {what}' for verb, what in sorted([*ANSWERS, TRACE]))}")


async def serve(stack: Stack, now: Callable[[], int], *, task_status: trio.TaskStatus[Path | None] = trio.TASK_STATUS_IGNORED) -> None:
    """Answer questions about `stack` until cancelled; `now` refreshes its time before each answer.

    Reports the socket's path when it can be connected to, or None when there is no place for one, and
    returns then. Never raises: looking must not harm what is looked at.
    """
    try:
        # not by trio.socket: its factory may be ours
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:
        task_status.started(None)
        return
    try:
        rundir.clean()
        path = rundir.bind(listener, os.getpid())
        made = path.stat().st_ino
    except OSError:
        listener.close()
        task_status.started(None)
        return
    turns = trio.Semaphore(AT_ONCE)
    try:
        async with trio.open_nursery() as nursery:
            task_status.started(path)
            await _accept(trio.socket.from_stdlib_socket(listener), nursery, turns, stack, now)
    finally:
        listener.close()
        with contextlib.suppress(OSError):
            if path.stat().st_ino == made:
                rundir.remove(path)


async def _accept(listener: trio.socket.SocketType, nursery: trio.Nursery, turns: trio.Semaphore, stack: Stack, now: Callable[[], int]) -> None:
    while True:
        await turns.acquire()
        try:
            conn, _ = await listener.accept()
        except OSError:
            # out of descriptors, or the caller has gone again
            turns.release()
            await trio.sleep(0.1)
            continue
        nursery.start_soon(_converse, conn, turns, stack, now)


async def _converse(conn: trio.socket.SocketType, turns: trio.Semaphore, stack: Stack, now: Callable[[], int]) -> None:
    """One question, one answer."""
    try:
        with conn, trio.move_on_after(PATIENCE) as patience:
            stream = trio.SocketStream(conn)
            try:
                question = parse(await _read_line(stream))
                now()
                if question.get("get") == "trace":
                    patience.deadline = inf
                    await feed.follow(stream, stack, question)
                    return
                await _send(stream, _answer(stack, question))
                last: dict[str, Any] = {"done": True}
            except Refused as refused:
                last = {"error": refused.number, "message": str(refused)}
            except OSError as error:
                last = {"error": error.errno or errno.EIO, "message": error.strerror or str(error)}
            except Exception as error:  # a mistake of ours in looking is not the program's end
                last = {"error": errno.EIO, "message": f"{type(error).__name__}: {error}"}
            await stream.send_all(_encode(last))
            await stream.send_eof()
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # it does not want to know
    finally:
        turns.release()


async def _read_line(stream: trio.SocketStream) -> bytes:
    data = b""
    while b"\n" not in data:
        if len(data) > LONGEST:
            raise Refused(errno.EMSGSIZE, f"a question has at most {LONGEST} bytes")
        more = await stream.receive_some(LONGEST)
        if not more:
            break
        data += more
    return data.partition(b"\n")[0]


async def _send(stream: trio.SocketStream, values: Iterator[object]) -> None:
    batch: list[bytes] = []
    for value in values:
        batch.append(_encode(value))
        if len(batch) == BATCH:
            await stream.send_all(b"".join(batch))
            batch.clear()
    if batch:
        await stream.send_all(b"".join(batch))


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"

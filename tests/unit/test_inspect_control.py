"""The control socket: where it lies, who may use it, what it answers to whatever is sent, and that it goes."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import pytest
import trio

from pytcp.cli.inspect import client
from pytcp.net import snapshot
from pytcp.sockets import control, rundir
from pytcp.sockets.open import TrioStack, open_stack, run_virtual


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of this test's own."""
    place = tmp_path / "run"
    monkeypatch.setenv("PYTCP_RUNTIME_DIR", str(place))
    return place


def in_real_time(program: Callable[[TrioStack], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_stack() as stack:
            await program(stack)

    trio.run(main)


async def exchange(path: Path, data: bytes, *, half_close: bool = True) -> list[Any]:
    """Everything that comes back for `data`, as JSON values."""
    stream = await trio.open_unix_socket(path)
    async with stream:
        await stream.send_all(data)
        if half_close:
            await stream.send_eof()
        answer = b"".join([bytes(part) async for part in stream])
    return [json.loads(line) for line in answer.splitlines()]


# --- where it is ---


def test_a_stack_in_real_time_has_a_socket_only_its_user_can_reach(runtime_dir: Path) -> None:
    async def program(stack: TrioStack) -> None:
        [path] = runtime_dir.iterdir()
        assert path.name == f"{os.getpid()}.sock"
        assert stat.S_IMODE(runtime_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    in_real_time(program)
    assert list(runtime_dir.iterdir()) == []


def test_it_goes_when_the_program_fails_too(runtime_dir: Path) -> None:
    async def program(stack: TrioStack) -> None:
        raise RuntimeError("the program")

    with pytest.raises(RuntimeError, match="the program"):
        in_real_time(program)
    assert list(runtime_dir.iterdir()) == []


def test_a_stack_in_virtual_time_has_none(runtime_dir: Path) -> None:
    async def main() -> None:
        async with open_stack():
            assert not runtime_dir.exists()

    run_virtual(main)


def test_two_stacks_of_one_process_have_two(runtime_dir: Path) -> None:
    async def program(stack: TrioStack) -> None:
        async with open_stack(sysctls={"net.ipv4.tcp_sack": 0}):
            assert [path.name for _, path in rundir.sockets()] == [f"{os.getpid()}.sock", f"{os.getpid()}.2.sock"]
            [first, second] = await trio.to_thread.run_sync(client.running)

            def sack(one: client.Running) -> object:
                return next(one.ask("get", "sysctl", name="net.ipv4.tcp_sack"))["value"]

            assert await trio.to_thread.run_sync(sack, first) == 1
            assert await trio.to_thread.run_sync(sack, second) == 0

    in_real_time(program)


@pytest.mark.parametrize("kind", ["file", "link", "open to others", "somebody else's"])
def test_a_directory_that_is_not_private_is_not_used(runtime_dir: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "file":
        runtime_dir.touch()
    elif kind == "link":
        (runtime_dir.parent / "elsewhere").mkdir(mode=0o700)
        runtime_dir.symlink_to("elsewhere")
    else:
        runtime_dir.mkdir(mode=0o700)
        if kind == "open to others":
            runtime_dir.chmod(0o711)
        else:
            uid = os.geteuid()
            monkeypatch.setattr(os, "geteuid", lambda: uid + 1)

    async def program(stack: TrioStack) -> None:
        assert rundir.sockets() == []

    in_real_time(program)
    with pytest.raises(PermissionError, match="not a private directory of ours"):
        rundir.directory()


def test_the_users_own_runtime_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTCP_RUNTIME_DIR")
    session = tmp_path / "session"
    session.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert rundir.candidates()[0] == session / "pytcp"
    session.chmod(0o755)
    assert session / "pytcp" not in rundir.candidates()
    assert rundir.candidates()[-1] == Path(f"/tmp/pytcp-{rundir.outer_uid()}")


def test_in_a_user_namespace_the_place_is_that_of_the_user_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.delenv("PYTCP_RUNTIME_DIR")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(rundir, "open", lambda *args, **more: io.StringIO("         0       1000          1\n"), raising=False)
    assert rundir.outer_uid() == 1000
    assert rundir.candidates()[-1] == Path("/tmp/pytcp-1000")


def a_dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def leave(path: Path) -> None:
    """A socket nobody listens on, with its memory of counters."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    path.with_suffix(".nstat").touch()


def test_what_dead_processes_left_is_cleaned_up_and_what_others_own_is_not(runtime_dir: Path) -> None:
    runtime_dir.mkdir(mode=0o700)
    dead = runtime_dir / f"{a_dead_process()}.sock"
    leave(dead)
    living = runtime_dir / f"{os.getppid()}.sock"  # it exists, and nobody answers
    leave(living)
    elsewhere = runtime_dir / f"{a_dead_process()}.sock"  # answers, by a number that is not known here: a container's
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(elsewhere))
    listener.listen()
    (runtime_dir / "notes").touch()

    async def program(stack: TrioStack) -> None:
        names = {path.name for path in runtime_dir.iterdir()}
        assert names == {f"{os.getpid()}.sock", living.name, living.with_suffix(".nstat").name, elsewhere.name, "notes"}

    in_real_time(program)
    listener.close()


def test_a_socket_left_by_an_earlier_process_of_our_number_is_taken_over(runtime_dir: Path) -> None:
    runtime_dir.mkdir(mode=0o700)
    leave(runtime_dir / f"{os.getpid()}.sock")

    async def program(stack: TrioStack) -> None:
        assert [path.name for path in runtime_dir.iterdir()] == [f"{os.getpid()}.sock"]
        assert len(await trio.to_thread.run_sync(client.running)) == 1

    in_real_time(program)


# --- what it answers ---


def answers(data: bytes) -> list[Any]:
    result: list[Any] = []

    async def program(stack: TrioStack) -> None:
        [(_, path)] = rundir.sockets()
        result.extend(await exchange(path, data))
        # whatever that was: the next one is served
        assert (await exchange(path, b'{"get":"stack"}\n'))[-1] == {"done": True}

    in_real_time(program)
    return result


def test_one_value_per_line_and_a_last_word() -> None:
    about, last = answers(b'{"get": "stack"}\n')
    assert about["pid"] == os.getpid()
    assert last == {"done": True}


@pytest.mark.parametrize(
    "data",
    [
        b"\n", b"hello\n", b"\xff\xfe\x00\n", b"[]\n", b"3\n", b'"get"\n', b"{}\n", b'{"get": null}\n', b'{"get": ["stack"]}\n', b'{"get": "nothing"}\n',
        b'{"set": "stack"}\n', b'{"get": "sysctl"}\n', b'{"get": "sysctl", "name": 3}\n', b'{"get": "sysctl", "name": "net.ipv4.nothing"}\n',
        b'{"set": "sysctl", "name": "net.ipv4.tcp_sack"}\n', b'{"set": "sysctl", "name": "net.ipv4.tcp_sack", "value": []}\n',
        b'{"set": "sysctl", "name": "net.ipv4.tcp_sack", "value": "1 2"}\n', b'{"get": "sockets", "protocols": "tcp"}\n',
        b'{"get": "sockets", "protocols": [[]]}\n', b"[" * 4000 + b"\n", b"x" * 5000, b'{"get": "stack"', b"", b'{"get": "stack", "n": ' + b"9" * 4900 + b"}\n",
    ],
)  # fmt: skip
def test_whatever_else_arrives_is_answered_by_one_error(data: bytes) -> None:
    [last] = answers(data)
    assert last["error"] > 0
    assert last["message"]


def test_a_mistake_in_looking_is_an_answer_and_not_the_programs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(stack: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(snapshot, "counters", broken)
    assert answers(b'{"get": "counters"}\n') == [{"error": 5, "message": "ZeroDivisionError: ours"}]


def test_who_says_nothing_is_dropped_and_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PATIENCE", 0.2)

    async def program(stack: TrioStack) -> None:
        [(_, path)] = rundir.sockets()
        silent = [await trio.open_unix_socket(path) for _ in range(2 * control.AT_ONCE)]
        with trio.fail_after(10):
            # waits in the queue behind them until the first have been dropped
            assert (await exchange(path, b'{"get":"stack"}\n'))[-1] == {"done": True}
            assert await silent[0].receive_some() == b""
        for stream in silent:
            await stream.aclose()

    in_real_time(program)


def test_who_does_not_read_or_goes_away_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PATIENCE", 0.2)
    monkeypatch.setattr(snapshot, "interfaces", lambda stack: [{"filler": "x" * 1000}] * 5000)

    async def program(stack: TrioStack) -> None:
        [(_, path)] = rundir.sockets()
        lazy = await trio.open_unix_socket(path)
        await lazy.send_all(b'{"get":"interfaces"}\n')
        gone = await trio.open_unix_socket(path)
        await gone.send_all(b'{"get":"interfaces"}\n')
        await gone.aclose()
        with trio.fail_after(10):
            assert (await exchange(path, b'{"get":"counters"}\n'))[-1] == {"done": True}
            await trio.sleep(2 * control.PATIENCE)
            received = sum([len(part) async for part in lazy])
        assert 0 < received < 5000 * 1000, "it was cut off"
        await lazy.aclose()

    in_real_time(program)


def test_a_long_list_lets_others_run_between_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []

    def long(stack: object, protocols: object) -> Any:
        for number in range(20 * control.BATCH):
            turns.append(number)
            yield {"number": number}

    monkeypatch.setattr(snapshot, "sockets", long)

    async def program(stack: TrioStack) -> None:
        [(_, path)] = rundir.sockets()
        seen = []

        async def other() -> None:
            while len(turns) < 20 * control.BATCH:
                seen.append(len(turns))
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            assert len(await exchange(path, b'{"get":"sockets"}\n')) == 20 * control.BATCH + 1
        assert len(set(seen)) > 10

    in_real_time(program)


# --- asking ---


def test_a_setting_written_from_outside_is_in_force() -> None:
    async def program(stack: TrioStack) -> None:
        [running] = await trio.to_thread.run_sync(client.running)
        value = await trio.to_thread.run_sync(lambda: next(running.ask("set", "sysctl", name="net.ipv4.tcp_ecn", value="1")))
        assert value == {"name": "net.ipv4.tcp_ecn", "value": 1}
        assert stack.net.sysctl.tcp_ecn == 1

    in_real_time(program)


def test_no_stack_several_stacks_and_wrong_names_are_told() -> None:
    with pytest.raises(click.ClickException, match=r"no stack is running \(looked into /.*/run\)"):
        client.choose(None)

    async def program(stack: TrioStack) -> None:
        assert (await trio.to_thread.run_sync(client.choose, None)).pid == os.getpid()
        with pytest.raises(click.ClickException, match=rf"no stack 'nobody'; there are: {os.getpid()} \("):
            await trio.to_thread.run_sync(client.choose, "nobody")
        async with open_stack():
            with pytest.raises(click.ClickException, match=rf"several stacks are running, choose with --stack: .*{os.getpid()} \(.*{os.getpid()}\.2"):
                await trio.to_thread.run_sync(client.choose, None)
            assert (await trio.to_thread.run_sync(client.choose, str(os.getpid()))).label == str(os.getpid())
            assert (await trio.to_thread.run_sync(client.choose, f"{os.getpid()}.2")).label == f"{os.getpid()}.2"

    in_real_time(program)


def test_a_stack_that_does_not_answer_is_told_from_one_that_has_ended(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.1)
    monkeypatch.setattr(client, "GREETING", 0.1)
    runtime_dir.mkdir(mode=0o700)
    path = runtime_dir / f"{os.getpid()}.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    [stuck] = client.running()
    assert stuck.describe() == f"{os.getpid()} (?, no address)"
    with pytest.raises(click.ClickException, match="does not answer"):
        next(stuck.ask("get", "stack"))
    listener.close()
    with pytest.raises(click.ClickException, match="has ended"):
        next(stuck.ask("get", "stack"))

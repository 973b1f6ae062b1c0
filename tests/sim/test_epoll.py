"""`Epoll` beside the kernel's: the same program on a kernel's sockets and on a stack's, and what each reports after every step."""

from __future__ import annotations

import errno
import select
import socket as stdlib
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from pytcp.socket import EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP, Epoll
from pytcp.sockets.open import open_stack, run_virtual

from .streams import B4, PORT, World, simulate

MODES = {"level": 0, "edge": EPOLLET, "one-shot": EPOLLONESHOT, "edge, one-shot": EPOLLET | EPOLLONESHOT}
INTERESTS = (EPOLLIN, EPOLLIN | EPOLLRDHUP, EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 0)
STEPS = 14
SETTLED = 0.002  # seconds: nothing is on its way on loopback after that

Step = tuple[str, int]
KINDS = ["s.send"] * 3 + ["c.recv"] * 2 + ["c.send", "s.recv", "nothing", "modify", "c.shutdown", "s.shutdown", "s.close", "again"]


def program(seed: int) -> tuple[int, list[Step]]:
    """A registration, and what the two ends of a connection do: c the watched one, s its peer."""
    random = Random(seed)
    mask = random.choice(INTERESTS) | random.choice(list(MODES.values()))
    steps: list[Step] = []
    over: set[str] = set()
    for _ in range(STEPS):
        kind = random.choice(KINDS)
        if (kind[0] in over and kind[1] == ".") or (kind == "c.send" and "c-" in over) or (kind == "s.send" and "s-" in over):
            continue
        if kind == "s.close":
            over.add("s")
        if kind.endswith("shutdown"):
            over.add(kind[0] + "-")
        steps.append((kind, random.choice([1, 100, 1000])))
    return mask, steps


def act(step: Step, c: Any, s: Any, epoll: Any, watched: Any, mask: int) -> str:
    kind, size = step
    try:
        if kind == "s.send":
            s.send(bytes(size))
        elif kind == "c.send":
            c.send(bytes(size))
        elif kind == "c.recv":
            return str(len(c.recv(size)))
        elif kind == "s.recv":
            return str(len(s.recv(size)))
        elif kind == "c.shutdown":
            c.shutdown(stdlib.SHUT_WR)
        elif kind == "s.shutdown":
            s.shutdown(stdlib.SHUT_WR)
        elif kind == "s.close":
            s.close()
        elif kind == "modify":
            epoll.modify(watched, INTERESTS[size % len(INTERESTS)] | mask & (EPOLLET | EPOLLONESHOT))
        elif kind == "again":
            epoll.unregister(watched)
            epoll.register(watched, mask)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def on_the_kernel(mask: int, steps: list[Step]) -> list[tuple[Step, str, list[int]]]:
    with (
        stdlib.create_server(("127.0.0.1", 0)) as listener,
        stdlib.create_connection(listener.getsockname()) as c,
        listener.accept()[0] as s,
        select.epoll() as epoll,
    ):
        for sock in (c, s):
            sock.setblocking(False)
            sock.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)
        epoll.register(c, mask)
        told = [(("register", 0), "", [events for _, events in epoll.poll(0)])]
        for step in steps:
            result = act(step, c, s, epoll, c, mask)
            time.sleep(SETTLED)
            told.append((step, result, [events for _, events in epoll.poll(0)]))
        return told


def on_the_stack(mask: int, steps: list[Step]) -> list[tuple[Step, str, list[int]]]:
    told: list[tuple[Step, str, list[int]]] = []

    async def main() -> None:
        async with open_stack() as stack:
            listener = stack.socket()
            listener.bind(("127.0.0.1", PORT))
            listener.listen()
            c = stack.socket()
            with pytest.raises(BlockingIOError):
                c.connect(("127.0.0.1", PORT))
            await trio.sleep(SETTLED)
            s, _ = listener.accept()
            for sock in (c, s):
                sock.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)
            with Epoll() as epoll:
                epoll.register(c, mask)
                told.append((("register", 0), "", [events for _, events in epoll.poll()]))
                for step in steps:
                    result = act(step, c, s, epoll, c, mask)
                    await trio.sleep(SETTLED)
                    told.append((step, result, [events for _, events in epoll.poll()]))

    run_virtual(main)
    return told


@pytest.mark.parametrize("seed", range(80))
def test_a_program_hears_of_the_same_events_as_on_the_kernel(seed: int) -> None:
    mask, steps = program(seed)
    assert on_the_stack(mask, steps) == on_the_kernel(mask, steps)


# --- what the calls refuse ---


def name_of(call: Callable[[], object]) -> str:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_wrong_use_is_refused_as_by_the_standard_librarys_epoll() -> None:
    async def main(world: World) -> None:
        def answers(epoll: Any, a: Any, b: Any) -> list[str]:
            epoll.register(a, EPOLLIN)
            told = [
                name_of(lambda: epoll.register(a, EPOLLIN)),
                name_of(lambda: epoll.modify(b, EPOLLIN)),
                name_of(lambda: epoll.unregister(b)),
                name_of(lambda: epoll.register(b, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT)),
                name_of(lambda: epoll.register(b, EPOLLIN | EPOLLEXCLUSIVE)),
                name_of(lambda: epoll.modify(b, EPOLLIN)),
                name_of(lambda: epoll.unregister(a)),
                name_of(lambda: epoll.unregister(a)),
                name_of(lambda: epoll.register(a, "x")),
            ]
            a.close()
            told.append(name_of(lambda: epoll.register(a, EPOLLIN)).partition(":")[0].replace("ValueError", "EBADF"))  # a closed socket has no number
            epoll.close()
            epoll.close()
            told.append(name_of(lambda: epoll.register(b, EPOLLIN)))
            told.append(name_of(lambda: epoll.poll(0)))
            return told

        with stdlib.socket() as a, stdlib.socket() as b:
            expected = answers(select.epoll(), a, b)
        found = answers(Epoll(), world.a.socket(), world.a.socket())
        assert [text.split(" object")[0] for text in found] == [text.split(" object")[0] for text in expected]
        with pytest.raises(ValueError, match="maxevents must be greater than 0, got 0"):
            Epoll().poll(0)

    simulate(main)


# --- many sockets, and tasks ---


def test_entries_take_turns_when_only_some_are_asked_for() -> None:
    async def main(world: World) -> None:
        socks = [world.a.datagram_socket() for _ in range(5)]
        with Epoll() as epoll:
            for sock in socks:
                epoll.register(sock, EPOLLOUT)
            assert [sock for _ in range(3) for sock, _ in epoll.poll(2)] == [*socks, socks[0]]

    simulate(main)


def test_a_task_sleeps_until_a_socket_is_ready_or_the_time_is_over() -> None:
    async def main(world: World) -> None:
        client, server = await world.pair()
        told = client.socket.notify
        with Epoll() as epoll:
            epoll.register(client.socket, EPOLLIN | EPOLLET)
            start = trio.current_time()
            assert await epoll.wait(0.5) == []
            assert trio.current_time() == start + 0.5
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.send_all, b"x")
                assert await epoll.wait() == [(client.socket, EPOLLIN)]
            assert await epoll.wait(0) == []
            assert await client.receive_some() == b"x"  # the stream goes on being woken
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.send_all, b"y")
                assert await client.receive_some() == b"y"
        assert client.socket.notify == told

    simulate(main)


def test_a_set_that_is_closed_wakes_who_waits_for_it() -> None:
    async def main(world: World) -> None:
        epoll: Epoll[Any] = Epoll()
        with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="closed epoll")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(epoll.wait)
                await trio.sleep(1)
                epoll.close()

    simulate(main)


def test_a_closed_socket_leaves_the_set_and_a_cancelled_wait_loses_nothing() -> None:
    async def main(world: World) -> None:
        sock = world.a.datagram_socket()
        sock.bind(("", PORT))
        with Epoll() as epoll:
            epoll.register(sock, EPOLLIN)
            with trio.move_on_after(0.1):
                await epoll.wait()
            world.b.datagram_socket().sendto(b"x", ("10.0.0.1", PORT))
            assert await epoll.wait(1) == [(sock, EPOLLIN)]
            sock.close()
            assert await epoll.wait(0.1) == []
            assert name_of(lambda: epoll.unregister(sock)) == "ENOENT"

    simulate(main)


def test_what_a_stack_can_carry_no_further_has_an_error_and_a_hangup() -> None:
    async def main() -> None:
        epoll: Epoll[Any] = Epoll()
        async with open_stack() as stack:
            sock = stack.datagram_socket()
            epoll.register(sock, EPOLLIN | EPOLLET)
            sock.fail(OSError(errno.ENETDOWN, "the device vanished"))
            assert epoll.poll() == [(sock, EPOLLERR | EPOLLHUP)]

    run_virtual(main)


def test_connecting_ends_with_an_edge() -> None:
    async def main(world: World) -> None:
        world.b.net.check_open()
        sock = world.a.socket()
        with Epoll() as epoll:
            assert name_of(lambda: sock.connect((B4, PORT))) == "EINPROGRESS"
            epoll.register(sock, EPOLLOUT | EPOLLET)
            assert await epoll.wait(1) == [(sock, EPOLLOUT | EPOLLERR | EPOLLHUP)]
            assert sock.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ERROR) == errno.ECONNREFUSED

    simulate(main)

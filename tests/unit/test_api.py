"""Every call in every state: the two tables of measured results, cell by cell, and what they leave out."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytcp.tcp import api, const, icmp_err
from pytcp.tcp.sock import Sock

from .endpoint import MS, REMOTE, Peer, World, client, connection

TABLES = Path(__file__).parents[1] / "data" / "socket_states.txt"
POLL_BITS = (("IN", 1), ("PRI", 2), ("OUT", 4), ("ERR", 8), ("HUP", 16), ("RDHUP", 0x2000))
IP_RECVERR = 11


def rows() -> dict[str, dict[str, str]]:
    """state -> column -> cell; a repeated column name gets the table's number."""
    table: dict[str, dict[str, str]] = {}
    header: list[str] = []
    for line in TABLES.read_text().splitlines():
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "state":
            header = cells
        else:
            table.setdefault(cells[0], {}).update(zip(header[1:], cells[1:], strict=True))
    return table


# ---------------------------------------------------------------- the states


class Case:
    """A socket in one of the states, and the peer it speaks with."""

    def __init__(self, world: World, peer: Peer | None, sk: Sock) -> None:
        self.world = world
        self.peer = peer
        self.sk = sk


def fresh() -> Case:
    world = World()
    return Case(world, None, world.socket())


def bound() -> Case:
    case = fresh()
    api.bind(case.sk, b"", 8080)
    return case


def listen() -> Case:
    world = World()
    return Case(world, Peer(world), world.listening())


def listen_pending() -> Case:
    case = listen()
    assert case.peer is not None
    case.peer.syn()
    case.peer.heard()
    case.peer.send(".", 1, ack=1, win=511)
    return case


def syn_sent() -> Case:
    world = World()
    peer = Peer(world, 80)
    sk = world.socket()
    api.bind(sk, b"", 45001)
    world.connecting(peer, sk)
    return Case(world, peer, sk)


def refused() -> Case:
    case = syn_sent()
    assert case.peer is not None
    case.peer.send("R.", 0, ack=1)
    return case


def refused_fetched() -> Case:
    case = refused()
    assert api.take_error(case.sk) == errno.ECONNREFUSED
    return case


def estab() -> Case:
    return Case(*connection())


def estab_client() -> Case:
    return Case(*client())


def _after(make: Callable[[], Case], *steps: tuple[Any, ...]) -> Case:
    """`make()`, then segments from the peer ("F.", seq, length, ack) or calls ("shutdown", how)."""
    case = make()
    assert case.peer is not None
    for step in steps:
        if step[0] == "shutdown":
            api.shutdown(case.sk, step[1])
        else:
            flags, seq, length, ack = step
            case.peer.send(flags, seq, length, ack=ack, win=511)
    return case


def estab_sndfull() -> Case:
    case = estab()
    with pytest.raises(BlockingIOError):
        while True:
            api.sendmsg(case.sk, bytes(4000))
    return case


def urgent() -> Case:
    case = estab()
    assert case.peer is not None
    case.peer.send("PU.", 1, 3, ack=1, win=511, urg=3)
    return case


def errqueue() -> Case:
    case = estab()
    api.setsockopt(case.sk, 0, IP_RECVERR, 1)
    api.sendmsg(case.sk, bytes(10))
    icmp_err.error(case.world, case.sk, 4, bytes(4) + ((case.sk.iss + 1) & 0xFFFFFFFF).to_bytes(4, "big"), 3, 1, 0, bytes(4))
    return case


def disconnected() -> Case:
    case = estab()
    api.disconnect(case.sk)
    return case


def rst_fetched() -> Case:
    case = _after(estab, ("R.", 1, 0, 1))
    assert api.take_error(case.sk) == errno.ECONNRESET
    return case


DATA = ("P.", 1, 10, 1)
FIN = ("F.", 1, 0, 1)
STATES: dict[str, Callable[[], Case]] = {
    "fresh": fresh,
    "bound": bound,
    "listen": listen,
    "listen_pending": listen_pending,
    "syn_sent": syn_sent,
    "refused": refused,
    "refused_fetched": refused_fetched,
    "estab": estab,
    "estab_client": estab_client,
    "estab_data": lambda: _after(estab, DATA),
    "estab_sndfull": estab_sndfull,
    "urgent": urgent,
    "errqueue": errqueue,
    "shut_rd": lambda: _after(estab, ("shutdown", 0)),
    "shut_rd_data_before": lambda: _after(estab, DATA, ("shutdown", 0)),
    "shut_rd_data_after": lambda: _after(estab, ("shutdown", 0), DATA),
    "fin_wait1": lambda: _after(estab, ("shutdown", 1)),
    "fin_wait1_rdwr": lambda: _after(estab, ("shutdown", 2)),
    "fin_wait2": lambda: _after(estab, ("shutdown", 1), (".", 1, 0, 2)),
    "fin_wait2_data": lambda: _after(estab, ("shutdown", 1), (".", 1, 0, 2), ("P.", 1, 10, 2)),
    "fin_wait2_rdwr": lambda: _after(estab, ("shutdown", 2), (".", 1, 0, 2)),
    "close_wait": lambda: _after(estab, FIN),
    "close_wait_data": lambda: _after(estab, DATA, ("F.", 11, 0, 1)),
    "close_wait_shut_rd": lambda: _after(estab, FIN, ("shutdown", 0)),
    "last_ack": lambda: _after(estab, FIN, ("shutdown", 1)),
    "closed_after_last_ack": lambda: _after(estab, FIN, ("shutdown", 1), (".", 2, 0, 2)),
    "closing": lambda: _after(estab, ("shutdown", 1), FIN),
    "time_wait": lambda: _after(estab, ("shutdown", 1), (".", 1, 0, 2), ("F.", 1, 0, 2)),
    "time_wait_data": lambda: _after(estab, ("shutdown", 1), (".", 1, 0, 2), ("P.", 1, 10, 2), ("F.", 11, 0, 2)),
    "rst": lambda: _after(estab, ("R.", 1, 0, 1)),
    "rst_fetched": rst_fetched,
    "rst_data": lambda: _after(estab, DATA, ("R.", 11, 0, 1)),
    "rst_close_wait": lambda: _after(estab, FIN, ("R.", 2, 0, 1)),
    "rst_fin_wait2": lambda: _after(estab, ("shutdown", 1), (".", 1, 0, 2), ("R.", 1, 0, 2)),
    "rst_last_ack": lambda: _after(estab, FIN, ("shutdown", 1), ("R.", 2, 0, 1)),
    "rst_queue": lambda: _after(estab, DATA, ("R.", 11, 0, 1)),
    "disconnected": disconnected,
}


# ---------------------------------------------------------------- the calls


def poll(case: Case) -> str:
    mask = api.poll(case.sk)
    return "+".join(name for name, bit in POLL_BITS if mask & bit) or "0"


def result(call: Callable[[], Any]) -> str:
    """A call's result as the tables write it: a number, "ok", or the errno's name."""
    try:
        value = call()
    except OSError as error:
        assert error.errno is not None
        return "EAGAIN" if error.errno == errno.EWOULDBLOCK else errno.errorcode[error.errno]
    if value is None:
        return "ok"
    return str(len(value) if isinstance(value, bytes) else value)


def _recv(case: Case) -> str:
    return f"{result(lambda: api.recv(case.sk, 100))}/{result(lambda: api.recv(case.sk, 100))}/{poll(case)}"


def _send(case: Case) -> str:
    return f"{result(lambda: api.sendmsg(case.sk, b'x'))}/{result(lambda: api.sendmsg(case.sk, b'x'))}/{poll(case)}"


def _so_error(case: Case) -> str:
    code = api.take_error(case.sk)
    return f"{errno.errorcode[code] if code else 0}/{poll(case)}"


def _shutdown(how: int) -> Callable[[Case], str]:
    return lambda case: f"{result(lambda: api.shutdown(case.sk, how))}/{poll(case)}"


def _connect(case: Case) -> str:
    return f"{result(lambda: api.connect(case.sk, REMOTE, 80))}/{poll(case)}"


def _unspec(case: Case) -> str:
    return f"{result(lambda: api.disconnect(case.sk))}/{poll(case)}"


def _accept(case: Case) -> str:
    return result(lambda: api.accept(case.sk) and None)


def _peername(case: Case) -> str:
    return result(lambda: api.getpeername(case.sk) and None)


def _queues(case: Case) -> str:
    inq, outq = result(lambda: api.inq(case.sk)), result(lambda: api.outq(case.sk))
    return f"{inq} {outq} {int(api.at_mark(case.sk))}"


CALLS: dict[str, Callable[[Case], str]] = {
    "tcp_info": lambda case: const.STATE_NAMES[api.tcp_info(case.sk).state],
    "poll = epoll": poll,
    "recv(100), again, poll": _recv,
    "peek": lambda case: result(lambda: api.recv(case.sk, 100, const.MSG_PEEK)),
    "send(1), again, poll": _send,
    "send(0)": lambda case: result(lambda: api.sendmsg(case.sk, b"")),
    "SO_ERROR, poll": _so_error,
    "shutdown RD, poll": _shutdown(api.SHUT_RD),
    "WR, poll": _shutdown(api.SHUT_WR),
    "RDWR, poll": _shutdown(api.SHUT_RDWR),
    "connect, poll": _connect,
    "connect(UNSPEC), poll": _unspec,
    "listen": lambda case: result(lambda: api.listen(case.sk, 5)),
    "accept": _accept,
    "getpeername": _peername,
    "bind": lambda case: result(lambda: api.bind(case.sk, b"", 45099)),
    "SIOCINQ/OUTQ/ATMARK": _queues,
}
ROWS = rows()


def test_the_tables_are_covered() -> None:
    assert set(ROWS) == set(STATES)
    assert {column for row in ROWS.values() for column in row} == set(CALLS) | {"close() sends, then table"}
    assert all(len(row) == len(CALLS) + 1 for row in ROWS.values())


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("column", CALLS)
def test_call_in_state(state: str, column: str) -> None:
    cell = ROWS[state][column]
    expected, _, sent = cell.partition(" **>")
    case = STATES[state]()
    if case.peer is not None:
        case.peer.heard()
    assert CALLS[column](case) == expected
    if case.peer is not None and ("shutdown" in column or "R, poll" in column or "connect" in column):
        wanted = [sent.rstrip("*")] if sent and column != "connect, poll" else []
        if column != "connect, poll":
            assert [re.sub(r" ack.*", "", line) for line in case.peer.heard()] == wanted


@pytest.mark.parametrize("state", STATES)
def test_close_in_state(state: str) -> None:
    sent, _, after = ROWS[state]["close() sends, then table"].rpartition(", ")
    case = STATES[state]()
    if case.peer is not None:
        case.peer.heard()
    assert api.close(case.sk) == 0
    if state == "estab_sndfull":
        # the window is used up: what left was the loss probe, with new data, while the table was read
        case.world.advance(20 * MS)
    heard = [] if case.peer is None else [re.sub(r" ack.*", "", line) for line in case.peer.heard()]
    # a second FIN in a cell is a loss probe, too
    assert heard[:1] == ([] if sent == "nothing" else sent.split(", ")[:1])
    entries = list(case.world.table.values())
    if after == "none":
        assert entries == []
        assert all(case.sk not in holders for holders in case.world.held.values())
        assert case.sk not in case.world.listeners.values()
    else:
        (entry,) = entries
        assert const.STATE_NAMES[getattr(entry, "substate", 0) or entry.state] == after

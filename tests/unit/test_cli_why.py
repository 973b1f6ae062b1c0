"""`pytcp trace` and `pytcp explain`: a running stack's, a program's and a file's decisions, for people and for programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from pytcp.cli import explain as explain_command
from pytcp.cli import trace as trace_command
from pytcp.cli.traceview import COLOURS, Table, cells, span
from pytcp.lab.record import Record
from pytcp.net import tracer
from pytcp.sockets import feed
from pytcp.sockets.open import TrioStack, open_stack
from pytcp.tcp import gates, trace, tso

US = 1000
FLOW = "10.0.0.1:40000>10.0.0.2:80"
OTHER = "[fd00::1]:40001>[fd00::2]:443"
XMIT = {
    "seq": 0, "end_seq": 2896, "segs": 2, "gso_size": 1448, "flags": "P.", "rtx": 0, "why": "autosize", "quota": 2, "max_segs": 2, "cwnd": 10, "inflight": 0,
}  # fmt: skip
STOP = {"gate": "cwnd", "queued": 52_104, "wmem_alloc": 9000, "limit": 10}
# one of each kind, with the fields its head in tcp.trace lists
SAMPLES: dict[str, dict[str, Any]] = {
    "state": {"old": "SYN_SENT", "new": "ESTABLISHED"},
    "xmit": XMIT,
    "stop": STOP,
    "gate": {"old": "app", "new": "cwnd"},
    "autocork": {"length": 100, "truesize": 932, "wmem_alloc": 983, "size_goal": 65_160},
    "tso_defer": {"wait": 1, "why": trace.DEFER[tso.DEFER], "length": 1500},
    "tsq": {"wmem_alloc": 7459, "limit": 7456},
    "ack": {"una": 1448, "wnd": 65_160, "sacks": [[2896, 4344]], "delivered": 2, "rtt_us": 20_600},
    "recv": {"seq": 0, "end_seq": 1448, "segs": 1},
    "window": {"wnd": 64_512, "edge": 65_960},
    "ca_state": {"old": "Open", "new": "Recovery", "cwnd": 20, "ssthresh": 14},
    "lost": {"seq": 1448, "end_seq": 2896, "segs": 1, "why": "rack", "again": 0},
    "retransmit": {"seq": 1448, "end_seq": 2896, "segs": 1, "cause": "lost"},
    "rto": {"rto_us": 204_000, "backoff": 1, "inflight": 3, "cwnd": 10},
    "tlp": {"new": 0, "inflight": 1},
    "probe": {"probes": 1, "backoff": 1, "wnd": 0},
    "undo": {"why": "dsack", "cwnd": 20, "ssthresh": 20},
    "ecn": {"what": "ece", "cwnd": 20},
    "hystart": {"detector": "train", "cwnd": 30, "round_us": 10_000, "delay_min_us": 20_000},
}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A trace of two connections."""
    record = Record({}, [FLOW, OTHER])
    for t_us, flow, kind in ((0, FLOW, "xmit"), (0, FLOW, "stop"), (20_600, FLOW, "ack"), (20_600, OTHER, "tsq")):
        record.events.append({"t_ns": 5_000_000 + t_us * US, "flow": flow, "kind": kind, **SAMPLES[kind]})
    path = tmp_path / "t.jsonl"
    record.write_jsonl(path)
    return path


def run(command: Any, *arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(word) for word in arguments], standalone_mode=True)


# --- the table ---


def test_a_trace_is_a_table_with_a_heading_per_connection(recorded: Path) -> None:
    assert run(trace_command.command, recorded).stdout.splitlines() == [
        "        time     since      event      what                             why",
        "                         #1 10.0.0.1:40000 > 10.0.0.2:80",
        "    0.000000             #1 xmit       0-2,896  2x1448 P.               autosize   at most 2 segments; about 1 ms of the pacing rate in a burst,"
        " more on a short RTT",
        "                         #1 stop       52,104 bytes wait                cwnd       full at 10 packets",
        "    0.020600  +20.6 ms   #1 ack        to 1,448, window 65,160                     2 packets delivered, rtt 20.6 ms; SACK 2,896-4,344",
        "                         #2 [fd00::1]:40001 > [fd00::2]:443",
        "                         #2 tsq        the host has enough                         7,459 bytes of memory, limit 7,456",
    ]


def shown(width: int | None, kind: str) -> list[str]:
    """The lines of one event, without heading and colours."""
    lines = Table(width).lines({"t_ns": 0, "flow": FLOW, "kind": kind, **SAMPLES[kind]})
    return [re.sub("\x1b\\[[0-9;]*m", "", line) for line in lines[2:]]


@pytest.mark.parametrize("kind", trace.KINDS)
def test_a_narrow_terminal_gets_everything_the_reasons_below_where_they_do_not_fit(kind: str) -> None:
    [whole] = shown(None, kind)
    for width in (60, 80):
        lines = shown(width, kind)
        said = cells({"t_ns": 0, "flow": FLOW, "kind": kind, **SAMPLES[kind]})
        assert said.what in lines[0]
        assert {*" ".join(lines).replace(":", " ").split()} >= {*whole.replace("0.000000", "").replace(":", " ").split()}
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("kind", trace.KINDS)
def test_on_a_wide_terminal_an_event_is_one_line_of_which_only_words_are_cut_and_visibly(kind: str) -> None:
    [whole] = shown(None, kind)
    for width in (100, 120):
        [line] = shown(width, kind)
        assert len(line) <= width
        assert line == whole if len(whole) <= width else whole.startswith(line[:-1]) and line[-1] == "…" and len(line) > 83


@pytest.mark.parametrize("kind", trace.KINDS)
def test_every_kind_has_words(kind: str) -> None:
    row = {"t_ns": 0, "flow": FLOW, "kind": kind, **SAMPLES[kind]}
    found = cells(row)
    assert found.what
    assert "=" not in found.what, "not the words for what is unknown"
    assert kind == "state" or kind in COLOURS


def test_an_event_of_another_version_says_what_it_says() -> None:
    assert cells({"t_ns": 0, "flow": FLOW, "kind": "future", "depth": 3}).what == "depth=3"
    assert cells({"t_ns": 0, "flow": FLOW, "kind": "lost", "why": "magic"}).what == "why=magic"


def test_spans_have_a_unit_that_fits() -> None:
    assert [span(ns) for ns in (7, 606_000, 20_600_000, 300_000_000, 1_500_000_000)] == ["7 ns", "606 us", "20.6 ms", "300 ms", "1.5 s"]


# --- files ---


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ((), ["xmit", "stop", "ack", "tsq"]),
        (("--kind", "xmit,ack"), ["xmit", "ack"]),
        (("--kind", "xmit", "--kind", "tsq"), ["xmit", "tsq"]),
        (("--port", "443"), ["tsq"]),
        (("--peer", "10.0.0.0/8"), ["xmit", "stop", "ack"]),
        (("--peer", "fd00::2", "--port", "80"), []),
        (("-n", "2"), ["xmit", "stop"]),
    ],
)
def test_what_is_shown_can_be_chosen(recorded: Path, options: tuple[str, ...], kinds: list[str]) -> None:
    result = run(trace_command.command, *options, "--json", recorded)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["kind"] for row in rows] == kinds
    assert all(row["t_ns"] >= 5_000_000 for row in rows), "JSON has the times of the file"


def test_a_mistake_is_named(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"record": 1, "meta": {}, "flows": []}\n{"events": {"t_ns": 1}}\n')
    for words, complaint in (
        (("--kind", "xmits", recorded), "no kind 'xmits'; like it: xmit"),
        (("--kind", "42", recorded), "no kind '42'; there are state, xmit"),
        (("--peer", "nobody", recorded), "'nobody' does not appear to be an IPv4 or IPv6 network; give 10.0.0.2 or 10.0.0.0/8"),
        ((tmp_path / "none.jsonl",), "does not exist"),
        ((tmp_path,), "is no file"),
        ((tmp_path / "broken.jsonl",), "broken.jsonl:2: events: flow is None, not a name"),
        ((recorded, "x"), "only a PROGRAM.py takes arguments"),
        (("--seconds", "1", recorded), "--seconds goes with a running stack"),
    ):
        result = run(trace_command.command, *words)
        assert result.exit_code != 0
        assert complaint in result.stderr


def test_a_program_in_virtual_time_is_run_and_shown(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import trio\n"
        "from pytcp import open_stack, run_virtual\n"
        "async def main():\n"
        "    async with open_stack() as stack, trio.open_nursery() as nursery:\n"
        "        await nursery.start(stack.serve_tcp, lambda stream: stream.receive_some(), 80)\n"
        "        stream = await stack.open_tcp_stream('127.0.0.1', 80)\n"
        "        await stream.send_all(bytes(int(sys.argv[1])))\n"
        "        await trio.sleep(1)\n"
        "        nursery.cancel_scope.cancel()\n"
        "run_virtual(main)\n"
        "sys.exit(3)\n"
    )
    words = [sys.executable, "-m", "pytcp", "trace", "--json", "--kind", "xmit", str(program), "1234"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, "the program's"
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["seq"], row["end_seq"], row["why"]) for row in rows if row["end_seq"] > row["seq"]] == [(0, 1234, "queue")]


def test_explain_shows_gates_figures_and_a_paragraph(recorded: Path) -> None:
    result = run(explain_command.command, recorded, "80")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "10.0.0.1:40000 > 10.0.0.2:80  open for 20.6 ms, 2.9 kB sent (1.12 Mbit/s), 0 bytes received",
        "",
        "  waited for      time   share                                     bytes   share",
        "  app          20.6 ms  100.0%  ██████████████████████████████    2.9 kB  100.0%",
        "",
        "  round trip 20.6 ms (least 20.6 ms); cwnd 10 x 1448 bytes; window of the peer 65,160 bytes",
        "",
        "  Throughout its 20.6 ms the program had nothing to send, with data on its way for 100% of the time:",
        "  it waits for round trips of 20.6 ms, not for room; send more at once.",
    ]


def test_explain_says_what_is_not_there(recorded: Path, tmp_path: Path) -> None:
    assert "there are: 10.0.0.1:40000>10.0.0.2:80" in run(explain_command.command, recorded, ":81").stderr
    assert "does not exist" in run(explain_command.command, tmp_path / "none.jsonl").stderr
    Record().write_jsonl(tmp_path / "empty.jsonl")
    assert "no connection in it" in run(explain_command.command, tmp_path / "empty.jsonl").stderr


def test_explain_as_json_has_the_same_figures(recorded: Path) -> None:
    [story] = json.loads(run(explain_command.command, "--json", recorded).stdout)
    assert (story["name"], story["ns"], story["sent"]) == (FLOW, 20_600 * US, 2896)
    assert story["gates"] == {"app": {"ns": 20_600 * US, "bytes": 2896, "share": 1.0}}
    assert story["conclusion"].startswith("Throughout its 20.6 ms")


# --- a running stack ---


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTCP_RUNTIME_DIR", str(tmp_path / "run"))
    yield


def alive(program: Callable[[TrioStack], Awaitable[None]]) -> None:
    """A stack in real time with a server on port 80 that reads."""

    async def main() -> None:
        async with open_stack() as stack, trio.open_nursery() as nursery:

            async def serve(stream: trio.abc.ReceiveStream) -> None:
                while await stream.receive_some():
                    pass

            await nursery.start(stack.serve_tcp, serve, 80)
            await program(stack)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_running_stack_is_traced_from_another_thread() -> None:
    results: list[Result] = []

    async def program(stack: TrioStack) -> None:
        stream = await stack.open_tcp_stream("127.0.0.1", 80)
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                results.append(await trio.to_thread.run_sync(run, trace_command.command, "--json", "--kind", "xmit", "--port", "80", "-n", "3"))
                nursery.cancel_scope.cancel()

            nursery.start_soon(look)
            while True:
                await stream.send_all(bytes(100))
                await trio.sleep(0.02)

    alive(program)
    assert results[0].exit_code == 0
    rows = [json.loads(line) for line in results[0].stdout.splitlines()]
    assert [row["kind"] for row in rows] == ["xmit"] * 3
    assert all(row["flow"].endswith(">127.0.0.1:80") and row["end_seq"] - row["seq"] == 100 for row in rows)


def test_nobody_listens_when_the_reader_has_gone() -> None:
    async def program(stack: TrioStack) -> None:
        await trio.to_thread.run_sync(run, trace_command.command, "--seconds", "0.1")
        with trio.fail_after(5):
            while stack.net.tracer is not None:
                await trio.sleep(0.01)

    alive(program)


def test_a_running_connection_is_explained() -> None:
    results: list[Result] = []

    async def program(stack: TrioStack) -> None:
        stream = await stack.open_tcp_stream("127.0.0.1", 80)
        await stream.send_all(bytes(5000))
        await trio.sleep(0.05)
        asked = ("--json", "dport", "=", ":80"), ("dport", "=", ":81"), ("dport", "?", ":80")
        results.extend([await trio.to_thread.run_sync(run, explain_command.command, *words) for words in asked])

    alive(program)
    found, none, wrong = results
    [story] = json.loads(found.stdout)
    assert story["sent"] == 5000
    assert story["now"] == "app"
    assert sum(gate["ns"] for gate in story["gates"].values()) == story["ns"]
    assert "no connection that fits" in none.stderr
    assert wrong.exit_code == 2


def test_a_question_that_makes_no_sense_is_refused_and_too_many_are_too() -> None:
    async def program(stack: TrioStack) -> None:
        for question, complaint in (
            ({"kinds": ["nothing"]}, "kinds is a list of state, xmit"),
            ({"ports": "80"}, "ports is a list of numbers"),
            ({"peers": ["x"]}, "peers is a list of addresses or networks"),
            ({"peers": 3}, "peers is a list of addresses or networks"),
        ):
            with pytest.raises(OSError, match=complaint):
                feed.listener(question, feed.Queue())
        ears = [tracer.Listener(lambda row: None) for _ in range(feed.AT_ONCE)]
        for ear in ears:
            tracer.attach(stack.net, ear)
        result = await trio.to_thread.run_sync(run, trace_command.command, "-n", "1")
        assert "4 traces of this stack are running" in str(result.exception)

    alive(program)


def test_a_reader_who_is_behind_loses_rows_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "QUEUE", 3)

    async def main() -> None:
        queue = feed.Queue()
        for number in range(5):
            queue.put({"number": number})
        assert await queue.get() == [{"number": 0}, {"number": 1}, {"number": 2}, {"lost": 2}]
        queue.put({"number": 5})
        assert await queue.get() == [{"number": 5}]

    trio.run(main)


def test_gates_have_words_and_colours() -> None:
    assert set(gates.WORDS) == set(gates.NAMES) == set(explain_command.COLOURS)

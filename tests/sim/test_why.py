"""Why, in whole stacks: what listens to them, what a file keeps of it, and that a trace tells the same story as the gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.lab.explain import flows, of_flow
from pytcp.lab.record import Record
from pytcp.lab.tracefile import TraceFile
from pytcp.link.emulator import Emulator, Impairment
from pytcp.link.frame import TxFrame
from pytcp.link.pipe import pipe_pair
from pytcp.net import snapshot, tracer
from pytcp.net.stack import Stack
from pytcp.tcp import api, gates
from pytcp.tcp.sock import Sock
from pytcp.wire.tcp import TcpHeader

from .net_world import MS, PEER4, dial, serve, transfer, two_hosts

Row = dict[str, Any]


def connected() -> tuple[VirtualRuntime, Stack, Stack, Sock, Sock]:
    """Two hosts 0.5 ms apart, with a connection from the first to port 80 of the second."""
    runtime, first, second, _ = two_hosts()
    lsk = serve(second, 4, 80)
    sk = dial(first, PEER4, 80)
    runtime.run_for(10 * MS)
    return runtime, first, second, sk, api.accept(lsk)


def test_data_that_waits_for_arp_waits_for_the_neighbour() -> None:
    """The entry is gone; the question and the answer take 0.5 ms each, then the data leaves."""
    runtime, first, _, sk, _ = connected()
    first.interfaces[1].neigh4.remove(PEER4)
    first.now()
    before = gates.times(sk)
    api.sendmsg(sk, bytes(1000), 0)
    first.flush()
    runtime.run_for(300_000)
    assert gates.NAMES[sk.gate] == "neighbour"
    runtime.run_for(9_700_000)
    first.now()
    after = gates.times(sk)
    assert after["neighbour"] == (MS, 1000)
    assert after["app"][0] - before["app"][0] == 9 * MS
    assert after["app"][1] == 0


def test_an_address_that_nobody_has_ends_the_wait_too() -> None:
    """Three questions, at 0, 1 and 2 s, and a second after the last (on the timer wheel) the entry fails. The RTO changes nothing of it."""
    runtime, first, second, sk, _ = connected()
    second.interfaces[1].set_up(False)
    first.interfaces[1].neigh4.remove(PEER4)
    first.now()
    api.sendmsg(sk, bytes(1000), 0)
    first.flush()
    start = runtime.heap.now_ns
    changes: list[Row] = []
    tracer.attach(first, tracer.Listener(changes.append, kinds=["gate"]))
    runtime.run_for(2900 * MS)
    assert (gates.NAMES[sk.gate], changes) == ("neighbour", [])
    runtime.run_for(300 * MS)
    assert [(row["old"], row["new"]) for row in changes][:1] == [("neighbour", "app")]
    assert 3000 * MS <= changes[0]["t_ns"] - start <= 3100 * MS


def lossy(meta: Path, frames: list[TxFrame] | None = None, listens: bool = True) -> tuple[Sock, Record, list[str]]:
    """A transfer over a path that loses, traced into a file; `frames` is given what the stack hands to its device."""
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap, delay_ns=5 * MS)
    wire = Emulator(near, runtime.heap, 5, tx=Impairment(rate=20_000_000, queue_bytes=60_000, loss=0.01))
    first, second = Stack(runtime, seed=1), Stack(runtime, seed=2)
    if frames is not None:
        send = wire.send

        def seen(batch: Any) -> int:
            taken = send(batch)
            frames.extend(batch[:taken])
            return taken

        wire.send = seen  # type: ignore[method-assign]
    file = TraceFile(meta, experiment="a test")
    if listens:
        tracer.attach(first, file.listener)
    first.add_interface(wire, ["10.0.0.1/24"])
    second.add_interface(far, ["10.0.0.2/24"])
    lsk = serve(second, 4, 80)
    sk = dial(first, PEER4, 80)
    runtime.run_for(30 * MS)
    sink = api.accept(lsk)
    transfer(runtime, sk, sink, bytes(400_000))
    first.now()
    api.shutdown(sk, api.SHUT_WR)
    first.flush()
    runtime.run_for(2000 * MS)
    second.now()
    api.close(sink)
    second.flush()
    runtime.run_for(1000 * MS)
    file.close()
    assert file.error is None
    return sk, Record.read_jsonl(meta), [tracer.flow_name(sk)]


def test_the_events_add_up_to_what_the_gates_counted(tmp_path: Path) -> None:
    sk, record, names = lossy(tmp_path / "t.jsonl")
    assert record.flows == names == flows(record)
    story = of_flow(record, names[0])
    counted = {name: figures for name, figures in gates.times(sk).items() if figures != (0, 0)}
    assert story.gates == counted
    assert set(counted) == {"app", "cwnd", "tsq"}
    assert story.sent == 400_000
    assert story.again == sk.total_retrans > 0
    assert sum(row["segs"] for row in record.happened("retransmit")) == sk.total_retrans
    assert sum(row["end_seq"] - row["seq"] for row in record.happened("xmit")) == sk.bytes_sent


def test_what_left_covers_every_byte_once(tmp_path: Path) -> None:
    _, record, _ = lossy(tmp_path / "t.jsonl")
    at = 0
    for row in record.happened("xmit"):
        if not row["rtx"]:
            assert row["seq"] == at
            at = row["end_seq"]
        assert (row["gso_size"] == 0) == (row["segs"] == 1)
    assert at == 400_000


def test_the_trace_is_what_the_device_was_given(tmp_path: Path) -> None:
    """Sizes, sequence numbers and flags of every super-segment with data, read from the frames."""
    frames: list[TxFrame] = []
    sk, record, _ = lossy(tmp_path / "t.jsonl", frames)
    given = []
    for frame in frames:
        length = sum(map(len, frame.parts))
        if length:
            head = TcpHeader.parse(bytes(frame.head)[34:])
            flags = "".join(name for name, bit in (("P", 8), (".", 16)) if head.flags & bit)
            given.append(((head.seq - sk.iss - 1) & 0xFFFFFFFF, length, frame.gso_size, flags))
    with_data = [row for row in record.happened("xmit") if row["end_seq"] > row["seq"]]
    told = [(row["seq"], row["end_seq"] - row["seq"], row["gso_size"], row["flags"]) for row in with_data]
    assert given == told
    assert len(told) > 100


def test_each_loss_is_told_before_its_retransmission(tmp_path: Path) -> None:
    _, record, _ = lossy(tmp_path / "t.jsonl")
    marked: set[int] = set()
    for row in record.happened("lost", "retransmit"):
        if row["kind"] == "lost":
            marked.update(range(row["seq"], row["end_seq"]))
        elif row["cause"] == "lost":
            assert row["seq"] in marked


def test_a_file_whose_writer_was_killed_is_whole(tmp_path: Path) -> None:
    runtime, first, _, sk, _ = connected()
    file = TraceFile(tmp_path / "t.jsonl")
    tracer.attach(first, file.listener)
    api.sendmsg(sk, bytes(1000), 0)
    first.flush()
    runtime.run_for(10 * MS)
    file._file.flush()
    record = Record.read_jsonl(tmp_path / "t.jsonl")
    assert record.flows == []
    assert flows(record) == [tracer.flow_name(sk)]
    file.close()
    assert Record.read_jsonl(tmp_path / "t.jsonl").flows == [tracer.flow_name(sk)]


def test_many_flows_leave_the_first_line_its_place(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.jsonl")
    for number in range(1000):
        file._write({"t_ns": number, "flow": f"10.0.0.1:{number}>10.0.0.2:80", "kind": "tsq", "wmem_alloc": 1, "limit": 0})
    file.close()
    record = Record.read_jsonl(tmp_path / "t.jsonl")
    assert len(record.events) == 1000
    assert len(flows(record)) == 1000


def test_stacks_whose_clocks_were_read_apart_make_one_order(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.jsonl")
    for t_ns, flow in ((5, "a"), (4, "b"), (6, "a")):
        file._write({"t_ns": t_ns, "flow": flow, "kind": "tsq", "wmem_alloc": 1, "limit": 0})
    file.close()
    assert [row["t_ns"] for row in Record.read_jsonl(tmp_path / "t.jsonl").events] == [5, 5, 6]


def test_who_is_watched_does_the_same(tmp_path: Path) -> None:
    """Frame for frame: to listen changes nothing."""

    def heads(listens: bool) -> list[tuple[bytes, int]]:
        frames: list[TxFrame] = []
        lossy(tmp_path / "t.jsonl", frames, listens)
        return [(bytes(frame.head), frame.length) for frame in frames]

    assert heads(True) == heads(False)


def test_listeners_come_and_go_while_connections_live() -> None:
    runtime, first, _, sk, _ = connected()
    one: list[Row] = []
    two: list[Row] = []
    first_ear = tracer.Listener(one.append)
    second_ear = tracer.Listener(two.append, kinds=["xmit"])
    for listener in (first_ear, second_ear):
        tracer.attach(first, listener)
    api.sendmsg(sk, bytes(1000), 0)
    first.flush()
    runtime.run_for(10 * MS)
    assert {row["kind"] for row in one} >= {"xmit", "ack"}
    assert {row["kind"] for row in two} == {"xmit"}
    assert tracer.count(first) == 2
    tracer.detach(first, first_ear)
    heard = len(one)
    api.sendmsg(sk, bytes(1000), 0)
    first.flush()
    runtime.run_for(10 * MS)
    assert (len(one), len(two)) == (heard, 2)
    tracer.detach(first, second_ear)
    assert (tracer.count(first), first.tracer, sk.trace) == (0, None, None)


def test_a_connection_opened_by_an_older_socket_is_heard_too() -> None:
    runtime, first, second, _ = two_hosts()
    serve(second, 4, 80)
    sk = first.new_sock(4)
    rows: list[Row] = []
    tracer.attach(first, tracer.Listener(rows.append))
    assert sk.trace is None
    with pytest.raises(BlockingIOError):
        api.connect(sk, PEER4, 80)
    first.flush()
    runtime.run_for(10 * MS)
    assert [row["new"] for row in rows if row["kind"] == "state"][-1] == "ESTABLISHED"


def test_only_what_was_asked_for_is_told() -> None:
    import ipaddress

    runtime, first, _, sk, _ = connected()
    rows: dict[str, list[Row]] = {"port": [], "other": [], "peer": [], "elsewhere": []}
    tracer.attach(first, tracer.Listener(rows["port"].append, ports=[80]))
    tracer.attach(first, tracer.Listener(rows["other"].append, ports=[81]))
    tracer.attach(first, tracer.Listener(rows["peer"].append, peers=[ipaddress.ip_network("10.0.0.2")]))
    tracer.attach(first, tracer.Listener(rows["elsewhere"].append, peers=[ipaddress.ip_network("10.0.0.0/31")]))
    api.sendmsg(sk, bytes(1000), 0)
    first.flush()
    runtime.run_for(10 * MS)
    assert {name for name, heard in rows.items() if heard} == {"port", "peer"}
    assert rows["port"] == rows["peer"]


def test_a_tracer_of_its_own_stays_with_a_connection() -> None:
    _, first, _, sk, _ = connected()
    own = tracer.Listener(lambda row: None)
    sk.trace = own
    other = tracer.Listener(lambda row: None)
    tracer.attach(first, other)
    assert sk.trace is own
    tracer.detach(first, other)
    assert sk.trace is own


def test_rows_are_plain_json() -> None:
    runtime, first, second, sk, sink = connected()
    rows: list[Row] = []
    for stack in (first, second):
        tracer.attach(stack, tracer.Listener(rows.append))
    transfer(runtime, sk, sink, bytes(100_000))
    assert json.loads(json.dumps(rows)) == rows
    assert {row["flow"] for row in rows} == {tracer.flow_name(sk), tracer.flow_name(sink)}
    assert all(isinstance(row["t_ns"], int) for row in rows)


def test_the_snapshot_has_the_gates() -> None:
    runtime, first, _, sk, _ = connected()
    runtime.run_for(40 * MS)
    first.now()
    facts = snapshot.tcp(first, sk)
    assert facts["gate"] == "app"
    # the handshake took a round trip of 1 ms, and a question for the address before it another
    assert facts["gates"] == {"app": (48 * MS, 0)}

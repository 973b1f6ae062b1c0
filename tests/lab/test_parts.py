"""The parts of experiments: hosts, wires, workloads, distributions, samples. Expected values from the wire's arithmetic."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pytcp.lab.distribution import percentile, percentiles, sampler
from pytcp.lab.hosts import Host
from pytcp.lab.record import Record
from pytcp.lab.transactions import OpenLoop, RequestResponse, ShortFlows
from pytcp.lab.units import MS, SECOND, US
from pytcp.lab.wires import Impairment, Red, Trace, Varying, Wire
from pytcp.lab.workloads import Bulk, Iperf3, OnOff, SmallWrites, jain
from pytcp.lab.world import World

RTT = 10 * MS


def two(world: World, **wire: object) -> tuple[Host, Host]:
    near, far = world.host("near"), world.host("far")
    world.wire(near, far, **{"delay": RTT // 2, **wire})
    return near, far


# ---------------------------------------------------------------- workloads


def test_a_bulk_transfer_takes_its_slow_start() -> None:
    """Handshake, then windows of 10, 20 and 40 segments: 100 kB are 70 segments. The FIN comes with the last of them."""
    world = World()
    near, far = two(world)
    flow = Bulk(far, near, 100_000)
    world.run(lambda: flow.done)
    assert flow.received == 100_000
    # the handshake's last ACK after one and a half round trips, the first window half of one later, then two more
    assert flow.seconds == 4 * RTT / 1e9


def test_a_transaction_takes_a_round_trip_and_two_wakeups() -> None:
    world = World()
    near, far = two(world)
    rr = RequestResponse(near, far, 100, 200, transactions=20, wakeup=5 * US)
    world.run(lambda: rr.done)
    assert set(rr.latencies) == {RTT + 10 * US}
    assert rr.per_second == pytest.approx(1e9 / (RTT + 10 * US))


def test_a_late_answer_counts_for_the_request_behind_it() -> None:
    """One connection, a request every 20 ms; the first answer takes 50 ms, so the second request leaves 30 ms late, the third 10 + RTT."""
    world = World()
    near, far = two(world)
    thinks = iter([40 * MS, *[0] * 9])
    load = OpenLoop(near, far, random.Random(1), connections=1, rate=50, requests=10, writes=(500,), think=lambda: next(thinks), warmup=0)
    world.run(lambda: load.done)
    assert list(load.from_send) == [50 * MS, *[RTT] * 9]
    assert list(load.from_schedule) == [50 * MS, 40 * MS, 30 * MS, 20 * MS, *[RTT] * 6]


def test_a_connection_per_question_takes_two_round_trips() -> None:
    world = World()
    near, far = two(world)
    flows = ShortFlows(near, far, 30, lambda: 2 * MS, response=5000)
    world.run(lambda: flows.done)
    assert len(flows.completion) == 30
    assert all(2 * RTT <= time < 2 * RTT + MS for time in flows.completion)
    world.run(limit=SECOND)
    assert far.counters["TcpPassiveOpens"] == 30
    assert not [sk for sk in near.stack.table.values() if getattr(sk, "state", 0) == 1], "none is left open"


def test_bursts_rest_between_them() -> None:
    world = World()
    near, far = two(world)
    flow = OnOff(near, far, 10_000, lambda: 100 * MS, 5)
    world.run(lambda: flow.done)
    # 10 kB fit the first window: half a round trip each
    assert flow.times == [RTT // 2] * 5
    assert flow.received == 50_000


def test_small_writes_are_gathered_by_nagle() -> None:
    """A hundred writes in one round trip: the first goes, what follows waits for its acknowledgement."""
    world = World()
    near, far = two(world)
    flow = SmallWrites(near, far, 10, 50 * US, 100)
    world.run(lambda: flow.done)
    assert (flow.sent, flow.received, flow.refused) == (1000, 1000, 0)
    data = near.counters["TcpOutSegs"] - 2  # SYN, ACK
    assert data <= 5


def test_streams_share_a_bottleneck() -> None:
    world = World()
    near, far = two(world, there=Impairment(rate=10_000_000, queue_packets=60))
    test = Iperf3(near, far, 6 * SECOND, streams=2, names=("reno", "cubic"))
    world.run(lambda: test.done)
    rates = test.rates(1)
    # 1448 of each 1514 bytes
    assert sum(rates) == pytest.approx(10e6 * 1448 / 1514, rel=0.02)
    assert [sk.getsockopt(6, 13, 16).rstrip(b"\0") for sk in test.sockets] == [b"reno", b"cubic"]  # type: ignore[union-attr]
    assert 0.5 <= jain(rates) <= 1
    assert len(test.intervals[0]) == 6


def test_jains_index() -> None:
    assert jain([1, 1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 1


# ---------------------------------------------------------------- wires


def bulk_rate(there: Impairment, seconds: int, sysctls: dict[str, int | float | str] | None = None) -> tuple[float, World]:
    """Bit/s of payload in the last of so many seconds."""
    world = World()
    near, far = world.host("near", sysctls), world.host("far", sysctls)
    world.wire(near, far, delay=RTT // 2, there=there)
    test = Iperf3(near, far, seconds * SECOND)
    world.run(lambda: test.done)
    return test.intervals[0][-1] * 8.0, world


def test_a_rate_that_varies_counts_from_the_beginning_of_the_experiment() -> None:
    """8 Mbit/s for three seconds, then 2."""
    wire = Impairment(rate=Varying(lambda t_ns: 8_000_000 if t_ns < 3 * SECOND else 2_000_000), queue_packets=40)
    fast, _ = bulk_rate(wire, 3)
    slow, _ = bulk_rate(wire, 5)
    assert fast == pytest.approx(8e6 * 1448 / 1514, rel=0.05)
    assert slow == pytest.approx(2e6 * 1448 / 1514, rel=0.1)


def test_a_mahimahi_trace(tmp_path: Path) -> None:
    """An opportunity of 1500 bytes each 3 ms is 4 Mbit/s."""
    (tmp_path / "trace").write_text("3\n6\n9\n")
    rate, _ = bulk_rate(Impairment(rate=Trace.read(tmp_path / "trace"), queue_packets=40), 4)
    assert rate == pytest.approx(4e6 * 1448 / 1514, rel=0.05)


@pytest.mark.parametrize("aqm", ["codel", "red"])
def test_a_queue_that_marks_loses_nothing_from_a_flow_that_speaks_ecn(aqm: str) -> None:
    from pytcp.lab.wires import CoDel

    marking = CoDel(ecn=True) if aqm == "codel" else Red(ecn=True)
    _, world = bulk_rate(Impairment(rate=10_000_000, queue_packets=1000, aqm=marking), 4, {"net.ipv4.tcp_ecn": 1})
    wire = world.wires[0]
    assert isinstance(wire, Wire) and wire.emulator is not None
    counters = wire.emulator.outward.counters
    assert counters.marked > 0
    assert (counters.dropped, counters.overflowed) == (0, 0)
    assert world.hosts["near"].counters["TcpRetransSegs"] == 0


# ---------------------------------------------------------------- worlds


def test_what_will_never_happen_is_said_with_the_time() -> None:
    world = World()
    two(world)
    with pytest.raises(TimeoutError, match=r"at 0\.000 s of virtual time nothing more will happen"):
        world.run(lambda: False)
    world.heap.call_later(2 * SECOND, lambda: None)
    with pytest.raises(TimeoutError, match=r"the limit of 1s is over"):
        world.run(lambda: False, limit=SECOND)


def test_two_hosts_of_one_name_are_refused() -> None:
    world = World()
    world.host("near")
    with pytest.raises(ValueError, match="there is a host 'near' already"):
        world.host("near")


def test_counters_count_from_the_mark() -> None:
    world = World()
    near, far = two(world)
    rr = RequestResponse(near, far, 10, 10, transactions=4)
    world.run(lambda: rr.completed == 2)
    near.mark()
    before = near.counters_total()["IpInReceives"]
    world.run(lambda: rr.done)
    assert near.counters["IpInReceives"] == 2
    assert near.counters["TCPTimeouts"] == 0
    assert near.counters_total()["IpInReceives"] == before + 2


def test_a_record_tells_what_happened_and_changes_nothing() -> None:
    def run(record: Record | None) -> float:
        world = World(record=record)
        near, far = two(world, there=Impairment(rate=5_000_000, queue_packets=20))
        flow = Bulk(near, far, 300_000, upload=True)
        world.run(lambda: flow.done)
        return flow.seconds

    record = Record()
    assert run(record) == run(None)
    assert record.flows == ["near", "far"]
    sent = [row for row in record.happened("xmit", flow="near") if row["end_seq"] > row["seq"] and not row["rtx"]]
    assert sum(row["end_seq"] - row["seq"] for row in sent) == 300_000
    assert max(record.samples("near", "cwnd")[1]) > 10
    assert 15 <= max(record.queue("near-far there", "packets")[1]) <= 20
    assert record.queue("near-far there", "drops")[1][-1] > 0


def test_traced_events_are_of_the_kinds_asked_for() -> None:
    world = World()
    near, far = two(world)
    sent, states = near.trace("xmit"), near.trace("state", "xmit")
    flow = Bulk(near, far, 20_000, upload=True)
    world.run(lambda: flow.done)
    assert {row["kind"] for row in sent} == {"xmit"} < {row["kind"] for row in states}
    assert sum(row["segs"] for row in sent if row["end_seq"] > row["seq"]) == 14
    assert [row["t_ns"] for row in sent] == sorted(row["t_ns"] for row in sent)


# ---------------------------------------------------------------- distributions


def test_numbers_drawn_from_quantiles_have_them() -> None:
    known: dict[float, float] = {50: 100, 90: 200, 99: 300, 100: 400}
    draw = sampler(10, known, random.Random(1))
    drawn = sorted(int(draw()) for _ in range(20_000))
    for percent, value in known.items():
        assert percentile(drawn, percent) == pytest.approx(value, rel=0.05)
    assert drawn[0] >= 10


def test_a_percentile_is_the_value_that_so_many_do_not_exceed() -> None:
    hundred = list(range(1, 101))
    assert [percentile(hundred, percent) for percent in (1, 50, 99, 99.9, 100)] == [1, 50, 99, 100, 100]
    assert percentiles([3_000_000, 1_000_000], MS) == {"p50": 1, "p75": 3, "p90": 3, "p99": 3, "p99.9": 3, "p99.99": 3, "p99.999": 3, "p100": 3}

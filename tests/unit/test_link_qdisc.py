"""Queueing disciplines before the ring: what they keep, in which order, until when; and that nothing is lost without being counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import GSO_TCPV4, TxFrame
from pytcp.link.qdisc import Fq, Hooks, Htb, Pfifo, Settings, make
from pytcp.link.qdisc.base import wire_size
from pytcp.link.qdisc.fq import flow_of
from pytcp.link.txring import TxRing

US = 1000
MS = 1_000_000
SECOND = 1_000_000_000
HEAD = bytes(12) + b"\x08\x00" + b"\x45" + bytes(39)  # 54 bytes: Ethernet, IPv4, TCP


class Sock:
    """What fq knows of a socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wstamp_ns = 0

    def __repr__(self) -> str:
        return self.name


class Device:
    """Takes up to `room` frames; notes when which was taken."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self.runtime = runtime
        self.room = 1 << 30
        self.out: list[tuple[int, Any, Any]] = []

    def send(self, frames: Sequence[TxFrame]) -> int:
        taken = frames[: self.room]
        self.room -= len(taken)
        self.out += [(self.runtime.now(), frame.owner, frame.skb) for frame in taken]
        return len(taken)


class Rig:
    """A discipline before a ring and a device, in virtual time, wired as an interface does it."""

    def __init__(self, spec: str | Settings, ring_limit: int = 256, ring_mode: str = "reaped", mtu: int = 1514) -> None:
        self.runtime = VirtualRuntime()
        self.device = Device(self.runtime)
        self.completed: list[Any] = []
        self.ring = TxRing(self.device, self.runtime.heap, lambda owner, skb, size: self.completed.append(skb), ring_mode, limit=ring_limit)  # type: ignore[arg-type]
        self.adopted: list[Any] = []
        hooks = Hooks(self.runtime.heap, self.ring, lambda owner: owner.wstamp_ns, self.adopted.append, self.ring.put)
        self.qdisc: Any = make(spec, hooks, mtu)
        self.ring.feeder = self.qdisc.run
        self.runtime.before_pass.append(self.ring.reap)
        self.runtime.after_pass.append(self.ring.flush)

    def put(self, owner: Sock | None, skb: Any, length: int = 1514, at: int | None = None, head: bytes = HEAD) -> bool:
        if owner is not None and at is not None:
            owner.wstamp_ns = at
        ok: bool = self.qdisc.put(TxFrame(head, (), length, owner=owner, skb=skb, truesize=length))
        self.runtime.kick()
        return ok

    def order(self) -> list[Any]:
        self.runtime.run_until_idle()
        return [skb for _, _, skb in self.device.out]

    def times(self) -> dict[Any, int]:
        self.runtime.run_until_idle()
        return {skb: when for when, _, skb in self.device.out}


def blocked(spec: str | Settings) -> Rig:
    """A rig whose ring has no room: everything stays in the discipline until `release`."""
    rig = Rig(spec, ring_limit=1)
    rig.device.room = 0
    rig.ring.put(TxFrame(b"plug", owner="plug", skb="plug"))
    rig.ring.flush()
    return rig


def release(rig: Rig) -> list[Any]:
    rig.device.room = 1 << 30
    rig.ring.limit = 256
    order = rig.order()
    assert order.pop(0) == "plug"
    return order


# ---------------------------------------------------------------- all


def test_a_super_frame_counts_as_its_segments_with_their_headers() -> None:
    """54 bytes of headers and 3000 of payload by 1448: three segments, 162 + 3000 bytes."""
    assert wire_size(TxFrame(HEAD, (bytes(3000),), 3054, GSO_TCPV4, 1448)) == (3162, 3)
    assert wire_size(TxFrame(HEAD, (), 60)) == (60, 1)


@pytest.mark.parametrize("kind", ["pfifo", "fq"])
def test_what_may_leave_goes_straight_through(kind: str) -> None:
    rig = Rig(kind)
    for n in range(5):
        rig.put(Sock("a") if n % 2 else None, n)
    assert len(rig.ring) == 5
    assert (rig.qdisc.qlen, rig.qdisc.backlog, rig.qdisc.bytes, rig.qdisc.packets) == (0, 0, 5 * 1514, 5)


@pytest.mark.parametrize("kind", ["pfifo", "fq"])
def test_a_full_ring_holds_the_rest_back_and_completions_let_it_go(kind: str) -> None:
    rig = Rig(kind, ring_limit=3)
    sock = Sock("a")
    for n in range(10):
        assert rig.put(sock, n)
    assert (len(rig.ring), rig.qdisc.qlen, rig.qdisc.backlog) == (3, 7, 7 * 1514)
    assert rig.order() == list(range(10))
    assert rig.completed == list(range(9)), "the last is reaped when somebody asks"


def test_a_ring_that_completes_inside_the_call_lets_frames_out_in_order() -> None:
    rig = Rig("fq", ring_mode="orphan")
    sock = Sock("a")

    def more(owner: Any, skb: int, size: int) -> None:
        if skb < 5:
            rig.put(sock, skb + 1)

    rig.ring.on_complete = more
    rig.put(sock, 0)
    assert rig.order() == list(range(6))


def test_a_device_that_was_full_goes_on_with_what_waits() -> None:
    rig = blocked("pfifo")
    for n in range(40):
        rig.put(None, n)
    assert rig.qdisc.qlen == 40
    assert release(rig) == list(range(40))


@pytest.mark.parametrize("spec", [Pfifo(), Fq(), Htb(1000)])
def test_closing_gives_back_what_will_not_be_sent(spec: Settings) -> None:
    rig = blocked(spec)
    for n in range(4):
        rig.put(Sock("a"), n, at=10 * SECOND)
    assert [frame.skb for frame in rig.qdisc.close()] == list(range(4))
    assert (rig.qdisc.qlen, rig.qdisc.backlog) == (0, 0)
    rig.device.room = 9
    assert rig.order() == ["plug"]


ACTIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(60, 9000), st.integers(0, 20)), max_size=80)


@settings(max_examples=100)
@given(st.sampled_from([Pfifo(7), Fq(limit=30, flow_limit=5), Fq(maxrate=500_000), Fq(horizon_ns=10 * MS, horizon_drop=False), Htb(1_000_000)]), ACTIONS)
def test_frames_are_conserved_and_those_of_a_flow_keep_their_order(spec: Settings, actions: list[tuple[int, int, int, int]]) -> None:
    """Sent, dropped and counted, or still there; no flow overtakes itself; no frame leaves before its time."""
    rig = Rig(spec, ring_limit=4)
    socks = [Sock(f"s{n}") for n in range(4)]
    due: dict[int, int] = {}
    for number, (which, ahead, length, gap) in enumerate(actions):
        stamp = max(socks[which].wstamp_ns, rig.runtime.now()) + ahead * MS
        if rig.put(socks[which], number, length, stamp):
            due[number] = min(stamp, rig.runtime.now() + spec.horizon_ns) if isinstance(spec, Fq) else 0
        rig.runtime.run_for(gap * MS)
        assert rig.qdisc.qlen >= 0 and (rig.qdisc.backlog > 0) == (rig.qdisc.qlen > 0)
    rig.runtime.run_until_idle()
    sent = [(owner.name, skb) for _, owner, skb in rig.device.out]
    assert sorted(skb for _, skb in sent) == sorted(due)
    assert len(due) + rig.qdisc.drops == len(actions)
    for _, flow in groupby(sorted(enumerate(sent), key=lambda entry: (entry[1][0], entry[0])), key=lambda entry: entry[1][0]):
        numbers = [skb for _, (_, skb) in flow]
        assert numbers == sorted(numbers)
    assert all(when >= due[skb] for when, _, skb in rig.device.out)
    assert (rig.qdisc.qlen, rig.qdisc.backlog) == (0, 0)


# ---------------------------------------------------------------- pfifo


def test_pfifo_drops_the_newest_beyond_its_limit() -> None:
    rig = blocked(Pfifo(3))
    assert [rig.put(None, n) for n in range(5)] == [True, True, True, False, False]
    assert rig.qdisc.drops == 2
    assert release(rig) == [0, 1, 2]


# ---------------------------------------------------------------- fq: departure times


def test_a_frame_leaves_at_its_departure_time_to_the_nanosecond() -> None:
    rig = Rig("fq")
    sock = Sock("a")
    stamps = [0, 12_345, 1_000_001, 1_000_002, 77_777_777]
    for n, stamp in enumerate(stamps):
        rig.put(sock, n, at=stamp)
    assert rig.qdisc.qlen == 4
    assert list(rig.times().values()) == stamps


def test_flows_wait_for_their_own_time_only() -> None:
    rig = Rig("fq")
    rig.put(Sock("a"), "a", at=5 * MS)
    rig.put(Sock("b"), "b", at=2 * MS)
    rig.put(None, "orphan")
    assert rig.times() == {"orphan": 0, "b": 2 * MS, "a": 5 * MS}


def test_a_frame_with_an_earlier_stamp_does_not_overtake_its_own_flow() -> None:
    rig = Rig("fq")
    sock = Sock("a")
    rig.put(sock, 1, at=5 * MS)
    rig.put(sock, 2, at=1 * MS)
    assert rig.times() == {1: 5 * MS, 2: 5 * MS}


def test_a_socket_is_adopted_once_and_frames_without_one_never() -> None:
    rig = Rig("fq")
    a, b = Sock("a"), Sock("b")
    for owner in (a, None, a, b, b):
        rig.put(owner, 0)
    assert rig.adopted == [a, b]


def test_without_pacing_nobody_is_adopted_and_stamps_are_not_looked_at() -> None:
    rig = Rig(Fq(pacing=False))
    rig.put(Sock("a"), 1, at=5 * MS)
    assert (rig.times(), rig.adopted) == ({1: 0}, [])


@pytest.mark.parametrize(("drop", "sent", "counts"), [(True, {1: 10 * SECOND}, (1, 0)), (False, {1: 10 * SECOND, 2: 10 * SECOND}, (0, 1))])
def test_what_lies_beyond_the_horizon_is_dropped_or_sent_at_it(drop: bool, sent: dict[int, int], counts: tuple[int, int]) -> None:
    rig = Rig(Fq(horizon_drop=drop))
    rig.put(Sock("a"), 1, at=10 * SECOND)
    rig.put(Sock("b"), 2, at=10 * SECOND + 1)
    assert rig.times() == sent
    assert (rig.qdisc.horizon_drops, rig.qdisc.horizon_caps) == counts


# ---------------------------------------------------------------- fq: turns


def test_a_new_flow_may_send_its_initial_quantum_then_a_quantum_in_turn() -> None:
    """quantum 2·1514, initial 10·1514: ten frames of a, ten of b, then two of each."""
    rig = blocked("fq")
    a, b = Sock("a"), Sock("b")
    for n in range(16):
        rig.put(a, f"a{n}")
    for n in range(16):
        rig.put(b, f"b{n}")
    order = release(rig)
    assert [(flow, len(list(run))) for flow, run in groupby(order, key=lambda skb: skb[0])] == [
        ("a", 10), ("b", 10), ("a", 2), ("b", 2), ("a", 2), ("b", 2), ("a", 2), ("b", 2),
    ]  # fmt: skip


def test_two_busy_flows_get_the_same_bytes_whatever_the_size_of_their_frames() -> None:
    rig = blocked(Fq(flow_limit=10_000))
    a, b = Sock("a"), Sock("b")
    for n in range(3000):
        rig.put(a, n, 200)
        if n % 2 == 0:
            rig.put(b, n, 1500)
    release(rig)
    sent = {"a": 0, "b": 0}
    for _, owner, _ in rig.device.out[1:]:
        sent[owner.name] += 200 if owner is a else 1500
        if sent["a"] == 600_000:
            break  # it has no more
        # begun with 15,140 each, then rounds of 3028, and at most a frame beyond
        assert abs(sent["a"] - sent["b"]) <= 15_140 + 1500
        if min(sent.values()) > 16_640:
            assert abs(sent["a"] - sent["b"]) <= 3028 + 1500
    assert sent["b"] > 590_000


def test_a_new_flow_comes_before_the_old_ones_but_cannot_starve_them() -> None:
    rig = blocked("fq")
    old, new = Sock("old"), Sock("new")
    for n in range(14):
        rig.put(old, f"o{n}")
    rig.ring.limit = 13  # the plug and twelve frames: the old flow has used up its initial quantum
    rig.device.room = 1
    rig.qdisc.run()
    rig.put(new, "n0")
    assert release(rig) == [f"o{n}" for n in range(12)] + ["n0", "o12", "o13"]


def test_too_many_frames_of_one_flow_or_in_all_are_dropped() -> None:
    rig = blocked(Fq(limit=5, flow_limit=3))
    a, b = Sock("a"), Sock("b")
    assert [rig.put(a, n) for n in range(4)] == [True, True, True, False]
    assert [rig.put(b, n) for n in range(3)] == [True, True, False]
    assert (rig.qdisc.drops, rig.qdisc.flows_plimit) == (2, 1)


def test_a_flow_that_was_idle_gets_its_quantum_anew_and_not_more() -> None:
    rig = Rig(Fq(refill_delay_ns=40 * MS))
    sock = Sock("a")
    for n in range(11):
        rig.put(sock, n)
    [flow] = rig.qdisc.flows.values()
    assert flow.credit == -1514 + 3028  # the eleventh took a turn's quantum
    # another one's frame that has to wait: all that is empty is found so, and leaves the list
    rig.put(Sock("b"), "b", at=1 * MS)
    assert not flow.listed
    flow.credit = -5000
    rig.runtime.run_until(40 * MS)
    rig.put(sock, 11)
    assert flow.credit == -5000 + 2 * 3028 - 1514
    rig.put(Sock("c"), "c", at=41 * MS)
    flow.credit = -5000
    rig.runtime.run_until(80 * MS + 1)
    rig.put(sock, 12)
    assert flow.credit == 3028 - 1514


def test_frames_without_a_socket_are_sorted_by_addresses_and_ports() -> None:
    def head(port: int, proto: int = 17, noise: int = 0) -> bytes:
        return HEAD[:23] + bytes((proto,)) + HEAD[24:34] + port.to_bytes(2, "big") + HEAD[36:38] + noise.to_bytes(2, "big") + HEAD[40:]

    rig = Rig("fq")
    for noise, port in enumerate((1, 2, 1, 3)):
        rig.put(None, 0, head=head(port, noise=noise))
    assert len(rig.qdisc.flows) == 3
    rig = Rig("fq")
    for noise in range(9):
        rig.put(None, 0, head=head(noise, proto=1, noise=noise))
    assert len(rig.qdisc.flows) == 1, "ICMP has no ports"
    rig = Rig(Fq(orphan_mask=0))
    for port in range(50):
        rig.put(None, 0, head=head(port))
    assert len(rig.qdisc.flows) == 1


def test_what_makes_a_flow_of_a_packet() -> None:
    udp4 = b"\x45" + bytes(8) + b"\x11" + bytes(2) + b"AAAABBBB" + b"ppqq" + b"more"
    options4 = b"\x46" + udp4[1:20] + b"opts" + b"ppqq" + b"more"
    tcp6 = b"\x60" + bytes(5) + b"\x06\x40" + b"A" * 16 + b"B" * 16 + b"ppqq" + b"more"
    icmp6 = tcp6[:6] + b"\x3a" + tcp6[7:]
    for header in (b"", bytes(12)):
        four, six = (header + kind if header else b"" for kind in (b"\x08\x00", b"\x86\xdd"))
        assert flow_of(four + udp4, len(four)) == flow_of(four + options4, len(four)) == b"\x11AAAABBBBppqq"
        assert flow_of(six + tcp6, len(six)) == b"\x06" + b"A" * 16 + b"B" * 16 + b"ppqq"
        assert flow_of(six + icmp6, len(six)) == b"\x3a" + b"A" * 16 + b"B" * 16
    arp = bytes(12) + b"\x08\x06" + b"\x45" + bytes(40)
    assert flow_of(arp, 14) == arp[:14]


def test_flows_of_the_past_are_forgotten() -> None:
    rig = Rig("fq")
    for n in range(1024):
        rig.put(Sock(f"s{n}"), n)
    rig.order()
    rig.runtime.run_until(4 * SECOND)
    rig.put(Sock("new"), 0)
    # the last is still listed: that it is empty is seen when it is its turn
    assert (len(rig.qdisc.flows), rig.qdisc.gc_flows) == (2, 1023)


# ---------------------------------------------------------------- fq: maxrate


def test_maxrate_spaces_quanta_of_a_flow() -> None:
    """1.514 MB/s: a frame of 1514 bytes is 1 ms. The initial quantum, ten frames, goes at once and is charged as one quantum at its end;
    from then on a quantum, two frames, every 2 ms."""
    rig = Rig(Fq(maxrate=1_514_000, initial_quantum=15_140))
    sock = Sock("a")
    for n in range(16):
        rig.put(sock, n, at=0)
    assert list(rig.times().values()) == [0] * 10 + [2 * MS] * 2 + [4 * MS] * 2 + [6 * MS] * 2


def test_below_the_low_rate_threshold_every_frame_is_charged_by_itself() -> None:
    """50,000 bytes/s: 1000 bytes are 20 ms."""
    rig = Rig(Fq(maxrate=50_000))
    sock = Sock("a")
    for n in range(4):
        rig.put(sock, n, 1000, at=0)
    assert list(rig.times().values()) == [0, 20 * MS, 40 * MS, 60 * MS]


def test_a_frame_never_costs_more_than_a_second() -> None:
    rig = Rig(Fq(maxrate=100))
    sock = Sock("a")
    for n in range(3):
        rig.put(sock, n, 1000, at=0)
    assert list(rig.times().values()) == [0, SECOND, 2 * SECOND]
    assert rig.qdisc.pkts_too_long == 3


def test_who_comes_late_may_use_up_to_half_the_gap() -> None:
    rig = Rig(Fq(maxrate=50_000))
    sock = Sock("a")
    rig.put(sock, 0, 1000)
    rig.runtime.run_until(26 * MS)  # 6 ms late: the next frame costs 20 - 6
    rig.put(sock, 1, 1000, at=0)
    rig.put(sock, 2, 1000)
    rig.runtime.run_until(100 * MS)  # very late: half of 20
    rig.put(sock, 3, 1000)
    rig.put(sock, 4, 1000)
    assert list(rig.times().values()) == [0, 26 * MS, 40 * MS, 100 * MS, 110 * MS]


# ---------------------------------------------------------------- htb


def test_htb_sends_whole_frames_while_no_bucket_is_overdrawn() -> None:
    """12,500 bytes/s (100 kbit), buckets of 1600 bytes: the first frame of 3162 bytes on the wire overdraws by 1562, which is 124.96 ms."""
    rig = Rig(Htb(12_500))
    for n in range(3):
        rig.qdisc.put(TxFrame(HEAD, (bytes(3000),), 3054, GSO_TCPV4, 1448, owner="sk", skb=n))
    rig.runtime.kick()
    assert list(rig.times().values()) == [0, 124_960_000, 124_960_000 + 252_960_000]
    assert (rig.qdisc.bytes, rig.qdisc.packets) == (3 * 3162, 9)


def test_htb_saves_no_more_than_its_burst() -> None:
    rig = Rig(Htb(100_000, burst=2000, cburst=2000))
    rig.runtime.run_until(10 * SECOND)
    for n in range(4):
        rig.put(None, n, 1000)
    start = 10 * SECOND
    # 2000 bytes saved: a third frame still leaves at zero, the fourth 10 ms later
    assert list(rig.times().values()) == [start, start, start, start + 10 * MS]


def test_htb_is_bounded_by_its_ceil_too() -> None:
    rig = Rig(Htb(1_000_000, ceil=1_000_000, burst=100_000, cburst=1000))
    for n in range(3):
        rig.put(None, n, 1000)
    assert list(rig.times().values()) == [0, 0, MS]


@pytest.mark.parametrize(
    ("spec", "sizes", "kernel_ms"),
    [
        (Htb(12_500), [1000] * 5, [0.0, 0.012, 32.029, 112.029, 192.028]),
        (Htb(12_500), [1500, 600, 1500], [0.0, 0.013, 40.028]),
        (Htb(125_000, burst=2000, cburst=2000), [1000] * 5, [0.0, 0.011, 0.014, 8.028, 16.02]),
        (Htb(125_000, burst=10_000), [1000] * 5, [0.0, 0.011, 3.235, 11.233, 19.225]),
        (Htb(125_000, ceil=250_000), [1000] * 5, [0.0, 0.012, 3.231, 11.245, 19.239]),
    ],
)
def test_htb_sends_when_the_kernels_class_does(spec: Htb, sizes: list[int], kernel_ms: list[float]) -> None:
    """Measured on Linux 6.18: `tc class add ... htb rate 100kbit burst 1600 cburst 1600` and so on over a veth, idle for a second, then packets of
    these sizes at once from a packet socket; arrival at the other end."""
    rig = Rig(spec)
    rig.runtime.run_until(SECOND)
    for n, size in enumerate(sizes):
        rig.put(None, n, size)
    times = list(rig.times().values())
    assert all(abs((when - times[0]) / MS - measured) < 0.05 for when, measured in zip(times, kernel_ms, strict=True))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Pfifo(-1), "limit -1 is negative"),
        (lambda: Fq(quantum=-1), "quantum is negative"),
        (lambda: Fq(maxrate=0), "maxrate is positive"),
        (lambda: Htb(0), "rate is positive"),
        (lambda: Htb(10, ceil=5), "ceil not below"),
        (lambda: Rig("fifo"), "'fifo' is not one of pfifo, fq, htb"),
        (lambda: Rig("htb"), "give Htb"),
    ],
)
def test_impossible_settings_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()

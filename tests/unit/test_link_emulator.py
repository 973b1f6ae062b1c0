"""The emulated wire: each impairment alone, exact where it is arithmetic and within binomial bounds where
it is chance, and the same fate for the same packets every time."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Ether

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.emulator import Direction, Emulator, GilbertElliott, Impairment, mark_ce
from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, F_CSUM, F_RXCSUM, F_TSO4, F_TSO6, F_USO, GSO_TCPV4, RxFrame, TxFrame
from pytcp.link.pipe import pipe_pair

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
PACKETS = 20_000


class Wire:
    """One direction in virtual time. Packet n is n as four bytes, padded to `size`."""

    def __init__(self, seed: int = 1, size: int = 100, **impairment: Any) -> None:
        self.runtime = VirtualRuntime()
        self.size = size
        self.arrived: list[tuple[int, bytes]] = []
        self.direction = Direction(self.runtime.heap, Impairment(**impairment), seed, self.deliver)
        self.sent = 0

    def deliver(self, packets: Sequence[bytes]) -> None:
        self.arrived += [(self.runtime.now(), packet) for packet in packets]

    def send(self, count: int, gap_ns: int = 0) -> Wire:
        for _ in range(count):
            self.direction.enter([struct.pack(">I", self.sent).ljust(self.size, b"\0")])
            self.sent += 1
            if gap_ns:
                self.runtime.run_for(gap_ns)
        return self

    def finish(self) -> Wire:
        self.runtime.run_until_idle()
        return self

    def numbers(self) -> list[int]:
        return [struct.unpack_from(">I", packet)[0] for _, packet in self.arrived]

    def times(self) -> list[int]:
        return [time for time, _ in self.arrived]


def within(count: int, trials: int, probability: float) -> bool:
    """Five standard deviations of the binomial: a right generator fails once in two million seeds."""
    return abs(count - trials * probability) <= 5 * math.sqrt(trials * probability * (1 - probability))


# --- chance ---


@pytest.mark.parametrize("loss", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_loss_is_as_frequent_as_it_was_asked_for(loss: float, seed: int) -> None:
    wire = Wire(seed, loss=loss).send(PACKETS).finish()
    lost = wire.direction.counters.lost
    assert lost + len(wire.arrived) == PACKETS
    assert within(lost, PACKETS, loss)


def test_losses_are_independent_of_each_other() -> None:
    wire = Wire(3, loss=0.2).send(PACKETS).finish()
    lost = sorted(set(range(PACKETS)) - set(wire.numbers()))
    pairs = sum(1 for a, b in itertools.pairwise(lost) if b == a + 1)
    assert within(pairs, len(lost), 0.2)


def test_a_probability_of_one_is_certain_and_of_zero_impossible() -> None:
    assert Wire(loss=1.0).send(500).finish().arrived == []
    assert len(Wire(loss=0.0, delay_ns=1).send(500).finish().arrived) == 500


@pytest.mark.parametrize("seed", [1, 5])
def test_gilbert_elliott_loses_in_bursts_of_the_mean_length_it_should(seed: int) -> None:
    p, r = 0.01, 0.25
    wire = Wire(seed, gilbert=GilbertElliott(p, r)).send(PACKETS).finish()
    lost = sorted(set(range(PACKETS)) - set(wire.numbers()))
    bursts = 1 + sum(1 for a, b in itertools.pairwise(lost) if b != a + 1)
    # one burst begins per visit to the bad state: visits follow each other after 1/p + 1/r packets on average
    cycle = 1 / p + 1 / r
    expected = PACKETS / cycle
    deviation = math.sqrt(PACKETS * ((1 - p) / p**2 + (1 - r) / r**2) / cycle**3)  # of the renewal count
    assert abs(bursts - expected) < 5 * deviation
    # the length of a burst is geometric: mean 1/r, variance (1-r)/r^2
    assert abs(len(lost) / bursts - 1 / r) < 5 * math.sqrt((1 - r) / r**2 / bursts)


def test_the_good_state_of_gilbert_elliott_can_lose_too() -> None:
    wire = Wire(gilbert=GilbertElliott(0, 1, loss_bad=0, loss_good=0.05)).send(PACKETS).finish()
    assert within(wire.direction.counters.lost, PACKETS, 0.05)


def test_duplicates_arrive_right_behind_their_originals() -> None:
    wire = Wire(duplicate=0.1).send(PACKETS).finish()
    numbers = wire.numbers()
    assert within(len(numbers) - PACKETS, PACKETS, 0.1)
    assert numbers == sorted(numbers)
    assert max(numbers.count(n) for n in numbers[:200]) == 2


def test_corruption_flips_exactly_one_bit_and_reaches_every_part_of_the_packet() -> None:
    wire = Wire(corrupt=0.5, size=20).send(PACKETS).finish()
    hit = []
    for number, (_, packet) in enumerate(wire.arrived):
        original = struct.pack(">I", number).ljust(20, b"\0")
        difference = int.from_bytes(packet, "big") ^ int.from_bytes(original, "big")
        if difference:
            assert difference.bit_count() == 1
            hit.append(difference.bit_length() - 1)
    assert within(len(hit), PACKETS, 0.5)
    assert set(hit) == set(range(160))
    assert len(hit) == wire.direction.counters.corrupted


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_jitter_has_the_mean_and_the_spread_of_its_distribution(distribution: str) -> None:
    wire = Wire(delay_ns=100 * MS, jitter_ns=1 * MS, distribution=distribution, jitter_reorders=True)
    wire.send(PACKETS).finish()
    late = [time - 100 * MS for time in wire.times()]
    sigma = MS / math.sqrt(3) if distribution == "uniform" else MS
    assert abs(sum(late) / PACKETS) < 5 * sigma / math.sqrt(PACKETS)
    spread = math.sqrt(sum(x * x for x in late) / PACKETS)
    assert abs(spread / sigma - 1) < 0.05
    if distribution == "uniform":
        assert min(late) >= -MS and max(late) <= MS
    else:
        assert within(sum(1 for x in late if abs(x) > 2 * MS), PACKETS, 0.0455)  # beyond two sigma


def test_jitter_keeps_the_order_unless_it_may_not() -> None:
    ordered = Wire(delay_ns=MS, jitter_ns=MS).send(200, gap_ns=100 * US).finish()
    assert ordered.numbers() == list(range(200))
    loose = Wire(delay_ns=MS, jitter_ns=MS, jitter_reorders=True).send(200, gap_ns=100 * US).finish()
    assert sorted(loose.numbers()) == list(range(200))
    assert loose.numbers() != list(range(200))


def test_jitter_never_makes_a_packet_arrive_before_it_was_sent() -> None:
    wire = Wire(delay_ns=1 * US, jitter_ns=1 * MS, distribution="normal").send(500).finish()
    assert min(wire.times()) >= 0


def test_reordered_packets_arrive_late_and_the_others_pass_them() -> None:
    wire = Wire(delay_ns=MS, reorder=0.1, reorder_delay_ns=300 * US).send(2000, gap_ns=100 * US).finish()
    number_at = dict(zip(wire.numbers(), wire.times(), strict=True))
    late = [n for n, time in number_at.items() if time - n * 100 * US != MS]
    assert {number_at[n] - n * 100 * US for n in late} == {MS + 300 * US}
    assert within(len(late), 2000, 0.1)
    assert wire.direction.counters.reordered == len(late)


def test_with_a_gap_every_nth_packet_is_reordered() -> None:
    wire = Wire(delay_ns=MS, reorder_gap=4, reorder_delay_ns=150 * US).send(8, gap_ns=100 * US).finish()
    assert wire.numbers() == [0, 1, 2, 4, 3, 5, 6, 7]


# --- arithmetic ---


def test_a_packet_takes_its_bits_divided_by_the_rate_then_the_delay() -> None:
    wire = Wire(size=1500, rate=12_000_000, delay_ns=5 * MS).send(3).finish()
    assert wire.times() == [6 * MS, 7 * MS, 8 * MS]  # 12,000 bits at 12 Mbit/s = 1 ms each


def test_overhead_costs_transmission_time() -> None:
    wire = Wire(size=1514, overhead=24, rate=1_000_000_000).send(2).finish()
    assert wire.times() == [12_304, 24_608]


def test_an_idle_transmitter_starts_at_once() -> None:
    wire = Wire(size=1500, rate=12_000_000).send(1)
    wire.runtime.run_until(10 * MS)
    wire.send(1).finish()
    assert wire.times() == [1 * MS, 11 * MS]


def test_a_full_queue_loses_the_newest_packet() -> None:
    wire = Wire(size=1500, rate=12_000_000, queue_packets=3).send(5)
    wire.runtime.run_until(1 * MS)  # one is sent: room for one
    wire.send(2).finish()
    assert wire.numbers() == [0, 1, 2, 5]
    assert wire.direction.counters.overflowed == 3


def test_the_queue_may_be_bounded_in_bytes() -> None:
    wire = Wire(size=1000, rate=8_000_000, queue_packets=0, queue_bytes=2500).send(4).finish()
    assert wire.numbers() == [0, 1]
    assert wire.direction.counters.max_backlog == 2000


def test_the_line_itself_is_bounded() -> None:
    wire = Wire(delay_ns=SECOND, line_packets=10).send(15).finish()
    assert len(wire.arrived) == 10
    assert wire.direction.counters.overflowed == 5


def test_a_rule_of_ones_own_sees_number_and_packet_of_all_that_come() -> None:
    seen: list[int] = []

    def rule(number: int, packet: bytes) -> bool:
        seen.append(struct.unpack_from(">I", packet)[0])
        return number in (1, 3)

    wire = Wire(drop=rule, loss=0.0).send(5).finish()
    assert wire.numbers() == [0, 2, 4]
    assert seen == [0, 1, 2, 3, 4]


def test_a_cut_cable_loses_what_is_sent_and_what_is_under_way() -> None:
    wire = Wire(delay_ns=10 * MS).send(2)
    wire.runtime.run_until(5 * MS)
    wire.direction.up = False
    wire.send(1)
    wire.runtime.run_until(20 * MS)
    wire.direction.up = True
    wire.send(1).finish()
    assert wire.numbers() == [3]
    assert wire.direction.counters.down == 3


def test_new_settings_hold_for_new_packets_and_the_old_keep_their_arrival() -> None:
    wire = Wire(delay_ns=10 * MS).send(1)
    wire.direction.impairment = Impairment(delay_ns=10 * MS, loss=1.0)
    wire.send(1)
    wire.direction.impairment = Impairment(delay_ns=30 * MS)
    wire.send(1).finish()
    assert list(zip(wire.numbers(), wire.times(), strict=True)) == [(0, 10 * MS), (2, 30 * MS)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": 1.5},
        {"duplicate": -0.1},
        {"rate": -1},
        {"delay_ns": -1},
        {"distribution": "pareto"},
        {"reorder": 0.1},
        {"reorder_gap": 3},
        {"line_packets": 0},
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Impairment(**wrong)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("delay_ns", 1.5, ValueError), ("delay_ns", float("nan"), ValueError), ("jitter_ns", float("inf"), ValueError), ("rate", 0.5, ValueError),
        ("rate", "1M", TypeError), ("queue_packets", None, TypeError), ("line_packets", "3", TypeError), ("loss", None, TypeError), ("corrupt", "x", TypeError),
    ],
)  # fmt: skip
def test_what_is_no_such_number_is_refused_by_name(setting: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=setting):
        Impairment(**{setting: value})


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert Impairment(delay_ns=25e6, rate=1e9, jitter_ns=1e3) == Impairment(delay_ns=25_000_000, rate=1_000_000_000, jitter_ns=1000)  # type: ignore[arg-type]
    heap = VirtualRuntime().heap
    pipe_pair(heap, delay_ns=1e6, rate=1e9)  # type: ignore[arg-type]
    for setting in ("delay_ns", "rate"):
        with pytest.raises(ValueError, match=f"{setting}: 1.5 is no whole number"):
            pipe_pair(heap, **{setting: 1.5})


def test_impossible_burst_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss_bad"):
        GilbertElliott(0.1, 0.1, loss_bad=2)


# --- the same fate for the same packets ---

EVERYTHING: dict[str, Any] = {
    "rate": 50_000_000,
    "delay_ns": 3 * MS,
    "jitter_ns": 500 * US,
    "loss": 0.02,
    "gilbert": GilbertElliott(0.005, 0.3),
    "duplicate": 0.02,
    "corrupt": 0.02,
    "reorder": 0.02,
    "reorder_delay_ns": MS,
    "queue_packets": 20,
}


def test_two_runs_with_one_seed_are_the_same_to_the_nanosecond_and_the_bit() -> None:
    first = Wire(9, **EVERYTHING).send(2000, gap_ns=15 * US).finish()
    second = Wire(9, **EVERYTHING).send(2000, gap_ns=15 * US).finish()
    assert first.arrived == second.arrived
    assert first.direction.counters == second.direction.counters
    assert first.direction.counters.overflowed > 0


def test_another_seed_means_another_fate() -> None:
    assert Wire(9, loss=0.1).send(500).finish().arrived != Wire(10, loss=0.1).send(500).finish().arrived


def test_the_two_directions_of_one_wire_have_fates_of_their_own() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap, seed=4, tx=Impairment(loss=0.5), rx=Impairment(loss=0.5))
    out: list[bytes] = []
    back: list[bytes] = []
    far.rx = lambda frame: out.append(bytes(frame.data))
    link.rx = lambda frame: back.append(bytes(frame.data))
    for number in range(64):
        link.send([TxFrame(bytes([number]))])
        far.send([TxFrame(bytes([number]))])
    runtime.run_until_idle()
    assert out != back


def test_the_fate_of_a_packet_depends_on_its_number_and_not_on_time_or_batches() -> None:
    slowly = Wire(9, loss=0.1, corrupt=0.1).send(400, gap_ns=MS).finish()
    together = Wire(9, loss=0.1, corrupt=0.1)
    together.direction.enter([packet.ljust(100, b"\0") for packet in (struct.pack(">I", n) for n in range(400))])
    assert [packet for _, packet in slowly.arrived] == [packet for _, packet in together.arrived]


def test_switching_one_impairment_on_does_not_move_the_losses_of_another() -> None:
    plain = Wire(9, loss=0.1).send(500).finish()
    also = Wire(9, loss=0.1, duplicate=0.2, delay_ns=MS, jitter_ns=US).send(500).finish()
    assert set(plain.numbers()) == set(also.numbers())


# --- ECN ---


def ect(version: int, ecn: int) -> bytes:
    ip = IP(src="10.0.0.1", dst="10.0.0.2", tos=0xB8 | ecn) if version == 4 else IPv6(src="fd00::1", dst="fd00::2", tc=0xB8 | ecn, fl=0xFFFFF)
    return bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / ip / TCP() / b"x")


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("ecn", [1, 2, 3])
def test_marking_sets_ce_and_leaves_everything_else_and_a_right_checksum(version: int, ecn: int) -> None:
    assert mark_ce(ect(version, ecn)) == ect(version, 3)


@pytest.mark.parametrize("packet", [ect(4, 0), ect(6, 0), bytes(Ether() / ARP()), b"short"])
def test_packets_that_do_not_speak_ecn_cannot_be_marked(packet: bytes) -> None:
    assert mark_ce(packet) is None


def test_packets_without_a_link_header_are_marked_too() -> None:
    assert mark_ce(ect(4, 2)[14:], 0) == ect(4, 3)[14:]


def test_marks_begin_at_the_threshold_and_never_replace_the_drop_of_a_full_queue() -> None:
    runtime = VirtualRuntime()
    arrived: list[bytes] = []
    direction = Direction(runtime.heap, Impairment(rate=1_000_000, ecn_packets=2, queue_packets=4), 0, arrived.extend)
    direction.enter([ect(4, 2)] * 3 + [ect(4, 0)] + [ect(4, 2)])
    runtime.run_until_idle()
    assert arrived == [ect(4, 2), ect(4, 2), ect(4, 3), ect(4, 0)]
    assert (direction.counters.marked, direction.counters.overflowed) == (1, 1)


def test_the_threshold_may_be_in_bytes() -> None:
    runtime = VirtualRuntime()
    arrived: list[bytes] = []
    size = len(ect(6, 1))
    direction = Direction(runtime.heap, Impairment(rate=1_000_000, ecn_bytes=size + 1), 0, arrived.extend)
    direction.enter([ect(6, 1)] * 3)
    runtime.run_until_idle()
    assert arrived == [ect(6, 1), ect(6, 1), ect(6, 3)]


# --- as a link ---


def tcp_super_frame(payload: bytes, gso_size: int = 1460) -> TxFrame:
    packet = bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(seq=0xFFFFFF00, flags="A") / payload)
    return TxFrame(packet[:54], (packet[54:],), len(packet), GSO_TCPV4, gso_size, 34, 16)


def tcp_checksum_is_right(packet: bytes) -> bool:
    parsed = Ether(packet)
    claimed = parsed[TCP].chksum
    del parsed[TCP].chksum
    return bool(Ether(bytes(parsed))[TCP].chksum == claimed)


def test_the_emulator_offers_offloads_although_the_link_within_has_none() -> None:
    runtime = VirtualRuntime()
    near, _ = pipe_pair(runtime.heap, features=0, mtu=1400)
    link = Emulator(near, runtime.heap)
    assert link.features == F_CSUM | F_TSO4 | F_TSO6 | F_USO
    assert (link.name, link.mac, link.mtu, link.fileno()) == (near.name, near.mac, 1400, -1)


def test_a_super_frame_is_judged_packet_by_packet_with_finished_checksums() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap, tx=Impairment(drop=lambda number, packet: number == 1))
    got: list[RxFrame] = []
    far.rx = got.append
    link.send([tcp_super_frame(bytes(4 * 1460))])
    runtime.run_until_idle()
    assert [Ether(bytes(frame.data))[TCP].seq for frame in got] == [0xFFFFFF00, 0xA68, 0x101C]
    assert all(tcp_checksum_is_right(bytes(frame.data)) for frame in got)
    assert {frame.csum for frame in got} == {CSUM_NONE}


def test_received_super_frames_are_judged_packet_by_packet_too_and_must_be_checked() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap, rx=Impairment(delay_ns=MS, drop=lambda number, packet: number == 0))
    got: list[RxFrame] = []
    ends: list[int] = []
    link.rx = got.append
    link.rx_end = lambda: ends.append(len(got))
    far.send([tcp_super_frame(bytes(3 * 1460))])
    runtime.run_until_idle()
    assert [(frame.gso_size, frame.csum, frame.buf) for frame in got] == [(0, CSUM_NONE, None)] * 2
    assert all(tcp_checksum_is_right(bytes(frame.data)) for frame in got)
    assert ends == [2]


def test_packets_that_come_up_together_are_coalesced_when_asked_for() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap, rx=Impairment(drop=lambda number, packet: number == 2), gro=True)
    got: list[tuple[int, int]] = []
    link.rx = lambda frame: got.append((frame.gso_size, len(frame.data) - 54))
    link.rx_end = lambda: got.append((-1, -1))
    far.send([tcp_super_frame(bytes(5 * 1460))])
    runtime.run_until_idle()
    assert got == [(1460, 2 * 1460), (1460, 2 * 1460), (-1, -1)]


def test_a_corrupted_packet_comes_up_with_a_checksum_that_fails() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap, seed=3, rx=Impairment(corrupt=1.0))
    got: list[RxFrame] = []
    link.rx = got.append
    original = tcp_super_frame(bytes(1460))
    far.send([original])
    runtime.run_until_idle()
    (frame,) = got
    assert frame.csum == CSUM_NONE
    assert bytes(frame.data)[54:] != bytes(1460) or not tcp_checksum_is_right(bytes(frame.data))


def test_a_wire_that_does_nothing_passes_super_frames_whole() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap)
    got: list[RxFrame] = []
    far.rx = got.append
    assert link.send([tcp_super_frame(bytes(4000))]) == 1
    runtime.run_until_idle()
    assert [(frame.gso_size, frame.csum) for frame in got] == [(1460, CSUM_UNNECESSARY)]
    up: list[RxFrame] = []
    link.rx = up.append
    far.send([tcp_super_frame(bytes(4000))])
    runtime.run_until_idle()
    assert [(frame.gso_size, frame.csum) for frame in up] == [(1460, CSUM_UNNECESSARY)]
    assert (link.outward.counters.whole, link.inward.counters.whole) == (1, 1)


def test_a_wire_that_does_nothing_still_cuts_for_a_link_that_cannot() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap, features=(F_RXCSUM, F_CSUM | F_TSO4 | F_TSO6 | F_USO | F_RXCSUM))
    link = Emulator(near, runtime.heap)
    got: list[RxFrame] = []
    far.rx = got.append
    link.send([tcp_super_frame(bytes(2920))])
    runtime.run_until_idle()
    assert [frame.gso_size for frame in got] == [0, 0]


def test_cutting_the_cable_of_the_link_cuts_both_ways() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap)
    log: list[str] = []
    far.rx = lambda frame: log.append("out")
    link.rx = lambda frame: log.append("in")
    link.up = False
    link.send([TxFrame(b"x")])
    far.send([TxFrame(b"y")])
    runtime.run_until_idle()
    assert log == []
    assert not link.up
    link.up = True
    link.send([TxFrame(b"x")])
    far.send([TxFrame(b"y")])
    runtime.run_until_idle()
    assert sorted(log) == ["in", "out"]


def test_what_the_device_behind_refuses_is_counted() -> None:
    runtime = VirtualRuntime()
    near, _ = pipe_pair(runtime.heap, limit=2)
    link = Emulator(near, runtime.heap, tx=Impairment(duplicate=1.0))
    assert link.send([TxFrame(b"1"), TxFrame(b"2"), TxFrame(b"3")]) == 3
    assert link.outward.counters.refused == 4  # six packets with their copies, room for two


def test_closing_loses_what_is_under_way_and_closes_the_link_within() -> None:
    runtime = VirtualRuntime()
    near, far = pipe_pair(runtime.heap)
    link = Emulator(near, runtime.heap, tx=Impairment(delay_ns=MS))
    got: list[RxFrame] = []
    far.rx = got.append
    link.send([TxFrame(b"1")])
    link.close()
    runtime.run_until_idle()
    assert got == []
    assert near.closed

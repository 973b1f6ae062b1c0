"""Every pytcp.* switch decides something: the same situation under two settings (linux-tcp §2.3, §3.5, §6.3, §7.1)."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import pytcp.tcp
from pytcp.net import sysctl
from pytcp.tcp import const, delack, drs, input, mtu, recv, rwnd, sack_send, sendmsg, tsq
from pytcp.tcp.sock import Sock
from pytcp.tcp.sockopt import setsockopt
from pytcp.tcp.sysctl import TcpSysctl

from .harness import MS, US, FakeHost, established, make_sock, segment

ROOT = Path(pytcp.tcp.__file__).parent.parent
IPPROTO_TCP, TCP_NODELAY = 6, 1


# ---------------------------------------------------------------- no switch is a dummy


def reads(path: Path) -> set[str]:
    """Attributes that a module reads."""
    return {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def derived() -> dict[str, set[str]]:
    """Switch → values that `update_derived` makes of it."""
    made: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse((ROOT / "tcp" / "sysctl.py").read_text())):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and node.value is not None:
            for leaf in ast.walk(node.value):
                if isinstance(leaf, ast.Attribute):
                    made.setdefault(leaf.attr, set()).add(node.target.attr)
    return made


def test_the_engine_reads_every_sysctl() -> None:
    """Switches and Linux's own alike. What can have one value only says so in its range, and neighbours read theirs by family."""
    everywhere = set().union(*(reads(path) for room in ("tcp", "net", "clock") for path in (ROOT / room).rglob("*.py") if path.name != "sysctl.py"))
    asked = [node.args[0] for node in ast.walk(ast.parse((ROOT / "net" / "neighbour.py").read_text())) if isinstance(node, ast.Call) and node.args]
    everywhere |= {word.value for word in asked if isinstance(word, ast.Constant) and isinstance(word.value, str)}
    made = derived()
    settable = [entry for entry in sysctl.TABLE if entry.low is None or entry.low != entry.high]
    assert len(settable) > 150
    unread = [entry.name for entry in settable if not everywhere & {entry.attr, re.sub("^neigh[46]_", "", entry.attr), *made.get(entry.attr, ())}]
    assert unread == []


# ---------------------------------------------------------------- autocork


def in_ring(first: int, **sysctls: Any) -> tuple[Sock, FakeHost]:
    """NODELAY, and one packet of `first` bytes waiting in the host's transmit ring."""
    host = FakeHost(complete="manual")
    for name, value in sysctls.items():
        setattr(host.sysctl, name, value)
    host.sysctl.update_derived()
    sk = established(host, mss=1000, srtt_us=20_000)
    setsockopt(sk, IPPROTO_TCP, TCP_NODELAY, 1)
    sendmsg.sendmsg(sk, bytes(first))
    assert lengths(host) == [first]
    return sk, host


def lengths(host: FakeHost) -> list[int]:
    return [s.length for s in host.take()]


@pytest.mark.parametrize(("cond", "goes"), [("rtx_nonempty", []), ("not_head", [100]), ("none", [])])
def test_behind_data_in_flight_only_the_condition_of_4_15_lets_the_first_unsent_write_go(cond: str, goes: list[int]) -> None:
    """The queue split of 75c119afe14f made "not the head" mean "not the first unsent", which nearly disabled autocorking."""
    sk, host = in_ring(500, autocork_cond=cond)
    sendmsg.sendmsg(sk, bytes(100))
    assert lengths(host) == goes


@pytest.mark.parametrize(("cond", "goes"), [("rtx_nonempty", [100]), ("not_head", [100]), ("none", [])])
def test_with_nothing_unacknowledged_only_the_first_version_holds(cond: str, goes: list[int]) -> None:
    """The ACK overtakes the completion: what is in the ring is acknowledged already, and no ACK will come to release a held write."""
    sk, host = in_ring(500, autocork_cond=cond)
    input.receive(sk, segment(sk))
    assert (sk.rtx_queue.head, sk.wmem_alloc) == (None, 1 + 832 + 500)
    sendmsg.sendmsg(sk, bytes(100))
    assert lengths(host) == goes


# ---------------------------------------------------------------- the fence in tcp_push


def missed(host: FakeHost) -> None:
    """The oldest frame in the ring completes just when the flag is being set."""
    tsq.wfree_missed(*host.in_ring.pop(0))


@pytest.mark.parametrize(("barrier", "released"), [(1, [100]), (0, [])])
def test_only_without_the_fence_a_completion_can_miss_the_flag(barrier: int, released: list[int]) -> None:
    """Count decremented, callback not run: the held write waits although nothing is in the ring any more."""
    sk, host = in_ring(500, push_barrier=barrier)
    sendmsg.sendmsg(sk, bytes(100))
    assert (lengths(host), sk.mib.TCPAutoCorking) == ([], 1)
    missed(host)
    assert sk.wmem_alloc == 1 + sum(832 + n for n in released)
    assert lengths(host) == released
    assert sk.tsq_throttled == (not released)


def test_the_peers_ack_rescues_the_held_write() -> None:
    sk, host = in_ring(500, push_barrier=0)
    sendmsg.sendmsg(sk, bytes(100))
    missed(host)
    input.receive(sk, segment(sk))
    assert lengths(host) == [100]


def test_one_completion_misses_the_flag_and_the_next_finds_it() -> None:
    sk, host = in_ring(500, push_barrier=0)
    sendmsg.sendmsg(sk, bytes(600))  # larger than what waits in the ring: not corked
    sendmsg.sendmsg(sk, bytes(100))
    assert lengths(host) == [600]
    missed(host)
    assert lengths(host) == []
    host.complete_all()
    assert lengths(host) == [100]


# ---------------------------------------------------------------- where bursts are sized


def sender(rate: int, **sysctls: Any) -> tuple[Sock, FakeHost]:
    """A host that completes when told; no RTT bonus; `rate` in bytes/s."""
    host = FakeHost(complete="manual")
    for name, value in sysctls.items():
        setattr(host.sysctl, name, value)
    host.sysctl.update_derived()
    sk = established(host, mss=1000, srtt_us=20_000)
    sk.snd_cwnd = 100
    sk.pacing_rate = rate
    return sk, host


@pytest.mark.parametrize(("where", "rate", "segs"), [("xmit", 10_000_000, 9), ("sendmsg", 10_000_000, 5), ("xmit", 1000, 2), ("sendmsg", 1000, 2)])
def test_a_burst_is_a_millisecond_of_the_rate_at_xmit_and_half_of_one_in_sendmsg(where: str, rate: int, segs: int) -> None:
    """10 MB/s: 10^7 >> 10 = 9765 bytes, 10^7 / 2000 = 5000. At least tcp_min_tso_segs."""
    sk, host = sender(rate, autosize_at=where, tcp_limit_output_bytes=1 << 20)
    sendmsg.sendmsg(sk, bytes(20_000))
    assert [s.segs for s in host.take()][:2] == [segs, segs]


def test_what_sendmsg_sized_is_not_sized_again() -> None:
    """Bursts made for a slow connection stay small when it has become fast: the reason to move the decision to xmit."""
    for where, expected in (("sendmsg", [2, 2, 2]), ("xmit", [6])):
        sk, host = sender(1000, autosize_at=where, grow_skb=0)
        sk.snd_cwnd = 0
        sendmsg.sendmsg(sk, bytes(6000))
        sk.snd_cwnd, sk.pacing_rate = 100, 10_000_000
        tsq.handler(sk)
        assert [s.segs for s in host.take()] == expected


def test_small_queues_before_3_19_take_the_sysctl_as_the_least_limit() -> None:
    """Sized in sendmsg: max(8000, 4·10^6 >> 10): bursts of 2, truesize 2832: 1, 2833, 5665, 8497 > 8000. At xmit: bursts of 3,
    limit min(max(2·3832, 3906), 8000) = 7664: 1, 3833, 7665 > 7664."""
    for where, expected in (("sendmsg", [2, 2, 2]), ("xmit", [3, 3])):
        sk, host = sender(4_000_000, autosize_at=where, tcp_limit_output_bytes=8000)
        sendmsg.sendmsg(sk, bytes(30_000))
        assert [s.segs for s in host.take()] == expected


@pytest.mark.parametrize(("where", "head"), [("sendmsg", 5000), ("xmit", 2000)])
def test_before_3_19_the_queue_is_tested_before_the_cut(where: str, head: int) -> None:
    """A throttled burst of 5 with room for 2 in the congestion window: left whole, or cut and left in two pieces."""
    sk, host = sender(10_000_000, autosize_at=where, tcp_limit_output_bytes=100)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(5000))
    sk.rtx_queue.qlen, sk.wmem_alloc = 2, 1_000_000
    sk.snd_cwnd, sk.sysctl.half_cwnd_cap = 2, 0
    tsq.handler(sk)
    assert (host.take(), sk.write_queue.head and sk.write_queue.head.length) == ([], head)


@pytest.mark.parametrize(("cap", "paced", "waits"), [("always", 1, True), ("unpaced_only", 1, False), ("always", 0, True), ("unpaced_only", 0, True)])
def test_from_5_0_to_6_15_the_sysctl_did_not_cap_paced_sockets(cap: str, paced: int, waits: bool) -> None:
    """A millisecond at 100 MB/s is 97,656 bytes; the cap 8000; 9000 in the ring."""
    sk, _ = sender(100_000_000, tsq_cap=cap, tcp_limit_output_bytes=8000)
    sendmsg.sendmsg(sk, bytes(6000))
    sk.wmem_alloc, sk.rtx_queue.qlen, sk.pacing_status = 9000, 2, paced
    skb = sk.rtx_queue.head
    assert skb is not None
    assert tsq.small_queue_check(sk, skb, 0) == (8000 if waits else 0)


# ---------------------------------------------------------------- deferral


@pytest.mark.parametrize(("longest_us", "sent"), [(1000, [3000]), (0, [])])
def test_before_6_18_a_burst_was_deferred_for_up_to_half_the_round_trip(longest_us: int, sent: list[int]) -> None:
    """srtt 20 ms and the oldest packet sent 15 ms ago: its ACK is 5 ms away, less than half of srtt and more than
    1 ms. Room for 3 of 12 packets is less than a third of the window."""
    host = FakeHost()
    host.sysctl.tso_defer_max_us = longest_us
    host.sysctl.update_derived()
    sk = established(host, mss=1000, srtt_us=20_000)
    sk.snd_cwnd, sk.pacing_rate = 12, 100_000_000
    sendmsg.sendmsg(sk, bytes(9_000))
    host.advance(15 * MS)
    sk.wstamp_ns = host.now_ns
    host.take()
    sendmsg.sendmsg(sk, bytes(4_000))
    assert lengths(host) == sent


# ---------------------------------------------------------------- the receiver


@pytest.mark.parametrize(
    ("segments", "mss", "route", "window"),
    [
        (0, 1460, 0, 64240),  # 44 segments, what the default buffer holds
        (20, 1460, 0, 29200),
        (20, 1448, 0, 28960),
        (20, 8960, 0, 26880),  # 29200 bytes are 3 segments of 8960
        (2, 8960, 0, 17920),  # never less than two
        (20, 1460, 10, 14600),  # a route says otherwise
    ],
)
def test_the_first_window_before_4_20_was_twenty_segments(segments: int, mss: int, route: int, window: int) -> None:
    sk = make_sock()
    sk.sysctl.init_rwnd = segments
    assert rwnd.select_initial_window(sk, 65536, mss, 0, True, route)[0] == window


@pytest.mark.parametrize(("measured", "ratio"), [(1, 164), (0, 128)])
def test_before_6_6_the_share_of_the_buffer_that_is_window_was_not_measured(measured: int, ratio: int) -> None:
    """1400 bytes in an skb of 2176: 256·1400/2176 = 164.7."""
    sk = established(mss=1448)
    sk.sysctl.scaling_ratio_measured = measured
    seg = segment(sk, payload=bytes(1400))
    seg.truesize = 2176
    sk.rcv_mss = 536
    rwnd.measure_rcv_mss(sk, seg)
    assert sk.scaling_ratio == ratio


def reader(**sysctls: Any) -> Sock:
    """A round trip of 20 ms has passed; 65536 bytes arrived in it, of which 40000 were read."""
    host = FakeHost()
    for name, value in sysctls.items():
        setattr(host.sysctl, name, value)
    sk = established(host, mss=1460)
    sk.scaling_ratio, sk.rcvq_space = 128, 14600
    sk.rcvq_seq = sk.copied_seq
    sk.rcv_rtt_us = 20_000 * 8
    sk.rcv_nxt += 65536
    sk.copied_seq += 40000
    sk.mstamp_ns = host.now_ns
    sk.rcvq_time_us = host.now_ns // 1000 - 20_000
    drs.rcv_space_adjust(sk)
    return sk


def test_before_6_16_bytes_still_queued_counted_as_read_and_there_was_room_for_16_segments_more() -> None:
    """40000 read and 25536 queued: 14464 do not beat 14600. All 40000 do: w = 2·40000 + 16·1460 = 103360, plus twice
    w·25400//14600 = 179818: 462996 bytes of window, twice as much memory."""
    assert reader(drs="unqueued").rcvbuf == 131072
    assert reader(drs="copied").rcvbuf == 2 * (103360 + 2 * (103360 * 25400 // 14600)) == 925992


def test_after_6_18_a_short_round_trip_lets_the_buffer_grow_less() -> None:
    """30000 read, none queued, RTT 500 us of 1000: w = 60000, plus 60000·500/1000. Without the rule: plus twice 60000·15400//14600."""
    for low, window in ((1000, 90_000), (0, 60_000 + 2 * (60_000 * 15400 // 14600))):
        sk = established(mss=1460)
        sk.scaling_ratio, sk.rcvq_space, sk.rcv_rtt_us = 128, 14600, 500 * 8
        sk.sysctl.rcvbuf_low_rtt_us = low
        drs.rcvbuf_grow(sk, 30000)
        assert sk.rcvbuf == 2 * window


@pytest.mark.parametrize(("at_once", "clamp"), [(0, 65535 - 1460), (1, 100_000)])
def test_after_6_18_so_rcvbuf_moves_the_clamp_at_once(at_once: int, clamp: int) -> None:
    sk = established(mss=1460)
    sk.window_clamp, sk.scaling_ratio = 65535 - 1460, 128
    sk.sysctl.rcvbuf_sets_clamp = at_once
    rwnd.set_rcvbuf(sk, 100_000)
    assert (sk.rcvbuf, sk.window_clamp) == (200_000, clamp)


@pytest.mark.parametrize(("percent", "delay_us"), [(5, 100), (33, 660)])
def test_sacks_are_compressed_for_a_share_of_the_round_trip(percent: int, delay_us: int) -> None:
    """2 ms, and 100 us of slack."""
    host = FakeHost()
    host.sysctl.comp_sack_rtt_percent = percent
    sk = established(host, sack=True)
    sk.rcv_rtt_us, sk.srtt_us = 2000 * 8, 2000 * 8
    sk.dup_ack_counter, sk.compressed_ack_rcv_nxt = 3, sk.rcv_nxt
    sack_send.compress(sk)
    assert sk.compressed_ack_deadline - host.now_ns == (delay_us + 100) * US


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(("rule", "acks"), [(0, 0), (1, 1)])
def test_an_odd_full_segment_with_push_waits_or_is_acknowledged_when_read(rule: int, acks: int, slow: bool) -> None:
    """4720852ed9af: a write of a whole number of segments may end there. The window does not grow, nobody is in ping-pong."""
    host = FakeHost()
    host.sysctl.ack_full_push = rule
    sk = established(host, mss=1000)
    sk.quick, sk.ato_jiffies, sk.lrcvtime_ns, sk.rcv_mss = 0, host.sysctl.ato_min, host.now_ns, 1000
    sk.rcv_ssthresh = sk.window_clamp
    sk.pred = not slow
    input.receive(sk, segment(sk, payload=bytes(1000), flags=const.ACK | const.PSH))
    assert host.take() == []
    assert len(recv.recv(sk, 1000)) == 1000
    assert len(host.take()) == acks


def test_a_routes_quickack_acknowledges_every_segment_at_once() -> None:
    for quickack, acks in ((False, 0), (True, 3)):
        host = FakeHost()
        sk = established(host, mss=1000)
        sk.dst.quickack = quickack
        sk.quick = 0
        delack.enter_pingpong(sk)
        sk.lrcvtime_ns = host.now_ns
        for _ in range(3):
            input.receive(sk, segment(sk, payload=b"x"))
        assert len(host.take()) == acks


def test_a_device_that_takes_larger_super_segments_gets_them() -> None:
    """gso_max_size 131072 (BIG TCP, 5.19): less MAX_TCP_HEADER + 1."""
    sk = established()
    sk.dst.gso_max_size = 131072
    mtu.setup_caps(sk)
    assert sk.gso_max_size == 130879
    sk.max_window = 1 << 20
    assert mtu.size_goal(sk, 1000) == 130000


def test_defaults_are_those_of_6_18() -> None:
    values = TcpSysctl()
    assert (values.autocork_nodelay, values.autocork_cond, values.push_barrier) == ("mainline", "rtx_nonempty", 1)
    assert (values.autosize_at, values.tsq_cap, values.half_cwnd_cap, values.grow_skb) == ("xmit", "always", 1, 1)
    assert (values.hystart_reset, values.init_rwnd) == ("update", 0)
    assert (values.scaling_ratio_default, values.scaling_ratio_measured, values.clamp_follows_ratio) == (128, 1, 1)

"""Path MTU probing by size (linux-sockets §3; RFC 4821): what is sent as a probe, and what its fate teaches.

Whole conversations of the kernel are replayed in tests/replay (b01, b02, b04, b08); in two more its bursts differ from run to run, and
what is the same in all of them, sizes and counters, is here (b05, b07).
"""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.tcp import const, input, mtu, mtu_probe, sendmsg, timers, xmit
from pytcp.tcp.sock import Sock

from .harness import MS, FakeHost, established, segment

MSS = 1460


def connection(**sysctls: Any) -> tuple[Sock, FakeHost]:
    """A path of 1500, a large window, cwnd 40; probing has begun as at the end of the handshake."""
    host = FakeHost()
    host.sysctl.tcp_mtu_probing = 2
    for name, value in sysctls.items():
        setattr(host.sysctl, name, value)
    sk = established(host, mss=MSS, srtt_us=10_000, window=1 << 20, sack=True)
    sk.snd_cwnd = 40
    mtu_probe.init(sk)
    return sk, host


def flight(sk: Sock, host: FakeHost, size: int = 60_000) -> list[int]:
    """Lengths of the single segments that a write makes, each once."""
    sendmsg.sendmsg(sk, bytes(size))
    return [s.length for s in host.take() if not s.gso_size]


def search(path: int, **sysctls: Any) -> tuple[list[int], Sock]:
    """Payload of all probes on a path that takes segments of `path` bytes, and the connection when the search has ended."""
    sk, host = connection(**sysctls)
    sk.snd_ssthresh = 2  # cwnd stays about as it is
    probes: list[int] = []
    for _ in range(12):
        sendmsg.sendmsg(sk, bytes(60_000))
        while sk.packets_out:
            probe = sk.mtu_probe
            host.advance(10 * MS)
            if probe.size and probe.seq == sk.snd_una:
                probes.append(probe.size - 40)
            if probe.size - 40 > path and probe.seq == sk.snd_una:
                start, end = probe.seq - sk.iss, probe.end_seq - sk.iss
                input.receive(sk, segment(sk, ack=start, sack=[(end, end + 3 * sk.mss_cache)]))
            else:
                input.receive(sk, segment(sk, ack=(probe.seq if probe.size and probe.seq > sk.snd_una else sk.snd_nxt) - sk.iss))
        sk.snd_cwnd = 40
        host.take()
    return probes, sk


@pytest.mark.parametrize(
    ("path", "base", "probes", "mss", "good", "bad"),
    [
        (1460, 1024, [1242, 1351, 1405, 1432, 1446, 1453], 1453, 6, 0),  # b04
        (1460, 512, [986, 1223, 1341, 1400, 1430, 1445, 1452, 1456], 1456, 8, 0),  # b07 had come to 1400 when its data ended
        (1200, 512, [986, 1223, 1104, 1163, 1192, 1207, 1199], 1199, 5, 2),  # b05, after its RTOs
    ],
)
def test_the_search_halves_what_is_unknown_until_less_than_8_bytes_are(path: int, base: int, probes: list[int], mss: int, good: int, bad: int) -> None:
    """Sizes and counters of 6.18.44. The middle is that of packets: (1064 + 1500)/2 = 1282 bytes carry 1242."""
    seen, sk = search(path, tcp_base_mss=base)
    assert seen == probes
    assert (sk.mss_cache, sk.mib.TCPMTUPSuccess, sk.mib.TCPMTUPFail) == (mss, good, bad)


def test_a_probe_is_one_segment_followed_by_enough_to_notice_its_loss() -> None:
    sk, host = connection()
    assert flight(sk, host)[0] == 1242
    assert sk.snd_cwnd == 39, "it counts as two packets"
    sk, host = connection()
    # 1242 and 4 segments of 1460 are needed
    assert 1242 not in flight(sk, host, 1242 + 4 * 1460 - 1)
    sk, host = connection()
    assert flight(sk, host, 1242 + 4 * 1460)[0] == 1242


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"snd_cwnd": 10}, "cwnd below 11"),
        ({"ca_state": const.CA_DISORDER}, "not in Open"),
        ({"selective_acks": [(5, 6)]}, "SACK blocks make the header longer"),
        ({"snd_wnd": 7000}, "the window is shorter than a probe and what must follow"),
    ],
)
def test_no_probe_when(fields: dict[str, Any], reason: str) -> None:
    sk, host = connection()
    for name, value in fields.items():
        setattr(sk, name, value)
    sk.write_seq, sk.snd_nxt = sk.snd_una, sk.snd_una
    assert 1242 not in flight(sk, host, 20_000), reason


def test_a_message_boundary_is_not_probed_across() -> None:
    sk, host = connection()
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytes(1000), const.MSG_EOR)
    sendmsg.sendmsg(sk, bytes(20_000))
    sk.snd_cwnd = 40
    xmit.push_pending_frames(sk, MSS, const.NAGLE_PUSH)
    assert host.take()[0].length == 1000
    assert sk.mtu_probe.size == 0


def test_no_probe_of_more_fragments_than_an_skb_may_have() -> None:
    """Two sockets that are written in turn share a page, so that every write is a fragment."""
    sk, host = connection()
    other = established(host, mss=MSS, window=1 << 20)
    sk.snd_cwnd = other.snd_cwnd = 0
    for _ in range(200):
        sendmsg.sendmsg(sk, bytes(60))
        sendmsg.sendmsg(other, bytes(60))
    sk.snd_cwnd = 40
    xmit.push_pending_frames(sk, MSS, const.NAGLE_PUSH)
    assert host.take()[0].length == 17 * 60 < 1242
    assert sk.mtu_probe.size == 0


def test_a_probe_takes_its_bytes_from_several_small_writes() -> None:
    sk, host = connection()
    sk.snd_cwnd = 0
    data = bytes(range(256)) * 40
    for at in range(0, len(data), 500):
        sendmsg.sendmsg(sk, data[at : at + 500])
    sk.snd_cwnd = 40
    xmit.push_pending_frames(sk, MSS, const.NAGLE_PUSH)
    sent = host.take()
    assert sent[0].length == 1242
    assert b"".join(s.payload for s in sent) == data
    assert sk.wmem_queued == sum(skb.truesize for skb in [*sk.rtx_queue, *sk.write_queue])


def test_with_too_much_in_flight_everything_waits_for_the_probe() -> None:
    sk, host = connection()
    sk.snd_cwnd = 11
    sendmsg.sendmsg(sk, bytes(14_600))  # ten segments; one more would fit
    before = sk.packets_out
    host.take()
    sk.mtu_probe.size = 0
    sk.snd_cwnd = before + 1
    sendmsg.sendmsg(sk, bytes(20_000))
    assert host.take() == []
    sk.snd_cwnd = before + 2
    xmit.push_pending_frames(sk, mtu.current_mss(sk), const.NAGLE_PUSH)
    assert sk.mtu_probe.size == 1282


def test_success_keeps_the_bytes_of_cwnd_not_its_packets() -> None:
    """39 packets of 1500 are 45 of 1282, and the packet the ACK is worth."""
    sk, _ = connection()
    sk.snd_ssthresh = 2
    sendmsg.sendmsg(sk, bytes(10_000))
    assert sk.mtu_probe.size == 1282
    cwnd = sk.snd_cwnd
    input.receive(sk, segment(sk, ack=sk.mtu_probe.end_seq - sk.iss))
    assert sk.snd_cwnd == cwnd * 1500 // 1282
    assert (sk.mss_cache, sk.mtu_probe.low, sk.mtu_probe.high) == (1242, 1282, 1500)


def test_a_probe_that_left_before_its_paced_departure_took_no_time_and_no_less() -> None:
    sk, host = connection()
    sk.wstamp_ns = host.now_ns + 5 * MS
    assert 1242 in flight(sk, host)
    host.advance(MS)
    input.receive(sk, segment(sk, ack=sk.mtu_probe.end_seq - sk.iss))
    assert sk.mib.TCPMTUPSuccess == 1
    assert sk.min_rtt_us == 4000, "no time counts as a tick"
    assert sk.rack_rtt_us == 0


def test_failure_resends_in_segments_that_pass_and_costs_no_cwnd() -> None:
    sk, host = connection(tcp_base_mss=512)
    sk.mtu_probe.low = 1064
    mtu.sync_mss(sk, 1500)
    sendmsg.sendmsg(sk, bytes(20_000))
    start, size = sk.mtu_probe.seq - sk.iss, sk.mtu_probe.size - 40
    host.take()
    host.advance(10 * MS)
    cwnd, ssthresh = sk.snd_cwnd, sk.snd_ssthresh
    input.receive(sk, segment(sk, ack=start, sack=[(start + size, start + size + 3 * 1024)]))
    again = host.take()[0]
    assert (again.seq, again.length, again.gso_size) == (start, size, 1024), "one super-segment of two"
    assert (sk.snd_cwnd, sk.snd_ssthresh, sk.ca_state) == (cwnd + 1, ssthresh, const.CA_LOSS), "what the probe took comes back"
    assert (sk.mtu_probe.high, sk.mtu_probe.size, sk.mib.TCPMTUPFail) == (1281, 0, 1)


def test_a_retransmission_makes_the_probe_under_way_prove_nothing() -> None:
    sk, _ = connection()
    sendmsg.sendmsg(sk, bytes(10_000))
    assert sk.mtu_probe.size
    timers.retransmit_timer(sk)
    assert sk.mtu_probe.size == 0
    assert not sk.frto, "nor is the timeout looked at for being spurious"
    input.receive(sk, segment(sk))
    assert sk.mib.TCPMTUPSuccess == 0


def test_after_tcp_probe_interval_the_search_begins_again() -> None:
    sk, host = connection()
    sk.mtu_probe.low, sk.mtu_probe.high = 1294, 1300
    sk.mss_cache = 1254
    sk.sysctl.tcp_slow_start_after_idle = 0
    host.advance(599_000 * MS)
    assert flight(sk, host, 20_000) == []
    assert (sk.mtu_probe.low, sk.mtu_probe.high) == (1294, 1300)
    input.receive(sk, segment(sk))
    host.advance(1_000 * MS)
    flight(sk, host, 20_000)
    assert (sk.mtu_probe.low, sk.mtu_probe.high) == (1294, 1500)


def test_a_path_that_shrinks_lowers_the_top() -> None:
    sk, _ = connection()
    mtu.sync_mss(sk, 1400)
    assert (sk.mtu_probe.high, sk.mss_cache) == (1400, 1024)


@pytest.mark.parametrize(("probing", "sizes"), [(0, [1460] * 7), (1, [1460, 1460, 1460, 1024, 512, 256, 128])])
def test_black_hole_detection_begins_after_tcp_retries1_timeouts_and_halves(probing: int, sizes: list[int]) -> None:
    """b01: RTO 1 to 3 full size, then tcp_base_mss, then half of it with each."""
    host = FakeHost()
    host.sysctl.tcp_mtu_probing = probing
    host.sysctl.tcp_early_retrans = 0
    sk = established(host, mss=MSS, srtt_us=10_000)
    sendmsg.sendmsg(sk, bytes(MSS))
    host.take()
    resent = []
    while len(resent) < 7:
        host.advance(MS)
        timers.fire(sk)
        resent += [s.length for s in host.take()]
    assert resent == sizes


@pytest.mark.parametrize(("floor", "least"), [(48, 48), (300, 300)])
def test_it_stops_at_tcp_mtu_probe_floor(floor: int, least: int) -> None:
    sk, _ = connection(tcp_mtu_probe_floor=floor)
    for _ in range(12):
        mtu_probe.black_hole(sk)
    assert sk.mss_cache == least

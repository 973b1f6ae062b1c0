"""TCP through the whole host: two stacks on a pipe, or one and a scripted peer, in virtual time."""

from __future__ import annotations

import errno

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.pipe import ALL_FEATURES, pipe_pair
from pytcp.net import sysctl, tcp_output
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.tcp.const import CLOSE, ESTABLISHED
from pytcp.tcp.sock import Sock
from pytcp.wire.addr import parse_ip
from pytcp.wire.icmp import FRAG_NEEDED, Unreachable
from pytcp.wire.icmpv6 import PACKET_TOO_BIG, Error
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import Ipv6
from pytcp.wire.tcp import Mss, TcpHeader

from .net_world import HOST4, HOST6, MS, PEER4, PEER6, S, Wire, dial, one_host, serve, transfer, two_hosts

DATA = bytes(range(256)) * 4096  # 1 MiB


def _pair(addr: bytes, features: int = ALL_FEATURES) -> tuple[VirtualRuntime, Stack, Stack, Sock, Sock]:
    runtime, first, second, _ = two_hosts(features=features)
    listener = serve(second, 4 if len(addr) == 4 else 6, 80)
    client = dial(first, addr, 80)
    runtime.run_for(20 * MS)
    return runtime, first, second, client, api.accept(listener)


@pytest.mark.parametrize("addr", [PEER4, PEER6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("features", [0, 31], ids=["plain device", "offloads"])
def test_a_megabyte_crosses_byte_for_byte(addr: bytes, features: int) -> None:
    runtime, _, _, client, server = _pair(addr, features=features)
    assert transfer(runtime, client, server, DATA) == DATA


@pytest.mark.parametrize("addr", [parse_ip("127.0.0.1"), parse_ip("::1"), HOST4, HOST6], ids=["127.0.0.1", "::1", "own ipv4", "own ipv6"])
def test_a_host_talks_to_itself_without_a_frame_on_the_wire(addr: bytes) -> None:
    runtime, stack, _, wire = one_host()
    listener = serve(stack, 4 if len(addr) == 4 else 6, 80)
    client = dial(stack, addr, 80)
    assert client.state != ESTABLISHED  # never inside the call
    runtime.run_for(MS)
    server = api.accept(listener)
    assert transfer(runtime, client, server, DATA[:100_000]) == DATA[:100_000]
    assert wire.packets() == []


@pytest.mark.parametrize(
    ("profile", "window"),
    [
        ("linux-3.18", 29_200),  # 20 segments
        ("linux-5.15", 64_240),  # half of 131072, in segments
        ("linux-6.6", 32_120),  # 65/256 of it
        ("linux-6.18", 64_240),
        ("mainline", 64_240),
    ],
)
def test_under_every_profile_a_megabyte_crosses_and_the_first_window_is_its_kernels(profile: str, window: int) -> None:
    runtime = VirtualRuntime()
    ends = pipe_pair(runtime.heap, delay_ns=MS)
    first, second = Stack(runtime, seed=1, profile=profile), Stack(runtime, seed=2, profile=profile)
    first.add_interface(ends[0], ["10.0.0.1/24"])
    second.add_interface(ends[1], ["10.0.0.2/24"])
    listener = serve(second, 4, 80)
    client = dial(first, PEER4, 80)
    assert client.rcv_wnd == window
    runtime.run_for(20 * MS)
    assert transfer(runtime, client, api.accept(listener), DATA) == DATA


def test_a_batch_of_completions_calls_the_socket_once_and_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small queues stop a slow flow with several bursts in the ring. When they are completed together the socket finds all of it released."""
    runtime, first, second, _ = two_hosts()
    listener = serve(second, 4, 80)
    client = dial(first, PEER4, 80)
    runtime.run_for(20 * MS)
    api.accept(listener)
    charged: list[int] = []
    called = tcp_output.called

    def noting(sk: Sock) -> None:
        charged.append(sk.wmem_alloc)
        called(sk)

    monkeypatch.setattr(tcp_output, "called", noting)
    client.snd_cwnd, client.pacing_rate = 100, 1
    first.now()
    api.sendmsg(client, DATA[:40_000])
    first.flush()
    ring = first.interface("pipe0").ring
    assert client.tsq_throttled
    assert sum(frame.owner is client for frame in ring.done) >= 2
    ring.reap()
    assert charged == [1]
    assert client.wmem_alloc > 1, "and sends again"


@pytest.mark.parametrize("addr", [PEER4, PEER6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("whole", [True, False], ids=["super-frames", "cut by the pipe"])
def test_a_link_with_gso_max_size_131072_carries_80000_bytes_in_one_super_frame(addr: bytes, whole: bool) -> None:
    """BIG TCP (5.19, IPv4 6.3): the length field cannot say it and is 0."""
    runtime, first, second, ends = two_hosts()
    ends[0].gso_max_size = 131072
    if not whole:
        ends[0].takes = ends[1].takes = 0
    listener = serve(second, 4 if len(addr) == 4 else 6, 80)
    client = dial(first, addr, 80)
    runtime.run_for(20 * MS)
    server = api.accept(listener)
    assert transfer(runtime, client, server, DATA) == DATA  # opens both windows
    client.snd_cwnd = 200
    frames = first.mib.IpOutRequests + first.mib.Ip6OutRequests
    assert api.sendmsg(client, DATA[:80_000]) == 80_000
    first.flush()
    runtime.run_for(2 * MS)
    assert api.recv(server, 1 << 20, 0) == DATA[:80_000]
    assert first.mib.IpOutRequests + first.mib.Ip6OutRequests - frames == 1
    assert client.gso_max_size == 131072 - 193


def test_an_ipv6_wildcard_listener_takes_ipv4_unless_v6only() -> None:
    runtime, first, second, _ = two_hosts()
    listener = serve(second, 6, 80)
    client = dial(first, PEER4, 80)
    runtime.run_for(20 * MS)
    child = api.accept(listener)
    assert (client.state, child.family, child.saddr) == (ESTABLISHED, 4, PEER4)
    only = second.new_sock(6)
    only.v6only = True
    api.bind(only, b"", 81)
    api.listen(only, 4)
    refused = dial(first, PEER4, 81)
    runtime.run_for(20 * MS)
    assert (refused.state, api.take_error(refused)) == (CLOSE, errno.ECONNREFUSED)


def test_an_address_nobody_has_ends_the_attempt_with_ehostunreach_after_three_seconds() -> None:
    # linux-host §1: requests at 0, 1, 2 s, TCP connect fails at 3.06..3.08 s
    runtime, stack, _, _ = one_host(neighbours=False)
    sk = dial(stack, parse_ip("10.0.0.9"), 80)
    runtime.run_for(3 * S)
    assert sk.state != CLOSE
    runtime.run_for(120 * MS)
    assert (sk.state, api.take_error(sk)) == (CLOSE, errno.EHOSTUNREACH)
    assert sk.wmem_alloc == 1  # the SYNs that waited are no longer charged


def test_the_syn_waits_for_the_neighbour_and_leaves_with_its_answer() -> None:
    runtime, first, second, _ = two_hosts()
    listener = serve(second, 4, 80)
    client = dial(first, PEER4, 80)
    assert client.wmem_alloc > 1
    runtime.run_for(10 * MS)
    assert client.state == ESTABLISHED
    assert api.accept(listener).state == ESTABLISHED


def test_ip_fields_of_a_syn_a_syn_ack_and_a_reset() -> None:
    # linux-host §3: SYN DF=1 random id; SYN/ACK and RST DF=1 id 0
    _runtime, stack, _, wire = one_host()
    dial(stack, PEER4, 80)
    syn = wire.packets()[0]
    assert isinstance(syn, Ipv4)
    assert (syn.df, syn.ttl, syn.ident != 0) == (True, 64, True)
    serve(stack, 4, 80)
    question = TcpHeader(sport=4444, dport=80, seq=0xFFFFFFF0, flags=2, window=1000)
    wire.hears(Ipv4(PEER4, HOST4, 6, question.emit(PEER4, HOST4)))
    wire.hears(Ipv4(PEER4, HOST4, 6, TcpHeader(sport=4444, dport=81, seq=0xFFFFFFF0, flags=2).emit(PEER4, HOST4)))
    syn_ack, reset = (packet for packet in wire.packets() if isinstance(packet, Ipv4))
    assert [(p.df, p.ident, p.ttl) for p in (syn_ack, reset)] == [(True, 0, 64), (True, 0, 64)]
    assert TcpHeader.parse(syn_ack.payload).flags == 0x12
    assert TcpHeader.parse(reset.payload).flags == 0x14


def _connected(four: bool = True) -> tuple[VirtualRuntime, Stack, Wire, Sock]:
    """A connection to a scripted peer whose sequence numbers straddle the wrap."""
    runtime, stack, _, wire = one_host()
    ours, theirs = (HOST4, PEER4) if four else (HOST6, PEER6)
    sk = dial(stack, theirs, 80)
    syn = TcpHeader.parse(wire.packets()[0].payload)
    answer = TcpHeader(sport=80, dport=syn.sport, seq=0xFFFFFFFF, ack=syn.seq + 1 & 0xFFFFFFFF, flags=0x12, window=65535, options=(Mss(1460),))
    raw = answer.emit(theirs, ours)
    wire.hears(Ipv4(theirs, ours, 6, raw) if four else Ipv6(theirs, ours, 6, raw))
    assert sk.state == ESTABLISHED
    wire.packets()
    return runtime, stack, wire, sk


def test_a_router_that_wants_fragments_makes_the_segments_smaller_and_resends_at_once() -> None:
    # linux-sockets §3: mss = MTU - 40, the flight is resent immediately, DF stays
    runtime, stack, wire, sk = _connected()
    api.sendmsg(sk, bytes(2920), 0)
    stack.flush()
    first = wire.packets()[0]
    assert len(first.payload) == 1480
    quote = first.emit()[:28]
    wire.hears(Ipv4(PEER4, HOST4, 1, Unreachable(FRAG_NEEDED, quote, mtu=1000).emit()))
    runtime.run_for(0)
    again = [packet for packet in wire.packets() if isinstance(packet, Ipv4)]
    assert {len(packet.payload) for packet in again[:2]} == {980}
    assert all(packet.df for packet in again)
    assert (sk.mss_cache, sk.dst.mtu, sk.dst.advmss) == (960, 1000, 960)


def test_a_report_below_min_pmtu_locks_552_and_clears_df() -> None:
    runtime, stack, wire, sk = _connected()
    api.sendmsg(sk, bytes(1460), 0)
    stack.flush()
    quote = wire.packets()[0].emit()[:28]
    wire.hears(Ipv4(PEER4, HOST4, 1, Unreachable(FRAG_NEEDED, quote, mtu=500).emit()))
    runtime.run_for(0)
    again = [packet for packet in wire.packets() if isinstance(packet, Ipv4)]
    assert (sk.mss_cache, sk.dst.mtu_lock) == (512, True)
    assert again and not any(packet.df for packet in again)


def test_a_report_that_quotes_a_number_not_in_flight_is_forged_and_ignored() -> None:
    _, stack, wire, sk = _connected()
    api.sendmsg(sk, bytes(1460), 0)
    stack.flush()
    quote = bytearray(wire.packets()[0].emit()[:28])
    quote[24:28] = (int.from_bytes(quote[24:28], "big") + 0x10000 & 0xFFFFFFFF).to_bytes(4, "big")
    wire.hears(Ipv4(PEER4, HOST4, 1, Unreachable(FRAG_NEEDED, bytes(quote), mtu=1000).emit()))
    assert (sk.dst.mtu, sk.mss_cache, stack.mib.OutOfWindowIcmps) == (1500, 1460, 1)


def test_packet_too_big_does_the_same_for_ipv6_but_not_below_1280() -> None:
    runtime, stack, wire, sk = _connected(four=False)
    api.sendmsg(sk, bytes(1440), 0)
    stack.flush()
    quote = wire.packets()[0].emit()[:60]
    for mtu in (1279, 1300):
        wire.hears(Ipv6(PEER6, HOST6, 58, Error(PACKET_TOO_BIG, 0, quote, mtu).emit(PEER6, HOST6)))
        if mtu == 1279:
            assert sk.dst.mtu == 1500
    assert (sk.dst.mtu, sk.mss_cache) == (1300, 1240)
    runtime.run_for(0)


def test_a_learnt_path_mtu_is_forgotten_after_mtu_expires() -> None:
    runtime, stack, _wire, sk = _connected()
    sysctl.set_(stack.sysctl, "net.ipv4.route.mtu_expires", 5)
    stack.pmtu.update(sk.dst, 1000)
    assert sk.dst.mtu == 1500, "who did not send since knows nothing of it"
    api.sendmsg(sk, b"x", 0)
    assert sk.dst.mtu == 1000
    runtime.run_for(4_900 * MS)
    assert sk.dst.mtu == 1000
    runtime.run_for(200 * MS)
    assert sk.dst.mtu == 1500


def test_a_segment_larger_than_the_path_is_refused_and_reported_to_its_connection() -> None:
    # linux-sockets m12, m16: what was cut to the old MSS is not sent at all
    runtime, stack, wire, sk = _connected()
    th = bytes((0x80, 0, 0, 80)) + sk.snd_nxt.to_bytes(8, "big")[4:] + bytes(4) + b"\x50\x10\0\0" + bytes(4)
    stack.pmtu.update(sk.dst, 1000)
    assert stack.transmit(sk, th, (bytes(1460),), 1460, None, 0, 2, 0) == -errno.EMSGSIZE
    assert wire.packets() == []
    assert stack.mib.IpFragFails == 1
    runtime.run_for(0)
    assert stack.mib.IcmpInDestUnreachs == 1


def test_without_df_a_segment_larger_than_the_path_goes_in_fragments() -> None:
    runtime, stack, wire, sk = _connected()
    sk.pmtu_disc = 0
    stack.pmtu.update(sk.dst, 1000)
    charged = sk.wmem_alloc = sk.wmem_alloc + 2
    th = bytes((0x80, 0, 0, 80)) + bytes(8) + b"\x50\x10\0\0" + bytes(4)
    assert stack.transmit(sk, th, (bytes(1460),), 1460, None, 0, 2, 0) == 0
    stack.flush()
    pieces = [packet for packet in wire.packets() if isinstance(packet, Ipv4)]
    # 1480 bytes of TCP in pieces of at most 980, rounded down to a multiple of 8
    assert [(p.frag_offset, p.mf, len(p.payload), p.df) for p in pieces] == [(0, True, 976, False), (976, False, 504, False)]
    assert sk.wmem_alloc == charged
    runtime.run_for(0)
    assert sk.wmem_alloc == 1  # released in a later pass, not inside the call


def test_a_super_segment_counts_its_segments_in_the_ip_id() -> None:
    _, stack, wire, sk = _connected()
    before = sk.ip_id
    th = bytes((0x80, 0, 0, 80)) + bytes(8) + b"\x50\x10\0\0" + bytes(4)
    stack.transmit(sk, th, (bytes(4380),), 4380, None, 1460, 2, 0)
    stack.flush()
    assert sk.ip_id == before + 3
    idents = [packet.ident for packet in wire.packets() if isinstance(packet, Ipv4)]
    assert idents == [before + i & 0xFFFF for i in range(3)]


def test_a_full_queue_drops_like_the_network_and_completes_nothing() -> None:
    _, stack, _wire, sk = _connected()
    dev = stack.interfaces[1]
    dev.ring.limit = len(dev.ring)
    th = bytes((0x80, 0, 0, 80)) + bytes(8) + b"\x50\x10\0\0" + bytes(4)
    assert stack.transmit(sk, th, (), 0, None, 0, 2, 0) == 1


def test_a_route_that_goes_away_refuses_and_a_new_one_is_taken_at_the_next_segment() -> None:
    _, stack, _wire, sk = _connected()
    th = bytes((0x80, 0, 0, 80)) + bytes(8) + b"\x50\x10\0\0" + bytes(4)
    dev = stack.interfaces[1]
    dev.set_up(False)
    assert stack.transmit(sk, th, (), 0, None, 0, 2, 0) == -errno.EHOSTUNREACH
    dev.set_up(True)
    assert stack.transmit(sk, th, (), 0, None, 0, 2, 0) == 0


def test_ecn_bits_and_the_dscp_share_the_tos_byte() -> None:
    _, stack, wire, sk = _connected()
    sk.tos = 0xB8
    th = bytes((0x80, 0, 0, 80)) + bytes(8) + b"\x50\x10\0\0" + bytes(4)
    stack.transmit(sk, th, (), 0, None, 0, 2, 2)
    stack.flush()
    assert [packet.tos for packet in wire.packets() if isinstance(packet, Ipv4)] == [0xBA]


def test_wakes_of_one_pass_reach_the_user_once_and_together() -> None:
    runtime, first, _second, client, _server = _pair(PEER4)
    watcher = client.user
    watcher.told.clear()
    first.wake(client, 1)
    first.wake(client, 4)
    assert watcher.told == []
    runtime.run_for(0)
    assert watcher.told == [5]


def test_one_endpoint_has_one_entry_in_the_heap() -> None:
    _runtime, first, _, client, _ = _pair(PEER4)
    before = len(first.heap)
    now = first.heap.now_ns
    armed = first._armed.pop(client, None)
    for when in (now + 900, now + 500, now + 700):
        first.arm(client, when)
    assert first._armed[client].when_ns == now + 500
    assert len(first.heap) == before + 1
    assert armed is None or armed.active


def test_after_close_nothing_runs_and_calls_say_so() -> None:
    runtime, first, second, client, _ = _pair(PEER4)
    api.sendmsg(client, b"x", 0)
    end = first.interfaces[1].link
    first.close()
    second.close()
    runtime.run_until_idle()
    for call in (lambda: dial(first, PEER4, 80), lambda: first.udp.socket(4), lambda: first.add_interface(end)):
        with pytest.raises(OSError, match="closed") as caught:
            call()
        assert caught.value.errno == errno.ENETDOWN
    first.close()


def test_a_port_is_free_again_when_its_time_wait_is_over() -> None:
    runtime, first, _, client, server = _pair(PEER4)
    port = client.sport
    api.close(client)
    runtime.run_for(10 * MS)
    api.close(server)
    runtime.run_for(10 * MS)
    assert len(first.ports.holders(port)) == 1
    assert len(first.table) == 1
    runtime.run_for(65 * S)
    assert first.ports.holders(port) == []
    assert first.table == {}


def test_a_batch_of_segments_is_one_super_segment_when_the_interface_coalesces() -> None:
    runtime = VirtualRuntime()
    ends = pipe_pair(runtime.heap, delay_ns=MS, features=0)
    first, second = Stack(runtime, seed=1), Stack(runtime, seed=2)
    first.add_interface(ends[0], ["10.0.0.1/24"])
    second.add_interface(ends[1], ["10.0.0.2/24"], gro=True)
    listener = serve(second, 4, 80)
    client = dial(first, PEER4, 80)
    runtime.run_for(20 * MS)
    server = api.accept(listener)
    before = second.mib.TcpInSegs
    first.now()  # as every call of a socket does
    api.sendmsg(client, DATA[:14480], 0)
    first.flush()
    runtime.run_for(MS)
    assert (server.rcv_nxt - server.copied_seq, server.data_segs_in) == (14480, 10)
    # the sender's autosized bursts of five end in PSH, which ends a merge
    assert second.mib.TcpInSegs - before == 2

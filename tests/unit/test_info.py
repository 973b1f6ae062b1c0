"""tcp_info: the kernel's fields in the kernel's places (280 bytes, Linux 6.18)."""

from __future__ import annotations

import platform
from dataclasses import fields
from struct import unpack_from

import pytest

from pytcp.tcp import api, const, sockopt_tcp
from pytcp.tcp.info import TcpInfo

from . import btf
from .endpoint import MS, World, connection
from .harness import make_sock


def test_the_layout_is_that_of_struct_tcp_info() -> None:
    info = TcpInfo()
    # (field, offset, format) by the kernel's header: two 8-byte boundaries and the 16-bit fields show any slip
    places = [
        ("state", 0, "B"), ("options", 5, "B"), ("rto", 8, "<I"), ("unacked", 24, "<I"), ("last_data_sent", 44, "<I"), ("pmtu", 60, "<I"), ("rtt", 68, "<I"),
        ("snd_cwnd", 80, "<I"), ("rcv_space", 96, "<I"), ("total_retrans", 100, "<I"), ("pacing_rate", 104, "<Q"), ("bytes_acked", 120, "<Q"),
        ("segs_out", 136, "<I"), ("min_rtt", 148, "<I"), ("delivery_rate", 160, "<Q"), ("busy_time", 168, "<Q"), ("delivered", 192, "<I"),
        ("bytes_sent", 200, "<Q"), ("dsack_dups", 216, "<I"), ("snd_wnd", 228, "<I"), ("rehash", 236, "<I"), ("total_rto", 240, "<H"),
        ("total_rto_recoveries", 242, "<H"), ("total_rto_time", 244, "<I"), ("received_ce", 248, "<I"), ("received_ce_bytes", 272, "<I"),
    ]  # fmt: skip
    for number, (field, _, _) in enumerate(places):
        setattr(info, field, number + 1)
    packed = info.pack()
    assert len(packed) == 280
    assert [unpack_from(form, packed, offset)[0] for _, offset, form in places] == list(range(1, len(places) + 1))


@pytest.mark.skipif(not btf.VMLINUX.exists() or not platform.release().startswith("6.18."), reason="needs the type information of a 6.18 kernel")
def test_every_field_lies_where_the_running_kernel_has_it() -> None:
    """Each field alone is set to ones: exactly the bits that the kernel's struct tcp_info has for it are set."""
    size, kernel = btf.members("tcp_info")
    assert size == len(TcpInfo().pack())
    ends = [member.bit for member in kernel[1:]] + [8 * size]
    where = {m.name.removeprefix("tcpi_"): (m.bit, m.bits or (8 if m.bit < 64 else end - m.bit)) for m, end in zip(kernel, ends, strict=True)}
    assert {field.name for field in fields(TcpInfo)} == set(where)
    for name, (bit, bits) in where.items():
        packed = int.from_bytes(TcpInfo(**{name: (1 << bits) - 1}).pack(), "little")
        assert packed == ((1 << bits) - 1) << bit, name


def test_small_fields_share_bytes() -> None:
    info = TcpInfo(snd_wscale=7, rcv_wscale=10, delivery_rate_app_limited=1, fastopen_client_fail=2)
    assert info.pack()[6:8] == bytes((0xA7, 0b101))


def test_counters_wrap_like_the_kernels() -> None:
    info = TcpInfo(segs_in=(1 << 32) + 5, total_rto=(1 << 16) + 6, bytes_sent=(1 << 64) + 7)
    packed = info.pack()
    assert unpack_from("<I", packed, 140)[0] == 5
    assert unpack_from("<H", packed, 240)[0] == 6
    assert unpack_from("<Q", packed, 200)[0] == 7


def test_a_fresh_socket_is_closed_and_limited_by_its_program() -> None:
    # measured: the first 8 bytes are 07 00 00 00 00 00 00 01
    packed = api.getsockopt(World().socket(), 6, sockopt_tcp.TCP_INFO, 8)
    assert packed == bytes.fromhex("0700000000000001")


def test_an_accepted_connection_before_any_data() -> None:
    # measured: ESTABLISHED, SACK and window scale, scales 7 and 10, limited by the program
    _, _, sk = connection()
    assert api.getsockopt(sk, 6, sockopt_tcp.TCP_INFO, 8) == bytes.fromhex("010000000006a701")


def test_a_listener_shows_its_queue() -> None:
    lsk = World().listening(backlog=7)
    packed = api.getsockopt(lsk, 6, sockopt_tcp.TCP_INFO, 8)
    assert packed == bytes.fromhex("0a00000000000000")
    info = api.tcp_info(lsk)
    assert (info.unacked, info.sacked, info.snd_mss, info.rto) == (0, 7, 0, 0)


def test_ages_are_milliseconds_of_whole_ticks() -> None:
    world, peer, sk = connection()
    api.sendmsg(sk, bytes(10))
    peer.send("P.", 1, 10, ack=11, win=511)
    world.advance(1003 * MS)
    info = api.tcp_info(sk)
    assert (info.last_data_sent, info.last_data_recv, info.last_ack_recv) == (1000, 1000, 1000)


def test_traffic_is_counted() -> None:
    world, peer, sk = connection(rtt_ms=10)
    api.sendmsg(sk, bytes(3000))
    world.advance(10 * MS)
    peer.send("P.", 1, 500, ack=1461, win=511)
    info = api.tcp_info(sk)
    assert (info.bytes_sent, info.bytes_acked, info.bytes_received, info.data_segs_out, info.data_segs_in) == (3000, 1460, 500, 3, 1)
    # SYN, final ACK and data; three segments of data (the SYN-ACK is the request's)
    assert (info.segs_in, info.segs_out, info.unacked, info.notsent_bytes) == (3, 4, 2, 0)
    assert (info.rtt, info.min_rtt, info.delivered) == (10_000, 10_000, 2)
    assert (info.snd_wnd, info.pmtu, info.ca_state) == (65408, 1500, const.CA_OPEN)


def test_unsent_bytes_wait_behind_the_congestion_window() -> None:
    _, _, sk = connection()
    api.sendmsg(sk, bytes(20_000))
    info = api.tcp_info(sk)
    assert (info.unacked, info.notsent_bytes) == (10, 20_000 - 14_600)


def test_before_any_sample_the_minimum_rtt_is_all_ones() -> None:
    assert api.tcp_info(make_sock()).min_rtt == 0xFFFFFFFF

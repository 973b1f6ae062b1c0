"""Options: which leave, in which order, and what they say (RFC 7323, RFC 2018, RFC 2883; Linux's layouts)."""

from __future__ import annotations

from typing import Any

from pytcp.tcp import api, options
from pytcp.wire.tcp import parse_segment

from .endpoint import Peer, World, connection
from .harness import established, make_sock


def syn(**fields: Any) -> bytes:
    sysctls = {name: fields.pop(name) for name in list(fields) if name.startswith("tcp_")}
    sk = make_sock(advmss=1460, rcv_wscale=10, **fields)
    for name, value in sysctls.items():
        setattr(sk.sysctl, name, value)
    return options.syn_options(sk)


def test_a_syn_offers_mss_sack_timestamps_and_scale_in_twenty_bytes() -> None:
    # at 10 s of host time with an offset of 7 ms: TSval 10007 = 0x2717
    assert syn(ts_offset=7) == bytes.fromhex("020405b4 0402080a 00002717 00000000 0103030a")


def test_without_timestamps_sack_permitted_is_padded_in_front() -> None:
    assert syn(tcp_timestamps=0) == bytes.fromhex("020405b4 01010402 0103030a")


def test_without_sack_the_timestamps_are_padded_in_front() -> None:
    assert syn(tcp_sack=0) == bytes.fromhex("020405b4 0101080a 00002710 00000000 0103030a")


def test_a_syn_with_everything_off_has_only_its_mss() -> None:
    assert syn(tcp_sack=0, tcp_timestamps=0, tcp_window_scaling=0) == bytes.fromhex("020405b4")


def test_a_syn_that_reuses_a_time_wait_echoes_the_old_timestamp() -> None:
    assert syn(ts_recent=5031)[12:16] == (5031).to_bytes(4, "big")


def test_tsval_wraps_with_32_bits() -> None:
    assert syn(ts_offset=(1 << 32) - 10_000 + 5)[8:12] == (5).to_bytes(4, "big")


def test_a_smaller_path_mtu_lowers_the_announced_mss_of_a_repeated_syn() -> None:
    sk = make_sock(advmss=1460)
    sk.host.route(sk)
    sk.dst.advmss = 960
    assert options.syn_options(sk)[:4] == bytes.fromhex("020403c0")
    sk.dst.advmss = 1460
    assert options.syn_options(sk)[:4] == bytes.fromhex("020403c0"), "it does not grow back for this connection"


def test_a_syn_ack_contains_what_both_want() -> None:
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"mss": 1460}, ["mss"]),
        ({"mss": 1460, "sack": True}, ["mss", "nop", "nop", "sackok"]),
        ({"mss": 1460, "ws": 7}, ["mss", "nop", "ws"]),
        ({"mss": 1460, "ts": (5000, 0)}, ["mss", "nop", "nop", "ts"]),
        ({"mss": 1460, "ts": (5000, 0), "sack": True, "ws": 7}, ["mss", "sackok", "ts", "nop", "ws"]),
    ]
    for offer, order in cases:
        peer = Peer(World())
        peer.world.listening()
        peer.send("S", 0, **offer)
        assert peer.hear().order == order


def test_a_syn_ack_leaves_out_what_the_sysctls_refuse() -> None:
    peer = Peer(World(tcp_sack=0, tcp_timestamps=0, tcp_window_scaling=0))
    peer.world.listening()
    peer.syn(ts=(5000, 0))
    assert peer.hear().order == ["mss"]


def test_established_segments_carry_aligned_timestamps() -> None:
    sk = established(timestamps=True, ts_recent=0xFFFFFFFF)
    assert options.established_options(sk) == bytes.fromhex("0101080a 00002710 ffffffff")
    assert options.established_size(sk) == 12


def test_without_timestamps_and_holes_there_are_no_options() -> None:
    sk = established()
    assert options.established_options(sk) == b""
    assert options.established_size(sk) == 0


def blocks(sk: Any) -> list[tuple[int, int]]:
    """The SACK blocks as the peer parses them, relative to its ISN."""
    opts = options.established_options(sk)
    assert len(opts) == options.established_size(sk)
    head = bytes(12) + bytes((((20 + len(opts)) // 4) << 4, 16)) + bytes(6) + opts
    seg = parse_segment(memoryview(head), 0, len(head), 4, b"", b"")
    return [((left - sk.irs) & 0xFFFFFFFF, (right - sk.irs) & 0xFFFFFFFF) for left, right in seg.options.sack]


def test_four_sack_blocks_fit_without_timestamps_and_three_with() -> None:
    for timestamps, room in ((False, 4), (True, 3)):
        sk = established(timestamps=timestamps)
        sk.selective_acks = [(sk.irs + start, sk.irs + start + 100) for start in (3001, 2001, 1001, 501)]
        # newest first; 2001 and 3001 lie beyond the wrap of 32 bits
        assert blocks(sk) == [(3001, 3101), (2001, 2101), (1001, 1101), (501, 601)][:room]


def test_a_dsack_goes_first_and_takes_a_place() -> None:
    sk = established(timestamps=True)
    sk.selective_acks = [(sk.irs + start, sk.irs + start + 100) for start in (3001, 2001, 1001)]
    sk.duplicate_sack = (sk.irs + 1, sk.irs + 51)
    assert blocks(sk) == [(1, 51), (3001, 3101), (2001, 2101)]
    assert sk.duplicate_sack is not None, "sending it is what uses it up, not writing it"


def test_sack_blocks_shrink_the_payload_of_a_full_segment() -> None:
    _, peer, sk = connection()
    sk.selective_acks = [(sk.rcv_nxt + 1000, sk.rcv_nxt + 2000)]
    sk.nonagle = 1
    api.sendmsg(sk, bytes(4000))
    sizes = {segment.length for segment in peer.heard_all()}
    assert max(sizes) == 1460 - 12

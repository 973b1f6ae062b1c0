"""MD5 signatures in the engine: the digest, keys and prefixes, room for options, and what a socket without keys does with one."""

from __future__ import annotations

import random
import socket
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, calc_tcp_md5_hash
from scapy.layers.inet6 import IPv6

from pytcp.tcp import api, const, input, md5, mtu, reset, sendmsg
from pytcp.tcp import options as opts_room
from pytcp.tcp.sock import Sock
from pytcp.wire import tcpopt
from pytcp.wire.checksum import pseudo, transport_ok
from pytcp.wire.ipv4 import Ipv4
from pytcp.wire.ipv6 import Ipv6
from pytcp.wire.signature import digest
from pytcp.wire.tcp import IPPROTO_TCP, Segment, TcpHeader, build_header, parse_segment
from tests.md5 import FLAG_PREFIX, TCP_MD5SIG, TCP_MD5SIG_EXT, carried, md5sig, signature

from .harness import FakeHost, established, make_sock

SECRET = b"correct horse"
A4, B4 = b"\x0a\x00\x00\x01", b"\x0a\x00\x00\x02"  # of `established`: ours, the peer's
PEER = "10.0.0.2"


def packet(src: bytes, dst: bytes, segment: bytes) -> bytes:
    made: Any = Ipv4(src, dst, IPPROTO_TCP, segment) if len(src) == 4 else Ipv6(src, dst, IPPROTO_TCP, segment)
    data: bytes = made.emit()
    return data


def signed(secret: bytes = SECRET, **fields: Any) -> Sock:
    """An established connection with a key for its peer."""
    sk = established(**fields)
    api.setsockopt(sk, IPPROTO_TCP, TCP_MD5SIG, md5sig(PEER, secret))
    return sk


def arriving(sk: Sock, flags: int = const.ACK, *, seq: int = 1, payload: bytes = b"", key: bytes | None = SECRET) -> Segment:
    """A segment of the peer's as a packet of bytes, signed with `key` as RFC 2385 says."""
    opts = (tcpopt.Nop(), tcpopt.Nop(), tcpopt.Md5(bytes(16))) if key is not None else ()
    window = sk.snd_wnd >> sk.snd_wscale
    header = TcpHeader(sk.dport, sk.sport, sk.irs + seq & 0xFFFFFFFF, sk.snd_nxt & 0xFFFFFFFF, flags, window, options=opts, payload=payload)
    data = bytearray(packet(B4, A4, header.emit(B4, A4)))
    if key is not None:
        data[20 + 24 : 20 + 40] = signature(bytes(data), key)
    return parse_segment(memoryview(bytes(data)), 20, len(data), 4, B4, A4)


class Whole(FakeHost):
    """Keeps what is sent as whole packets."""

    def __init__(self) -> None:
        super().__init__()
        self.packets: list[bytes] = []

    def transmit(self, sk: Sock, th: bytes, parts: Any, *rest: Any) -> int:
        self.packets.append(packet(sk.saddr, sk.daddr, th + b"".join(map(bytes, parts))))
        return super().transmit(sk, th, parts, *rest)


# ---------------------------------------------------------------- the digest


@pytest.mark.parametrize("seed", range(20))
def test_the_digest_is_that_of_the_rfc_and_scapy_agrees(seed: int) -> None:
    dice = random.Random(seed)
    size = 4 if seed % 2 else 16
    src, dst = dice.randbytes(size), dice.randbytes(size)
    payload = dice.randbytes(dice.choice((0, 1, 536, 1460)))
    opts = dice.choice((b"", bytes(20), b"\x01\x01\x08\x0a" + dice.randbytes(8)))
    sport, dport, seq, ack = (dice.randrange(1 << bits) for bits in (16, 16, 32, 32))
    header = build_header(sport, dport, seq, ack, dice.randrange(512), 77, 0, opts, dice.randrange(65536))
    key = dice.randbytes(dice.choice((1, 16, 80)))
    cut = len(payload) // 3
    made = digest(key, src, dst, header, (payload[:cut], memoryview(payload)[cut:]))
    assert made == signature(packet(src, dst, header + payload), key)
    segment = TCP(header + payload)
    below = IP(src=socket.inet_ntop(socket.AF_INET, src), dst=socket.inet_ntop(socket.AF_INET, dst), proto=6) if size == 4 else IPv6(
        src=socket.inet_ntop(socket.AF_INET6, src), dst=socket.inet_ntop(socket.AF_INET6, dst), nh=6
    )  # fmt: skip
    assert made == calc_tcp_md5_hash((below / segment)[TCP], key)


def test_options_are_covered_by_their_length_alone() -> None:
    one, two = (build_header(1, 2, 3, 4, const.ACK, 5, 0, opts, 6) for opts in (b"\x01" * 12, b"\x00" * 12))
    assert digest(SECRET, A4, B4, one, ()) == digest(SECRET, A4, B4, two, ())
    longer = build_header(1, 2, 3, 4, const.ACK, 5, 0, b"\x01" * 16, 6)
    assert digest(SECRET, A4, B4, one, ()) != digest(SECRET, A4, B4, longer, ())


@pytest.mark.parametrize("size", [4, 16])
@pytest.mark.parametrize("other", [b"", b"\x02\x04\x05\xb4", b"\x01\x01\x08\x0a12345678"])
def test_a_signed_header_has_the_option_first_and_the_sums_a_device_expects(size: int, other: bytes) -> None:
    src, dst = bytes(range(size)), bytes(range(100, 100 + size))
    payload = b"some bytes"
    total = pseudo(src, dst, IPPROTO_TCP, 20 + len(other) + len(payload))
    th = build_header(1, 2, 3, 4, const.ACK, 5, 0, other, total % 65535 or 65535)
    out = md5.sign(SECRET, src, dst, th, (payload,))
    assert out[20:24] == b"\x01\x01\x13\x12"
    assert out[40:] == other
    whole = packet(src, dst, out + payload)
    assert carried(whole) == signature(whole, SECRET)
    # what the field has is the pseudo-header's sum: completed as a device completes it, the checksum is right
    start = len(whole) - len(out) - len(payload)
    l4 = bytearray(whole[start:])
    words = sum(int.from_bytes(bytes(l4[i : i + 2]).ljust(2, b"\0"), "big") for i in range(0, len(l4), 2))
    l4[16:18] = (0xFFFF - (words % 65535 or 65535)).to_bytes(2, "big")
    assert transport_ok(memoryview(bytes(l4)), src, dst, IPPROTO_TCP)


# ---------------------------------------------------------------- keys


def keys(*entries: tuple[str, int, bytes]) -> list[md5.Key]:
    sk = make_sock()
    for address, prefix, secret in entries:
        api.setsockopt(sk, IPPROTO_TCP, TCP_MD5SIG_EXT, md5sig(address, secret, flags=FLAG_PREFIX, prefix=prefix))
    found: list[md5.Key] = sk.md5
    return found


@pytest.mark.parametrize("backwards", [False, True])
def test_the_longest_prefix_wins_in_whatever_order_keys_were_set(backwards: bool) -> None:
    entries = [("10.0.0.0", 8, b"eight"), ("10.1.0.0", 16, b"sixteen"), ("10.1.2.3", 32, b"one"), ("0.0.0.0", 0, b"all")]
    found = keys(*(reversed(entries) if backwards else entries))
    for address, secret in (("10.1.2.3", b"one"), ("10.1.2.4", b"sixteen"), ("10.2.0.1", b"eight"), ("11.0.0.1", b"all")):
        assert md5.lookup(found, socket.inet_aton(address)) == secret
    assert md5.lookup(found, bytes(16)) is None  # IPv4's everybody is nobody of IPv6


def test_of_two_keys_for_the_same_prefix_the_newest_wins_and_host_bits_mean_nothing() -> None:
    found = keys(("10.0.0.1", 8, b"old"), ("10.9.9.9", 8, b"new"))
    assert md5.lookup(found, socket.inet_aton("10.77.0.1")) == b"new"
    assert len(found) == 2


def test_no_keys_no_secret() -> None:
    assert md5.lookup(None, A4) is None
    assert md5.lookup([], A4) is None


# ---------------------------------------------------------------- sending


def test_a_socket_becomes_one_that_looks_at_signatures_with_its_first_key() -> None:
    sk = established()
    assert type(sk) is Sock
    assert sk.gso_max_segs == 65535
    api.setsockopt(sk, IPPROTO_TCP, TCP_MD5SIG, md5sig(PEER, SECRET))
    assert type(sk) is md5.Signed
    assert sk.gso_max_segs == 1
    with pytest.raises(OSError, match="Protocol not available"):
        api.getsockopt(sk, IPPROTO_TCP, TCP_MD5SIG, 216)


@pytest.mark.parametrize("timestamps", [False, True])
def test_data_leaves_in_signed_segments_that_fit_the_path(timestamps: bool) -> None:
    host = Whole()
    sk = signed(host=host, timestamps=timestamps, mss=1000)
    assert mtu.current_mss(sk) == 980
    data = bytes(range(256)) * 20
    assert sendmsg.sendmsg(sk, data) == len(data)
    assert all(carried(p) == signature(p, SECRET) for p in host.packets)
    assert {len(p) for p in host.packets[:-1]} == {sk.dst.mtu}
    assert [(sent.length, sent.gso_size) for sent in host.take()] == [(980, 0)] * 5 + [(5120 - 4900, 0)]


@pytest.mark.parametrize(("timestamps", "fit"), [(False, 2), (True, 0)])
def test_sack_blocks_have_what_room_the_signature_leaves(timestamps: bool, fit: int) -> None:
    sk = signed(timestamps=timestamps)
    sk.selective_acks = [(sk.rcv_nxt + 1000 * n, sk.rcv_nxt + 1000 * n + 500) for n in (4, 3, 2, 1)]
    opts = opts_room.established_options(sk)
    blocks = [option for option in tcpopt.parse_options(opts) if isinstance(option, tcpopt.Sack)]
    assert [len(option.blocks) for option in blocks] == ([fit] if fit else [])
    assert len(opts) + md5.SIZE_ALIGNED == opts_room.established_size(sk) <= tcpopt.MAX_OPTIONS


def test_a_key_that_is_gone_leaves_segments_as_they_were() -> None:
    host = Whole()
    sk = signed(host=host, mss=1000)
    api.setsockopt(sk, IPPROTO_TCP, TCP_MD5SIG, md5sig(PEER, b""))
    assert mtu.current_mss(sk) == 1000
    sendmsg.sendmsg(sk, b"x")
    assert carried(host.packets[-1]) is None
    input.receive(sk, arriving(sk, payload=b"abc", key=None))
    assert sk.rcv_nxt == sk.irs + 4


# ---------------------------------------------------------------- receiving


def test_a_signed_segment_is_taken_and_its_acknowledgement_signed() -> None:
    host = Whole()
    sk = signed(host=host)
    sk.receive(arriving(sk, payload=b"hello"))
    assert sk.rcv_nxt == sk.irs + 6
    assert carried(host.packets[-1]) == signature(host.packets[-1], SECRET)
    assert (sk.mib.TCPMD5NotFound, sk.mib.TCPMD5Unexpected, sk.mib.TCPMD5Failure) == (0, 0, 0)


@pytest.mark.parametrize(
    ("secret", "key", "counter"),
    [(SECRET, None, "TCPMD5NotFound"), (SECRET, b"wrong", "TCPMD5Failure"), (None, SECRET, "TCPMD5Unexpected")],
)
@pytest.mark.parametrize("flags", [const.ACK, const.RST, const.SYN, const.FIN | const.ACK])
def test_what_is_not_signed_as_it_has_to_be_is_as_if_it_had_not_come(secret: bytes | None, key: bytes | None, counter: str, flags: int) -> None:
    host = Whole()
    sk = established(host=host) if secret is None else signed(secret, host=host)
    sk.receive(arriving(sk, flags, payload=b"" if flags != const.ACK else b"hello", key=key))
    assert sk.state == const.ESTABLISHED
    assert (sk.rcv_nxt, sk.segs_in, sk.data_segs_in) == (sk.irs + 1, 0, 0)
    assert host.packets == []
    assert getattr(sk.mib, counter) == 1


AO = b"\x1d\x10\x01\x01" + bytes(12) + b"\x01" * 4


def with_options(sk: Sock, options: bytes, flags: int = const.ACK, ack: int | None = None, payload: bytes = b"hello") -> Segment:
    """A segment of the peer's with these option bytes."""
    number = sk.snd_nxt if ack is None else ack
    header = build_header(sk.dport, sk.sport, sk.irs + 1, number, flags, sk.snd_wnd >> sk.snd_wscale, 0, options)
    data = packet(B4, A4, header + payload)
    return parse_segment(memoryview(data), 20, len(data), 4, B4, A4)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("options", [b"\x02\x00" + bytes(18), b"\x13\x12" + bytes(16) + b"\x13\x12" + bytes(16)], ids=["length 0", "two digests"])
def test_broken_options_are_dropped_with_and_without_keys_and_nobody_counts(options: bytes, keyed: bool) -> None:
    host = Whole()
    sk = signed(host=host) if keyed else established(host=host)
    sk.receive(with_options(sk, options))
    assert (sk.rcv_nxt, sk.segs_in, host.packets) == (sk.irs + 1, 0, [])
    assert (sk.mib.TCPMD5NotFound, sk.mib.TCPMD5Unexpected, sk.mib.TCPMD5Failure) == (0, 0, 0)


def test_ao_is_no_signature_for_a_key_and_no_obstacle_without() -> None:
    sk = established()
    sk.receive(with_options(sk, AO))
    assert sk.rcv_nxt == sk.irs + 6
    sk = signed()
    sk.receive(with_options(sk, AO))
    assert sk.rcv_nxt == sk.irs + 1
    assert sk.mib.TCPMD5NotFound == 1


@pytest.mark.parametrize(("options", "answers"), [(b"", 1), (AO[:16], 1), (AO, 0), (b"\x02\x00" + bytes(18), 0)], ids=["none", "AO, short", "AO", "broken"])
def test_what_cannot_be_authenticated_is_answered_by_no_reset(options: bytes, answers: int) -> None:
    host = FakeHost()
    sk = established(host=host)
    seg = with_options(sk, options)
    reset.closed_port(host, seg)
    assert (len(host.replies), host.mib.TcpOutRsts) == (answers, answers)


def test_one_bit_anywhere_makes_a_signature_wrong() -> None:
    sk = signed()
    good = bytes(arriving(sk, payload=b"hello").data)
    # ports, numbers, flags, window, urgent pointer, digest and payload; the checksum is not covered, options by their length only
    for at in (*range(20, 36), *range(38, 40), *range(44, 65)):
        bad = bytearray(good)
        bad[at] ^= 1
        seg = parse_segment(memoryview(bytes(bad)), 20, len(bad), 4, B4, A4)
        assert not md5.acceptable(sk.md5, seg, sk.mib), at
    assert md5.acceptable(sk.md5, parse_segment(memoryview(good), 20, len(good), 4, B4, A4), sk.mib)

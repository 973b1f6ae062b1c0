"""TCP MD5 signatures (RFC 2385): keys per peer, a signature in every segment, none believed without it.

Routers protect BGP sessions so: both ends hold a key, each segment carries an MD5 digest over itself and the key
(`pytcp.wire.signature`), and what is not signed, or wrongly, is dropped before anything else looks at it: a RST
made up by a third party ends nothing. Linux has it since 2.6.20 (cfb6eeb4c860), prefixes since 4.13
(6797318e623d). RFC 5925 (TCP-AO) was to replace it, and is not here.

Keys hang on sockets (`sockopt_md5`), each for an address or a prefix; the longest prefix wins, and of
equals the newest. A segment is signed with whatever key its destination has at that moment, so a key may be changed
while a connection lives. A child gets the key its listener has for the peer, TIME-WAIT the one of its connection.

The option takes 20 of 40 bytes: our SYN offers no timestamps, our SYN-ACK takes them up only where there is no SACK
(`options`, `request`), and beside timestamps no SACK block fits. The MSS in tcp_info does not know about it, the
segments do. A digest covers one packet, so super-segments end with the first key: for the socket's life one skb is
one segment.

`Signed` is a Sock with keys. Becoming one changes the class of the object: its `receive` looks at the signature, and
sockets without keys pay nothing for it. Not checked, as in Linux: what comes for a TIME-WAIT block. A segment with
broken options (`AUTH_BROKEN`) goes uncounted, with or without keys; one with TCP-AO is taken where there is no key, and
gets no RST in answer.
Counters: TCPMD5NotFound, TCPMD5Unexpected, TCPMD5Failure, TCPAOBad.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytcp.wire.signature import digest
from pytcp.wire.tcpopt import AUTH_AO, AUTH_BROKEN, MD5SIG, NOP

from .sock import Sock

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .mib import TcpMib
    from .skb import Buffer
    from .sock import Host

SIZE_ALIGNED = 20  # bytes of NOP NOP signature
KEY_TRUESIZE = 136  # what a key costs in option memory

_DOFF = 12  # where the data offset stands in a TCP header
_CHECKSUM = 16
_HEAD = bytes((NOP, NOP, MD5SIG, 18))


class Key:
    """One key: for whom, and the secret."""

    __slots__ = ("addr", "prefix_len", "of_device", "secret", "_prefix")

    def __init__(self, addr: bytes, prefix_len: int, of_device: bool, secret: bytes) -> None:
        self.addr = addr  # 4 or 16 bytes, as given: bits behind the prefix are kept and mean nothing
        self.prefix_len = prefix_len
        self.of_device = of_device  # TCP_MD5SIG_FLAG_IFINDEX was given; there is only the one domain of routes
        self.secret = secret
        self._prefix = self._top(addr)

    def _top(self, addr: bytes) -> int:
        return int.from_bytes(addr, "big") >> 8 * len(self.addr) - self.prefix_len

    def matches(self, addr: bytes) -> bool:
        """Whether it is a key for the peer `addr`."""
        return len(addr) == len(self.addr) and self._top(addr) == self._prefix


Keys = list[Key]  # of one socket, the newest first


def lookup(keys: Keys | None, addr: bytes) -> bytes | None:
    """The secret shared with the peer `addr`; None = there is none, and nothing is signed."""
    best: Key | None = None
    for key in keys or ():
        if (best is None or key.prefix_len > best.prefix_len) and key.matches(addr):
            best = key
    return None if best is None else best.secret


def option_size(sk: Sock) -> int:
    """Bytes the signature takes of the options of a segment to the peer."""
    return 0 if lookup(sk.md5, sk.daddr) is None else SIZE_ALIGNED


# ---------------------------------------------------------------- sending


def sign(secret: bytes, src: bytes, dst: bytes, th: bytes, parts: Sequence[Buffer], behind: bool = False) -> bytes:
    """The header `th`, as it is given to the host, with the signature in front of its other options, or behind them."""
    csum = int.from_bytes(th[_CHECKSUM : _CHECKSUM + 2], "big")
    # the field has the folded sum of the pseudo-header, whose length grows
    csum = (csum + SIZE_ALIGNED - 1) % 65535 + 1
    fixed = th[:_DOFF] + bytes((th[_DOFF] + (SIZE_ALIGNED // 4 << 4),)) + th[_DOFF + 1 : _CHECKSUM] + csum.to_bytes(2, "big") + th[_CHECKSUM + 2 : 20]
    made = digest(secret, src, dst, fixed + bytes(SIZE_ALIGNED) + th[20:], parts)
    return fixed + th[20:] + _HEAD + made if behind else fixed + _HEAD + made + th[20:]


def signed(sk: Sock, th: bytes, parts: Sequence[Buffer]) -> bytes:
    """`th` of a segment of `sk`, signed if there is a key for the peer."""
    secret = lookup(sk.md5, sk.daddr)
    return th if secret is None else sign(secret, sk.saddr, sk.daddr, th, parts)


def key_for_stranger(host: Host, seg: Segment) -> bytes | None:
    """The key to sign a RST with in answer to the signed segment `seg` of no connection; None: it gets no answer.

    Only a peer who knows a key may learn that we have lost the connection. The end that once connected has no listener
    of that port, so the one asked is that of the peer's port: routers listen to the same one on both sides."""
    assert seg.options.md5 is not None
    listener = host.listener(seg.family, seg.dst, seg.sport)
    secret = None if listener is None else lookup(listener.md5, seg.src)
    return secret if secret is not None and _verified(secret, seg) else None


# ---------------------------------------------------------------- receiving


def _verified(secret: bytes, seg: Segment) -> bool:
    start = seg.l4_off
    return digest(secret, seg.src, seg.dst, seg.data[start : start + seg.doff * 4], (seg.payload,)) == seg.options.md5


def acceptable(keys: Keys | None, seg: Segment, mib: TcpMib) -> bool:
    """Whether `seg` is signed as it has to be, or not at all where there is no key; counts what is not."""
    if seg.options.md5 == AUTH_BROKEN:
        return False
    secret = lookup(keys, seg.src)
    if secret is None:
        if seg.options.md5 is None or seg.options.md5 == AUTH_AO:
            return True
        mib.TCPMD5Unexpected += 1
    elif seg.options.md5 is None or seg.options.md5 == AUTH_AO:
        mib.TCPMD5NotFound += 1
    elif _verified(secret, seg):
        seg.options.md5 = None
        return True
    else:
        mib.TCPMD5Failure += 1
    return False


class Signed(Sock):
    """A Sock that has, or once had, keys."""

    __slots__ = ()

    def receive(self, seg: Segment) -> None:
        """One segment for this socket: on to `input.receive` if its signature is right."""
        if (seg.ttl < self.min_ttl and seg.family == self.family) or acceptable(self.md5, seg, self.mib):
            Sock.receive(self, seg)


# ---------------------------------------------------------------- keys


def enable(sk: Sock) -> Keys:
    """The keys of a socket, which from now on looks at signatures and sends single segments."""
    keys: Keys | None = sk.md5
    if keys is None:
        keys = sk.md5 = []
        sk.__class__ = Signed
        sk.gso_max_segs = 1
        if sk.rx_stamps is not None:
            from . import rx_timestamps  # which builds on this module

            rx_timestamps.update(sk)
    return keys


def inherit(child: Sock, listener: Sock) -> None:
    """Give a new child the key its listener has for the peer."""
    secret = lookup(listener.md5, child.daddr)
    if secret is not None:
        enable(child).append(Key(child.daddr, 8 * len(child.daddr), False, secret))


def option_memory(sk: Sock) -> int:
    """Bytes the keys cost (`o` of ss -m)."""
    return KEY_TRUESIZE * len(sk.md5 or ())

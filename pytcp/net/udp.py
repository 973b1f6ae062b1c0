"""UDP between IP and the endpoints (RFC 768): who a datagram is for, and whose an error is.

Lookup prefers a connected endpoint, then one bound to the address, then to the device, then the
wildcard; of equals the latest bound, or with SO_REUSEPORT the one that the flow's hash chooses.
Broadcast and multicast go to every match. A datagram for nobody is answered by port unreachable. Bad
checksums of longer datagrams are found when they are read, as in Linux, which counts and drops only
what it had to sum at arrival anyway.
Counters: Udp*, Udp6*.
"""

from __future__ import annotations

import errno
from hashlib import blake2b
from typing import TYPE_CHECKING

from pytcp.link.frame import CSUM_NONE
from pytcp.wire.checksum import transport_ok
from pytcp.wire.icmp import DEST_UNREACH, FRAG_NEEDED, PARAMETER_PROBLEM, PORT_UNREACH, TIME_EXCEEDED
from pytcp.wire.icmpv6 import DEST_UNREACH as DEST_UNREACH6
from pytcp.wire.icmpv6 import PACKET_TOO_BIG
from pytcp.wire.icmpv6 import PARAMETER_PROBLEM as PARAMETER_PROBLEM6
from pytcp.wire.icmpv6 import PORT_UNREACH as PORT_UNREACH6
from pytcp.wire.icmpv6 import TIME_EXCEEDED as TIME_EXCEEDED6
from pytcp.wire.ipv4 import IPPROTO_UDP
from pytcp.wire.ipv6 import walk

from . import datagram, icmp, icmpv6, uso
from .addr import V4MAPPED
from .packet import TO_MULTICAST, TO_US, Packet
from .ports import PortTable
from .truesize import rx_truesize

if TYPE_CHECKING:
    from pytcp.wire.icmp import Quoted

    from .datagram import UdpSocket
    from .interface import Interface
    from .stack import Stack

SUMMED_AT_ARRIVAL = 76  # datagrams up to this length are verified when they come in

# ICMP unreachable codes -> (errno, reported without IP_RECVERR)
UNREACH4 = {
    0: (errno.ENETUNREACH, False),
    1: (errno.EHOSTUNREACH, False),
    2: (errno.ENOPROTOOPT, True),
    3: (errno.ECONNREFUSED, True),
    4: (errno.EMSGSIZE, True),
    5: (errno.EOPNOTSUPP, False),
    6: (errno.ENETUNREACH, True),
    7: (errno.EHOSTDOWN, True),
    8: (errno.ENONET, True),
    9: (errno.ENETUNREACH, True),
    10: (errno.EHOSTUNREACH, True),
    11: (errno.ENETUNREACH, False),
    12: (errno.EHOSTUNREACH, False),
    13: (errno.EHOSTUNREACH, True),
    14: (errno.EHOSTUNREACH, True),
    15: (errno.EHOSTUNREACH, True),
}
UNREACH6 = {
    0: (errno.ENETUNREACH, False),
    1: (errno.EACCES, True),
    2: (errno.EHOSTUNREACH, False),
    3: (errno.EHOSTUNREACH, False),
    4: (errno.ECONNREFUSED, True),
    5: (errno.EACCES, True),
    6: (errno.EACCES, True),
}


class UdpTable:
    """The UDP endpoints of a stack by local port."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.ports = PortTable(stack.random)
        self._by_port: dict[int, list[UdpSocket]] = {}

    def socket(self, family: int) -> UdpSocket:
        """A new endpoint of family 4 or 6."""
        self.stack.check_open()
        return datagram.UdpSocket(self.stack, self, family)

    def enter(self, sock: UdpSocket) -> None:
        """It is bound now: datagrams may reach it."""
        self._by_port.setdefault(sock.lport, []).append(sock)

    def leave(self, sock: UdpSocket) -> None:
        """It is closed."""
        same = self._by_port.get(sock.lport, [])
        if sock in same:
            same.remove(sock)
            if not same:
                del self._by_port[sock.lport]
        self.ports.remove(sock, sock.lport)

    def endpoints(self) -> list[UdpSocket]:
        """Every endpoint that has a port; the others cannot receive anything."""
        return [sock for same in self._by_port.values() for sock in same]

    def close(self) -> None:
        """Close every endpoint."""
        for sock in self.endpoints():
            sock.close()

    def lookup(self, local: bytes, lport: int, remote: bytes, rport: int, dev: Interface | None) -> UdpSocket | None:
        """The endpoint a unicast datagram belongs to."""
        best: list[UdpSocket] = []
        best_score = 0
        for sock in self._by_port.get(lport, ()):
            score = _score(sock, local, remote, rport, dev)
            if score > best_score or (score == best_score and not best):
                best, best_score = [sock], score
            elif score == best_score:
                best.append(sock)
        if len(best) > 1 and best[-1].reuseport and not best[-1].raddr:
            group = [sock for sock in best if sock.reuseport]
            digest = blake2b(remote + local + rport.to_bytes(2, "big"), digest_size=4, key=self.stack.secret()).digest()
            return group[int.from_bytes(digest, "big") % len(group)]
        return best[-1] if best else None

    def matches(self, local: bytes, lport: int, remote: bytes, rport: int, dev: Interface) -> list[UdpSocket]:
        """All endpoints a broadcast or multicast datagram goes to."""
        return [sock for sock in self._by_port.get(lport, ()) if _score(sock, local, remote, rport, dev) >= 0]


def _score(sock: UdpSocket, local: bytes, remote: bytes, rport: int, dev: Interface | None) -> int:
    """How closely an endpoint fits; -1: not at all."""
    four = len(local) == 4
    if sock.family == 4 and not four:
        return -1
    score = 1 if (sock.family == 4) == four else 0
    saddr, raddr = sock.saddr, sock.raddr
    if four and sock.family == 6:
        if sock.v6only:
            return -1
        local, remote = V4MAPPED + local, V4MAPPED + remote
    if saddr:
        if saddr != local:
            return -1
        score += 4
    if raddr:
        if raddr != remote:
            return -1
        score += 4
    if sock.rport:
        if sock.rport != rport:
            return -1
        score += 4
    if sock.bound_dev_if:
        if dev is None or sock.bound_dev_if != dev.index:
            return -1
        score += 4
    return score


def receive(stack: Stack, pkt: Packet) -> None:
    """One UDP datagram for us."""
    mib = stack.mib
    four = pkt.family == 4
    data = pkt.data[pkt.off :]
    length = len(data)
    ulen = (data[4] << 8 | data[5]) if length >= 8 else 0
    if ulen == 0 and not four:
        # the length of a jumbogram (RFC 2675 §4), which the rest of the checks then refuse
        ulen = length
    if ulen < 8 or ulen > length:
        mib.count("UdpInErrors" if four else "Udp6InErrors")
        return
    data = data[:ulen]
    table = stack.udp
    sport = data[0] << 8 | data[1]
    dport = data[2] << 8 | data[3]
    summed = bool(data[6] | data[7])
    dev = stack.arrival(pkt)
    if pkt.dkind != TO_US:
        socks = table.matches(pkt.dst, dport, pkt.src, sport, dev)
        if pkt.dkind == TO_MULTICAST:
            socks = [sock for sock in socks if sock.hears(pkt.dst)]
    else:
        found = table.lookup(pkt.dst, dport, pkt.src, sport, dev)
        socks = [found] if found is not None else []
    if not summed and not four:
        socks = [sock for sock in socks if sock.no_check6_rx]
        if not socks:
            _count_bad(stack, four)
            return
    bad = (summed and pkt.csum == CSUM_NONE) and not transport_ok(data, pkt.src, pkt.dst, IPPROTO_UDP)
    if bad and (ulen <= SUMMED_AT_ARRIVAL or not socks):
        _count_bad(stack, four)
        return
    if not socks:
        if pkt.dkind != TO_US:
            mib.count("UdpIgnoredMulti" if four else "Udp6IgnoredMulti")
            return
        mib.count("UdpNoPorts" if four else "Udp6NoPorts")
        if four:
            icmp.send_error(stack, pkt, DEST_UNREACH, PORT_UNREACH, 0)
        else:
            icmpv6.send_error(stack, pkt, DEST_UNREACH6, PORT_UNREACH6, 0)
        return
    gso_size = uso.size_of(pkt, ulen - 8) if pkt.gso_size else 0
    size = rx_truesize(pkt.frame_len)
    new = datagram.Datagram
    for sock in socks:
        stamp_ns = stack.realtime_ns() if sock.stamps else 0
        if gso_size and not sock.gro:
            for part, one in uso.pieces(pkt, data, gso_size):
                sock.queue_datagram(new(part, pkt.src, sport, pkt.dst, dev, pkt.ttl, pkt.tos, bad, one, pkt.flow, sock.drops, stamp_ns))
        else:
            sock.queue_datagram(new(data[8:], pkt.src, sport, pkt.dst, dev, pkt.ttl, pkt.tos, bad, size, pkt.flow, sock.drops, stamp_ns, gso_size))


def _count_bad(stack: Stack, four: bool) -> None:
    mib = stack.mib
    if four:
        mib.UdpInCsumErrors += 1
        mib.UdpInErrors += 1
    else:
        mib.Udp6InCsumErrors += 1
        mib.Udp6InErrors += 1


def error(stack: Stack, pkt: Packet, quote: Quoted, kind: int, code: int, info: int, raw: bytes) -> None:
    """An ICMP error about a datagram of ours: tell the endpoint, if it has one; `raw` is all that is quoted."""
    sock = stack.udp.lookup(quote.src, quote.sport, quote.dst, quote.dport, pkt.dev)
    if sock is None and pkt.dev.loopback:
        sock = stack.udp.lookup(quote.src, quote.sport, quote.dst, quote.dport, None)
    if sock is None:
        stack.mib.count("IcmpInErrors" if pkt.family == 4 else "Icmp6InErrors")
        return
    number, hard = _errno4(kind, code) if pkt.family == 4 else _errno6(kind, code)
    if (pkt.family == 4 and kind == DEST_UNREACH and code == FRAG_NEEDED) or (pkt.family == 6 and kind == PACKET_TOO_BIG):
        hard = sock.path_mtu_report(quote.dst, info)
        if not hard:
            return
    if number:
        sock.icmp_error(number, hard, pkt.family, kind, code, info, pkt.src, quote, raw)


def _errno4(kind: int, code: int) -> tuple[int, bool]:
    if kind == DEST_UNREACH:
        return UNREACH4[code]
    if kind == PARAMETER_PROBLEM:
        return errno.EPROTO, True
    if kind == TIME_EXCEEDED:
        return errno.EHOSTUNREACH, False
    return 0, False


def _errno6(kind: int, code: int) -> tuple[int, bool]:
    if kind == DEST_UNREACH6:
        return UNREACH6.get(code, (errno.EPROTO, True))
    if kind == PACKET_TOO_BIG:
        return errno.EMSGSIZE, True
    if kind == PARAMETER_PROBLEM6:
        return errno.EPROTO, True
    if kind == TIME_EXCEEDED6:
        return errno.EHOSTUNREACH, False
    return 0, False


def concerns(stack: Stack, packet: bytes, dev: Interface) -> bool:
    """Whether a redirect about `packet` is to be followed.

    Linux looks a quoted datagram's socket up as if it were bound to the device, and finds only such."""
    if len(packet) < 48:
        return False
    where = walk(packet, packet[6])
    if where.proto != IPPROTO_UDP or where.offset + 4 > len(packet):
        return True
    at = where.offset
    ports = packet[at] << 8 | packet[at + 1], packet[at + 2] << 8 | packet[at + 3]
    sock = stack.udp.lookup(packet[8:24], ports[0], packet[24:40], ports[1], dev)
    return sock is not None and sock.bound_dev_if == dev.index

"""A datagram, or many at once, on the way from its endpoint to IP (RFC 768).

With a segment size (UDP_SEGMENT, udp(7)) one call sends many datagrams: what it is given is cut into pieces of that size, of which
only the last may be shorter. They travel as one super-frame and are cut as late as possible (`uso`). Measured on 6.18: at most 128
of them, none longer than the path takes, all with checksums; path MTU discovery looks at the whole, so that most are sent without DF.
Counters: UdpOutDatagrams, Udp6OutDatagrams (one for all), Ip6OutRequests (refused ones as well).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from pytcp.wire.checksum import pseudo
from pytcp.wire.ipv4 import IPPROTO_UDP
from pytcp.wire.udp import build_header, full_checksum

from . import ipv4, ipv6, selfcopy
from .route import MULTICAST, Dst

if TYPE_CHECKING:
    from .datagram import UdpSocket
    from .interface import Interface

DONT, WANT, DO, PROBE, INTERFACE, OMIT = range(6)

HEADERS4, HEADERS6 = 28, 48  # IP's and ours
MAX_PAYLOAD4 = 65507
MAX_PAYLOAD6 = 65527
MAX_SEGMENTS = 128


class Control(NamedTuple):
    """What the control data of one datagram asks for, in place of the endpoint's options."""

    tos: int | None = None
    ttl: int | None = None
    source: bytes | None = None  # b"": as the route says, whatever the endpoint is bound to
    dev: Interface | None = None
    dontfrag: bool | None = None
    gso_size: int | None = None
    flow: int = 0  # IPv6 flow label


PLAIN = Control()


def _segment_size(gso_size: int, size: int, headers: int, mtu: int, no_check: bool) -> int:
    """Bytes of each datagram that `size` bytes are cut into by a segment size, 0 when they are one.

    Raises OSError: EMSGSIZE for datagrams that the path does not take, EINVAL for more than 128 or without checksums."""
    if headers + min(size, gso_size) > mtu:
        raise OSError(errno.EMSGSIZE, f"the path takes packets of {mtu} bytes")
    if size > gso_size * MAX_SEGMENTS:
        raise OSError(errno.EINVAL, f"{size} bytes are more than {MAX_SEGMENTS} datagrams of {gso_size}")
    if no_check:
        raise OSError(errno.EINVAL, "a segment size, and no checksums")
    return gso_size if size > gso_size else 0


def _datagram(saddr: bytes, daddr: bytes, sport: int, dport: int, data: bytes, no_check: bool, gso_size: int) -> bytes:
    """Header and data; of a super-frame the checksum is that of the pseudo-header, as a device wants it."""
    size = 8 + len(data)
    if gso_size:
        csum = pseudo(saddr, daddr, IPPROTO_UDP, size) % 0xFFFF
    elif no_check:
        csum = 0
    else:
        csum = full_checksum(saddr, daddr, build_header(sport, dport, size, 0) + data)
    return build_header(sport, dport, size, csum) + data


def check_size(sock: UdpSocket, dst: Dst, port: int, size: int, control: Control) -> tuple[int, int]:
    """(bytes of the longest packet, segment size or 0) of `size` bytes that go to `dst`.

    Raises OSError EMSGSIZE for more than a datagram can hold, or the path takes where it may not be cut."""
    four = dst.family == 4
    gso_size = sock.gso_size if control.gso_size is None else control.gso_size
    if four:
        mode = sock.pmtu_disc
        mtu = dst.mtu if mode <= DO else dst.dev.mtu
        whole, headers = mode not in (DONT, WANT, OMIT), HEADERS4
    else:
        mode = sock.pmtu_disc6
        mtu = dst.mtu if mode <= DO else dst.dev.mtu6
        mtu = min(mtu, sock.frag_size or mtu)
        whole = mode in (DO, PROBE, INTERFACE) or (sock.dontfrag if control.dontfrag is None else control.dontfrag)
        headers = HEADERS6
    if (headers + size > mtu and whole and not gso_size) or size > (MAX_PAYLOAD4 if four else MAX_PAYLOAD6):
        raise sock.too_long(dst, port, mtu)
    return mtu, gso_size


def send4(sock: UdpSocket, dst: Dst, saddr: bytes, data: bytes, port: int, control: Control) -> None:
    """Send over IPv4. Raises OSError EMSGSIZE, EINVAL, EPIPE, and what was pending."""
    stack = sock.stack
    size = HEADERS4 + len(data)
    mtu, gso_size = check_size(sock, dst, port, len(data), control)
    sock.claim()
    if gso_size:
        gso_size = _segment_size(gso_size, len(data), HEADERS4, mtu, sock.no_check)
    mode = sock.pmtu_disc
    df = mode in (DO, PROBE) or (mode == WANT and size <= mtu and not dst.mtu_lock)
    ident: int | None = None
    if sock.raddr:
        ident = sock.ip_id & 0xFFFF
        sock.ip_id += 1
    elif mode in (DO, PROBE):
        ident = 0
    multicast = dst.kind == MULTICAST
    ttl = control.ttl if control.ttl is not None else sock.multicast_ttl if multicast else sock.ttl
    tos = sock.tos if control.tos is None else control.tos
    datagram = _datagram(saddr, dst.daddr, sock.lport, port, data, sock.no_check, gso_size)
    stack.mib.UdpOutDatagrams += 1
    selfcopy.send(stack, dst, saddr, datagram, tos, ttl or stack.sysctl.ip_default_ttl, sock.multicast_loop, gso_size)
    if multicast and not ttl:
        return  # for this host only
    ipv4.output(stack, dst, saddr, IPPROTO_UDP, datagram, tos=tos, ttl=ttl, df=df, ident=ident, mtu=mtu, gso_size=gso_size)


def send6(sock: UdpSocket, dst: Dst, saddr: bytes, data: bytes, port: int, control: Control) -> None:
    """Send over IPv6. Raises OSError EMSGSIZE, EINVAL, EPIPE, and what was pending."""
    stack = sock.stack
    mtu, gso_size = check_size(sock, dst, port, len(data), control)
    sock.claim()
    if gso_size:
        try:
            gso_size = _segment_size(gso_size, len(data), HEADERS6, mtu, sock.no_check6_tx)
        except OSError:
            stack.mib.Ip6OutRequests += 1  # Linux refuses it that late
            raise
    path = dst.mtu if sock.pmtu_disc6 <= DO else dst.dev.mtu6
    labelled = sock.autoflowlabel and stack.sysctl.auto_flowlabels
    flow = control.flow or (stack.flow_label(saddr, dst.daddr, sock.lport, port, IPPROTO_UDP) if labelled else 0)
    multicast = dst.kind == MULTICAST
    hops = control.ttl if control.ttl is not None else sock.multicast_hops if multicast else sock.hops
    tclass = sock.tclass if control.tos is None else control.tos
    datagram = _datagram(saddr, dst.daddr, sock.lport, port, data, sock.no_check6_tx, gso_size)
    stack.mib.Udp6OutDatagrams += 1
    selfcopy.send(stack, dst, saddr, datagram, tclass, stack.sysctl.hop_limit if hops < 0 else hops, sock.multicast_loop6, gso_size)
    if multicast and not hops:
        return  # for this host only
    limit = mtu if HEADERS6 + len(data) > path else path  # IPV6_MTU says how long fragments are, not when there are any
    ipv6.output(stack, dst, saddr, IPPROTO_UDP, datagram, tclass=tclass, flow=flow, hops=hops, mtu=limit, gso_size=gso_size)

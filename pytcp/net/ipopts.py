"""IPv4 options of received packets: checked, recorded into, and echoed in answers (RFC 791, RFC 1122 §3.2.1.8).

Record route and timestamp are filled in once when a packet arrives for us and once more in what
answers it; everything else is looked at and forgotten. Source routes are refused
(`accept_source_route` is 0, and there is no forwarding to follow them with).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.wire.ipv4 import IPOPT_LSRR, IPOPT_SSRR, IPOPT_TS_PRESPEC, RecordRoute, TimestampOption, walk_options

if TYPE_CHECKING:
    from pytcp.wire.ipv4 import Ipv4Option

    from .packet import Packet

DAY_MS = 24 * 3600 * 1000


class SourceRouted(Exception):
    """The packet has a source route, which is not accepted."""


def ms_since_midnight(realtime_ns: int) -> int:
    """Time as options and ICMP timestamps carry it: ms since midnight UT."""
    return realtime_ns // 1_000_000 % DAY_MS


def receive(pkt: Packet, own: bytes, ms: int) -> None:
    """Check the options of `pkt`, record `own` and `ms` in them, and keep them in `pkt.options`.

    The packet's bytes change with them, as those an ICMP error quotes do; its checksum does not.
    Raises WireError with the offset a parameter problem points to, or SourceRouted.
    """
    data = bytearray(pkt.data)
    found: list[Ipv4Option] = []
    for at, option in walk_options(pkt.data[20 : pkt.off]):
        if isinstance(option, RecordRoute):
            if option.kind in (IPOPT_LSRR, IPOPT_SSRR):
                raise SourceRouted
            option = option.record(own)
        elif isinstance(option, TimestampOption):
            if not (option.full and option.flag == IPOPT_TS_PRESPEC):
                option = option.record(own, ms)
        else:
            continue
        raw = option.emit()
        data[20 + at : 20 + at + len(raw)] = raw
        found.append(option)
    pkt.data = bytes(data)
    pkt.options = found


def answer(options: list[Ipv4Option] | None, own: bytes, ms: int) -> bytes:
    """The options of a packet that answers one with these."""
    raw = b""
    for option in options or ():
        if isinstance(option, RecordRoute):
            raw += option.record(own).emit()
        elif isinstance(option, TimestampOption):
            raw += (option if option.full else option.record(own, ms)).emit()
    return raw + bytes(-len(raw) & 3)

"""IPv6 extension headers as a receiver takes them (RFC 8200 §4): options and routing.

Linux is stricter than the RFC about padding, which is free room for covert or wasteful senders: PadN
must be zero, and no more than 7 bytes of padding in a row (9b905fe68433, 3.5). Options nobody knows
say themselves what to do with the packet; of those that may be skipped at most `max_*_opts_number`.
Every packet dropped here counts as Ip6InHdrErrors, except as noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytcp.wire.errors import WireError
from pytcp.wire.icmpv6 import ERRONEOUS_HEADER, PARAMETER_PROBLEM, UNKNOWN_OPTION
from pytcp.wire.ipv6 import (
    ACTION_DISCARD,
    ACTION_ERROR_UNICAST,
    ACTION_SKIP,
    OPT_JUMBO,
    OPT_PAD1,
    OPT_PADN,
    OPT_ROUTER_ALERT,
    Ipv6Option,
    iter_options,
)

from . import icmpv6
from .packet import TO_US

if TYPE_CHECKING:
    from .packet import Packet
    from .stack import Stack

MAX_PADDING = 7

RH_RPL = 3
RH_SEGMENT = 4


def hop_by_hop(stack: Stack, pkt: Packet) -> bool:
    """Read the hop-by-hop header behind the IPv6 header; False: the packet is gone."""
    return _options(stack, pkt, True, stack.sysctl.max_hbh_opts_number)


def destination(stack: Stack, pkt: Packet) -> bool:
    """Read a destination options header; False: the packet is gone."""
    return _options(stack, pkt, False, stack.sysctl.max_dst_opts_number)


def _advance(pkt: Packet, length: int) -> None:
    """Step over the header at `pkt.off`."""
    pkt.pointer = pkt.off
    pkt.proto = pkt.data[pkt.off]
    pkt.off += length


def _header_length(stack: Stack, pkt: Packet) -> int:
    """Bytes of the header at `pkt.off`, or 0 (counted) where it does not fit."""
    data = pkt.data
    off = pkt.off
    if off + 8 <= len(data):
        length = 8 + 8 * data[off + 1]
        if off + length <= len(data):
            return length
    stack.mib.Ip6InHdrErrors += 1
    return 0


def _options(stack: Stack, pkt: Packet, hop: bool, limit: int) -> bool:
    length = _header_length(stack, pkt)
    if not length:
        return False
    padding = 0
    unknown = 0
    try:
        for option in iter_options(pkt.data, pkt.off + 2, pkt.off + length):
            kind = option.kind
            if kind in (OPT_PAD1, OPT_PADN):
                padding += 1 if kind == OPT_PAD1 else 2 + len(option.data)
                if padding > MAX_PADDING or any(option.data):
                    return _drop(stack)
                continue
            padding = 0
            if hop and kind == OPT_ROUTER_ALERT:
                if len(option.data) != 2:
                    return _drop(stack)
            elif hop and kind == OPT_JUMBO:
                return _jumbo(stack, pkt, option)
            else:
                unknown += 1
                if not _unknown(stack, pkt, option, unknown > limit >= 0):
                    return False
    except WireError:
        return _drop(stack)
    _advance(pkt, length)
    return True


def _drop(stack: Stack) -> bool:
    stack.mib.Ip6InHdrErrors += 1
    return False


def _unknown(stack: Stack, pkt: Packet, option: Ipv6Option, too_many: bool) -> bool:
    """An option nobody here knows: its two high bits say what to do (RFC 8200 §4.2)."""
    action = option.action
    if action == ACTION_SKIP and not too_many:
        return True
    stack.mib.Ip6InHdrErrors += 1
    if action in (ACTION_SKIP, ACTION_DISCARD) or (action == ACTION_ERROR_UNICAST and pkt.dkind != TO_US):
        return False
    icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, UNKNOWN_OPTION, option.offset)
    return False


def _jumbo(stack: Stack, pkt: Packet, option: Ipv6Option) -> bool:
    """A jumbo payload is never accepted: no device here carries one."""
    stack.mib.Ip6InHdrErrors += 1
    if len(option.data) == 4 and option.offset & 3 == 2:
        if int.from_bytes(option.data, "big") <= 0xFFFF:
            icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, ERRONEOUS_HEADER, option.offset + 2)
        elif pkt.data[4:6] != b"\0\0":
            icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, ERRONEOUS_HEADER, option.offset)
    return False


def routing(stack: Stack, pkt: Packet) -> bool:
    """A routing header: skipped when nothing is left of it, else refused (RFC 5095); False: the packet is gone."""
    length = _header_length(stack, pkt)
    if not length:
        return False
    kind = pkt.data[pkt.off + 2]
    left = pkt.data[pkt.off + 3]
    if pkt.dkind != TO_US:
        stack.mib.Ip6InAddrErrors += 1
        return False
    if kind in (RH_RPL, RH_SEGMENT):
        # known, and switched off (rpl_seg_enabled, seg6_enabled)
        return False
    if left:
        stack.mib.Ip6InHdrErrors += 1
        icmpv6.send_error(stack, pkt, PARAMETER_PROBLEM, ERRONEOUS_HEADER, pkt.off + 2)
        return False
    _advance(pkt, length)
    return True

"""Memory a packet is charged with: the modelled kernel's skb sizes, not Python's.

Receive buffers, send buffers and the queue behind an unresolved neighbour are all bounded in
`truesize` bytes, so these numbers decide how much fits (linux-host §1, §6) and, through TCP's
scaling ratio, which window is offered (linux-tcp §14). They are the 6.18 x86-64 layout: sk_buff 256
bytes, shared info 320, small heads from a 576-byte cache, others from power-of-two slabs; what comes
in through TAP has its head sized to the frame and anything above one page in whole pages.
"""

from __future__ import annotations

SKB = 256
OVERHEAD = 576  # sk_buff and shared info
SMALL_HEAD = 576
GOOD_LINEAR = 3456  # largest frame TAP builds in a piece of a shared page
PAGE = 4096
HEAD_ROOM = PAGE - 64 - 320  # bytes of a frame that fit the head it gets when nothing says how long that should be
_TX_ROOM = 31  # headroom a sender reserves: 16 for Ethernet, 15 to align


def rx_truesize(length: int, payload: int = -1, gso: int = 1) -> int:
    """A received frame of `length` bytes with its link-layer header, `payload` of them behind the
    transport header (-1: all but 66, Ethernet + IPv4 + TCP with timestamps). gso: 0 for a single segment.

    Measured: 704 for 52 bytes, 2176 for 1514; 2, 4, 10 and 44 x 1448 in one super-frame give
    payload/truesize ratios of 203, 164, 215, 245 (of 256): the head alone is linear in the last three.
    The virtio header of a single segment does not say where a head ends: 3712 bytes of it fill a slab object of 4 KiB, the rest lies
    in pages (8448 from 4032 bytes on, 12544 from 7809).
    """
    if length <= GOOD_LINEAR:
        return ((length + 64 + 63) & ~63) + OVERHEAD
    if length + 64 < PAGE:
        return bare_rx_truesize(length)
    if not gso:
        return PAGE + SKB + ((length - HEAD_ROOM + PAGE - 1) & ~(PAGE - 1))
    if payload < 0:
        payload = length - 66
    return 832 + ((payload + PAGE - 1) & ~(PAGE - 1))


def bare_rx_truesize(length: int) -> int:
    """A packet of `length` bytes from a link without link-layer headers (TUN), which gets a head of its own.

    Measured (6.18, SO_MEMINFO): 832 for 190 bytes, 1280 for 540, 2304 for 1640, 4352 for 3640, 8448 for 5040, 12544 for 10040.
    """
    need = ((length + 64 + 63) & ~63) + (OVERHEAD - SKB)
    if need <= SMALL_HEAD:
        return SMALL_HEAD + SKB
    if need <= 2 * PAGE:
        return (1 << (need - 1).bit_length()) + SKB
    return ((need + PAGE - 1) & ~(PAGE - 1)) + SKB


def tx_truesize(length: int) -> int:
    """A packet of `length` bytes, from its IP header, that this host builds outside of TCP.

    Measured: 832 for 128 bytes, 2304 for 1500.
    """
    need = length + _TX_ROOM + (OVERHEAD - SKB)
    if need <= SMALL_HEAD:
        return SMALL_HEAD + SKB
    return (1 << (need - 1).bit_length()) + SKB


def cut_truesize(whole: int, headers: int, payload: int) -> int:
    """A datagram of `payload` bytes behind `headers` bytes from IP's on, cut from a received super-frame of `whole` bytes.

    Measured (6.18, TAP, SO_MEMINFO): 2304 for 1000 and 1280 for 500 bytes of a short frame, which are copied; 832 + 1452 each for 64000
    bytes, whose pages are shared.
    """
    return tx_truesize(headers + payload) if whole <= GOOD_LINEAR else SMALL_HEAD + SKB + payload

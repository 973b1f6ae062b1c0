"""Coalescing of received MTU frames into super-frames (GRO), for devices that do not do it themselves.

The engine then runs once per super-frame instead of once per packet, which is what makes a plain TAP
or a lossy emulated wire fast. Linux has had it since 2.6.29. A frame continues the one held for its
flow (link-layer header, addresses, ports, IPv6 flow label) when it is the next in sequence and
- acknowledgement, window, every option and every flag but FIN and PSH are the same (ECE, AE too) and
  CWR is not set,
- TTL, TOS or traffic class and DF are the same; IPv4 ids are all equal or count up by one,
- its payload is not empty and not longer than the first one's, and the sum fits into one IP packet.
A shorter payload, PSH or FIN completes the held frame with it; anything else of the flow (a pure
acknowledgement, another window, SYN, RST, padding) sends the held frame up first. IP options,
extension headers, fragments and wrong checksums are never touched. The rules, down to the order in
which frames come out, were compared with a Linux 6.18 TAP in NAPI mode; Linux also looks through
some IPv6 extension headers, and holds eight flows per hash bucket where this holds 64 in all.
Merged frames are as the kernel hands them over: lengths and IPv4 checksum right, the TCP checksum
field holding the pseudo-header's sum, `csum` CSUM_UNNECESSARY since each part was verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytcp.link.frame import CSUM_NONE, CSUM_UNNECESSARY, GSO_TCPV4, GSO_TCPV6, RxBuf, RxFrame
from pytcp.link.offload import CWR, ETHERNET, FIN_PSH, MAX_IP, TCP
from pytcp.native import ffi, lib
from pytcp.wire.checksum import ones_sum_py

MAX_HELD = 64  # flows with a frame waiting for its continuation
MAX_BATCH = 256  # frames kept between feed and flush
SLOT = 2048  # bytes per frame that an output buffer is first made for
POOL_MAX = 64
_ENDS = 0x2F  # FIN SYN RST PSH URG
_IN_FLAGS = 0xF6  # flags that must agree: all but FIN and PSH


class Gro:
    """Coalesces the frames of one link, batch by batch."""

    def __init__(self, link_header: int = ETHERNET) -> None:
        """link_header: bytes before the IP header, 14 or 0."""
        if link_header not in (0, ETHERNET):
            raise ValueError(f"link-layer header of {link_header} bytes")
        self.link_header = link_header
        self._batch: list[RxFrame] = []
        self._done: list[RxFrame] = []
        self._pinned: list[RxBuf] = []
        self._out = Output()
        if ffi is not None:
            self._rx = ffi.new("struct pytcp_rx[]", MAX_BATCH)
            self._res = ffi.new("struct pytcp_merged[]", MAX_BATCH)

    def feed(self, frame: RxFrame) -> None:
        """Take one frame; its buffer is kept until what `flush` returned has been dealt with."""
        if not self._batch and not self._done:
            self._unpin()
        if frame.buf is not None:
            frame.buf.taken += 1
            self._pinned.append(frame.buf)
        self._batch.append(frame)
        if len(self._batch) == MAX_BATCH:
            self._done += self._run()

    def flush(self) -> list[RxFrame]:
        """All frames fed since the last flush, coalesced. They may be read until the next `feed` or
        `flush`; whoever keeps one longer takes its buffer, as with frames from a device."""
        if not self._batch and not self._done:
            self._unpin()
            return []
        done = self._done + self._run()
        self._done = []
        return done

    def _unpin(self) -> None:
        pinned = self._pinned
        for buf in pinned:
            buf.release()
        pinned.clear()

    def _run(self) -> list[RxFrame]:
        batch = self._batch
        self._batch = []
        if len(batch) < 2:
            return batch
        if lib is None:
            return coalesce_py(batch, self.link_header)
        rx = self._rx
        views = []
        size = 0
        for i, frame in enumerate(batch):
            view = ffi.from_buffer(frame.data)
            views.append(view)
            entry = rx[i]
            entry.data = view
            entry.len = len(view)
            entry.gso_size = frame.gso_size
            entry.csum_ok = frame.csum
            size += len(view)
        return coalesce(rx, len(batch), size, self.link_header, self._res, self._out, batch.__getitem__)


class Output:
    """Where merged frames are built: a pool of receive buffers, one of them current."""

    __slots__ = ("pool", "buf", "base")

    def __init__(self) -> None:
        self.pool: list[RxBuf] = []
        self.buf: RxBuf | None = None
        self.base: Any = None

    def reserve(self, size: int) -> RxBuf:
        """A buffer of at least `size` bytes that nobody reads any more."""
        buf = self.buf
        if buf is not None:
            if buf.taken == 1 and len(buf.mem) >= size:
                return buf
            buf.release()  # our own hold: without it a view taken and given back would pool a buffer in use
            buf = None
        while self.pool and buf is None:
            buf = self.pool.pop()
            if len(buf.mem) < size:
                buf = None
        del self.pool[POOL_MAX:]
        if buf is None:
            buf = RxBuf(max(size, 64 * SLOT), self.pool)
        buf.taken = 1
        self.buf = buf
        self.base = ffi.from_buffer(buf.mem)
        return buf


def coalesce(rx: Any, n: int, size: int, link_header: int, res: Any, output: Output, frame_at: Callable[[int], RxFrame]) -> list[RxFrame]:
    """Run the C loop over `n` described frames of `size` bytes together and pick up what it made.

    frame_at: gives frame i as an object, asked for those that go up as they came. Needs C."""
    assert lib is not None
    buf = output.reserve(size)
    filled = lib.pytcp_gro(rx, n, link_header, output.base, len(buf.mem), res)
    view = buf.view
    # a whole buffer must not be held by a little data: few merged bytes get memory of their own
    private = sum(res[i].len for i in range(filled) if res[i].count > 1) * 4 < len(buf.mem)
    done = []
    for i in range(filled):
        entry = res[i]
        if entry.count == 1:
            index = entry.index
            frame = frame_at(index)
            frame.csum = rx[index].csum_ok
        else:
            data = view[entry.off : entry.off + entry.len]
            gso_type = GSO_TCPV6 if entry.ipv6 else GSO_TCPV4
            if private:
                frame = RxFrame(memoryview(bytes(data)), gso_type, entry.gso_size, CSUM_UNNECESSARY)
            else:
                frame = RxFrame(data, gso_type, entry.gso_size, CSUM_UNNECESSARY, buf)
            frame.counted = True
        done.append(frame)
    return done


class _Held:
    """A frame waiting for its continuation (twin)."""

    __slots__ = ("frames", "ip", "th", "payload", "mss", "flags", "fixed_id", "v6")

    def __init__(self, frame: RxFrame, look: _Look) -> None:
        self.frames = [frame]
        self.ip = look.ip
        self.th = look.th
        self.payload = self.mss = look.payload
        self.flags = look.th[13]
        self.fixed_id = False
        self.v6 = look.v6


class _Look:
    """The headers of one frame (twin); `odd`: of a flow, but never merged."""

    __slots__ = ("ip", "th", "payload", "v6", "odd")

    def __init__(self, ip: bytes, th: bytes, payload: int, v6: bool, odd: bool) -> None:
        self.ip = ip
        self.th = th
        self.payload = payload
        self.v6 = v6
        self.odd = odd

    def flow(self, link: bytes) -> bytes:
        """What all frames of its flow have in common, and no other frame."""
        if self.v6:  # version and flow label, both addresses
            first = int.from_bytes(self.ip[:4], "big") & 0xF00FFFFF
            return link + first.to_bytes(4, "big") + self.ip[8:40] + self.th[:4]
        return link + self.ip[12:20] + self.th[:4]


def _examine(frame: RxFrame, l2: int) -> _Look | None:
    data = bytes(frame.data)
    if frame.gso_size or len(data) < l2 + 40:
        return None
    ip = data[l2:]
    ethertype = int.from_bytes(data[12:14], "big")
    if ip[0] == 0x45:
        if (l2 and ethertype != 0x0800) or ip[9] != TCP or int.from_bytes(ip[6:8], "big") & 0x3FFF or ones_sum_py(ip[:20]) != 0xFFFF:
            return None
        odd = int.from_bytes(ip[2:4], "big") != len(ip) or bool(ip[6] & 0x80)
        ip_len = 20
        addresses = ip[12:20]
    elif ip[0] >> 4 == 6:
        if (l2 and ethertype != 0x86DD) or len(ip) < 60 or ip[6] != TCP:
            return None
        odd = int.from_bytes(ip[4:6], "big") != len(ip) - 40
        ip_len = 40
        addresses = ip[8:40]
    else:
        return None
    l4 = ip[ip_len:]
    th_len = (l4[12] >> 4) * 4
    if th_len < 20 or th_len > len(l4):
        return None
    if not odd and frame.csum == CSUM_NONE:
        if ones_sum_py(l4, ones_sum_py(addresses, TCP + len(l4))) != 0xFFFF:
            return None
        frame.csum = CSUM_UNNECESSARY
    return _Look(ip[:ip_len], l4[:th_len], len(l4) - th_len, ip_len == 40, odd)


def _continues(held: _Held, look: _Look) -> bool:
    ip, th, old_ip, old = look.ip, look.th, held.ip, held.th
    if look.odd or not 0 < look.payload <= held.mss or th[13] & CWR:
        return False
    if int.from_bytes(old[4:8], "big") + held.payload & 0xFFFFFFFF != int.from_bytes(th[4:8], "big"):
        return False
    if look.v6:
        if old_ip[7] != ip[7] or old_ip[:4] != ip[:4]:
            return False
    else:
        if old_ip[8] != ip[8] or old_ip[1] != ip[1] or (old_ip[6] ^ ip[6]) & 0x40:
            return False
        apart = int.from_bytes(ip[4:6], "big") - int.from_bytes(old_ip[4:6], "big") & 0xFFFF
        if len(held.frames) == 1 and apart == 0:
            held.fixed_id = True
        if apart != (0 if held.fixed_id else len(held.frames)):
            return False
    if old[8:13] != th[8:13] or (held.flags ^ th[13]) & _IN_FLAGS or old[14:16] != th[14:16] or old[20:] != th[20:]:
        return False
    return len(ip) + len(th) + held.payload + look.payload <= MAX_IP


def _merged(held: _Held, l2: int) -> RxFrame:
    frames = held.frames
    if len(frames) == 1:
        return frames[0]
    ip_len = len(held.ip)
    hdr = l2 + ip_len + len(held.th)
    data = bytearray(frames[0].data[:hdr])
    for frame in frames:
        data += frame.data[hdr:]
    l4_len = len(held.th) + held.payload
    if held.v6:
        data[l2 + 4 : l2 + 6] = l4_len.to_bytes(2, "big")
        addresses = held.ip[8:40]
    else:
        data[l2 + 2 : l2 + 4] = (20 + l4_len).to_bytes(2, "big")
        data[l2 + 10 : l2 + 12] = bytes(2)
        data[l2 + 10 : l2 + 12] = (ones_sum_py(data[l2 : l2 + 20]) ^ 0xFFFF).to_bytes(2, "big")
        addresses = held.ip[12:20]
    l4 = l2 + ip_len
    data[l4 + 13] = held.flags
    data[l4 + 16 : l4 + 18] = ones_sum_py(addresses, TCP + l4_len).to_bytes(2, "big")
    merged = RxFrame(memoryview(bytes(data)), GSO_TCPV6 if held.v6 else GSO_TCPV4, held.mss, CSUM_UNNECESSARY)
    merged.counted = True
    return merged


def coalesce_py(frames: list[RxFrame], link_header: int = ETHERNET) -> list[RxFrame]:
    """Twin of the C loop: `frames` in order of arrival, coalesced, in order of leaving."""
    done: list[RxFrame] = []
    flows: dict[bytes, _Held] = {}  # oldest first
    for frame in frames:
        look = _examine(frame, link_header)
        if look is None:
            done.append(frame)
            continue
        flow = look.flow(bytes(frame.data[:link_header]))
        held = flows.get(flow)
        if held is not None:
            if _continues(held, look):
                held.frames.append(frame)
                held.payload += look.payload
                held.flags |= look.th[13] & FIN_PSH
                if look.payload < held.mss or look.th[13] & _ENDS:
                    done.append(_merged(flows.pop(flow), link_header))
                continue
            done.append(_merged(flows.pop(flow), link_header))
        if look.odd or not look.payload or look.th[13] & _ENDS:
            done.append(frame)
            continue
        if len(flows) == MAX_HELD:
            done.append(_merged(flows.pop(next(iter(flows))), link_header))
        flows[flow] = _Held(frame, look)
    done += [_merged(held, link_header) for held in flows.values()]
    return done

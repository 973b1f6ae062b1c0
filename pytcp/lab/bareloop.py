"""The bare-loop limit: how fast can Python move super-frames through a TAP when nothing thinks about TCP?

A benchmark's yardstick, not a stack. It says just enough TCP for an error-free wire and one kernel peer on IPv4: it answers
ARP and SYN, acknowledges every frame, keeps to the peer's window, answers FIN. No checksums, options, timers, loss
recovery (a stall of 200 ms goes back to the last acknowledged byte), congestion control or sockets. One 64 KiB
`writev`/`readv` per super-frame. What pytcp reaches is printed as a ratio of this.

Services as on every stack under test: 5001 discard, 5002 source, 5003 echo, 5004 rpc (81,920 bytes in, as many out).
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from collections.abc import Callable

TUNGETVNETHDRSZ = 0x800454D7
VNET_NEEDS_CSUM = 1
VNET_GSO_TCPV4 = 1
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MASK = 0xFFFFFFFF

MSS = 1460
SUPER = 44 * MSS  # the most whole segments that fit into 64 KiB
WSCALE = 7
WINDOW = 0xFFFF
RPC_SIZE = 81920
ENDLESS = 1 << 62
DISCARD, SOURCE, ECHO, RPC = 5001, 5002, 5003, 5004


class _Conn:
    """What one connection needs: two counters each way, the peer's window, bytes owed, and headers by payload length."""

    __slots__ = ("got", "heads", "make_head", "owed", "rcv_nxt", "service", "snd_nxt", "snd_una", "window", "wscale")

    def __init__(self, service: int, rcv_nxt: int, wscale: int, make_head: Callable[[int], bytearray]) -> None:
        self.service = service
        self.snd_una = 0
        self.snd_nxt = 1
        self.rcv_nxt = rcv_nxt
        self.window = 0
        self.wscale = wscale
        self.owed = ENDLESS if service == SOURCE else 0
        self.got = 0
        self.heads: dict[int, bytearray] = {}
        self.make_head = make_head

    def head(self, length: int) -> bytearray:
        head = self.heads.get(length)
        if head is None:
            head = self.heads[length] = self.make_head(length)
        return head


class BareLoop:
    """The loop on one TAP descriptor (IFF_VNET_HDR, non-blocking), as `mac` and `address`."""

    def __init__(self, fd: int, mac: bytes, address: str) -> None:
        self.fd = fd
        self.mac = mac
        self.address = bytes(map(int, address.split(".")))
        self.vnet_len: int = struct.unpack("i", fcntl.ioctl(fd, TUNGETVNETHDRSZ, bytes(4)))[0]
        self.conns: dict[bytes, _Conn] = {}
        self.buffer = bytearray(1 << 17)
        self.view = memoryview(self.buffer)
        self.payload = memoryview(bytes(SUPER))

    def run(self, until_fd: int) -> None:
        """Serve until `until_fd` becomes readable (a pidfd: until that program ends)."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.register(until_fd, select.POLLIN)
        readv, fd, buffers, receive = os.readv, self.fd, [self.buffer], self._receive
        while True:
            events = poller.poll(200)
            if not events:
                self._go_back()
            for ready, _ in events:
                if ready == until_fd:
                    return
            try:
                for _ in range(64):
                    receive(readv(fd, buffers))
            except BlockingIOError:
                pass
            for conn in self.conns.values():
                if conn.owed:
                    self._pump(conn)

    def _go_back(self) -> None:
        for conn in self.conns.values():
            if conn.service == SOURCE:
                conn.snd_nxt = conn.snd_una
                self._pump(conn)

    def _receive(self, size: int) -> None:
        buffer = self.buffer
        eth = self.vnet_len
        ethertype = buffer[eth + 12] << 8 | buffer[eth + 13]
        if ethertype == 0x0806:
            self._arp(eth, size)
        if ethertype != 0x0800 or buffer[eth + 23] != 6:
            return
        tcp = eth + 34
        key = bytes(buffer[eth + 26 : tcp + 4])
        seq, ack, offset, flags, window = struct.unpack_from("!IIBBH", buffer, tcp + 4)
        start = tcp + (offset >> 2)
        conn = self.conns.get(key)
        if flags & SYN:
            self._accept(key, seq, self._peer_wscale(tcp + 20, start))
            return
        if conn is None:
            return
        if flags & RST:
            del self.conns[key]
            return
        if (ack - conn.snd_una) & MASK < 0x80000000:
            conn.snd_una = ack
        conn.window = window << conn.wscale
        length = (buffer[eth + 16] << 8 | buffer[eth + 17]) - 20 - (start - tcp)
        if seq != conn.rcv_nxt:
            return
        conn.rcv_nxt = (seq + length + (flags & FIN)) & MASK
        if flags & FIN:
            self._send(conn, 0, FIN | ACK)
            del self.conns[key]
        elif conn.service == ECHO and length:
            self._send(conn, length, ACK | PSH, self.view[start : start + length])
        elif length:
            if conn.service == RPC:
                conn.got += length
                if conn.got >= RPC_SIZE:
                    conn.got -= RPC_SIZE
                    conn.owed += RPC_SIZE
                    self._pump(conn)
                    return
            self._send(conn, 0, ACK)

    def _pump(self, conn: _Conn) -> None:
        for _ in range(16):
            length = min(conn.owed, SUPER)
            if not length or ((conn.snd_nxt - conn.snd_una) & MASK) + length > conn.window:
                return
            conn.owed -= length
            self._send(conn, length, ACK if conn.owed else ACK | PSH, self.payload[:length])

    def _send(self, conn: _Conn, length: int, flags: int, payload: bytes | memoryview = b"") -> None:
        head = conn.head(length)
        struct.pack_into("!IIBB", head, self.vnet_len + 38, conn.snd_nxt, conn.rcv_nxt, 0x50, flags)
        os.writev(self.fd, (head, payload))
        conn.snd_nxt = (conn.snd_nxt + length + (flags & FIN)) & MASK

    def _accept(self, key: bytes, seq: int, wscale: int) -> None:
        peer_mac = bytes(self.buffer[self.vnet_len + 6 : self.vnet_len + 12])
        service = key[10] << 8 | key[11]

        def make_head(length: int) -> bytearray:
            return self._make_head(peer_mac, key, length)

        conn = self.conns[key] = _Conn(service, (seq + 1) & MASK, wscale, make_head)
        options = struct.pack("!BBHBBBB", 2, 4, MSS, 1, 3, 3, WSCALE)
        head = self._make_head(peer_mac, key, len(options))
        struct.pack_into("!IIBB", head, self.vnet_len + 38, 0, conn.rcv_nxt, 0x70, SYN | ACK)
        os.writev(self.fd, (head, options))

    def _peer_wscale(self, at: int, end: int) -> int:
        buffer = self.buffer
        while at < end and buffer[at] != 0:
            if buffer[at] == 3:
                return buffer[at + 2]
            at += 1 if buffer[at] == 1 else buffer[at + 1]
        return 0

    def _make_head(self, peer_mac: bytes, key: bytes, length: int) -> bytearray:
        gso = (VNET_GSO_TCPV4, 54, MSS) if length > MSS else (0, 0, 0)
        vnet = struct.pack("<BBHHHH", VNET_NEEDS_CSUM, gso[0], gso[1], gso[2], 34, 16).ljust(self.vnet_len, b"\0")
        source, destination = key[4:8], key[0:4]
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40 + length, 0, 0x4000, 64, 6, 0, source, destination)
        ip = ip[:10] + (_ones_sum(ip) ^ 0xFFFF).to_bytes(2, "big") + ip[12:]
        pseudo = _ones_sum(source + destination + struct.pack("!HH", 6, 20 + length))
        tcp = struct.pack("!2s2sIIBBHHH", key[10:12], key[8:10], 0, 0, 0x50, ACK, WINDOW, pseudo, 0)
        return bytearray(vnet + peer_mac + self.mac + b"\x08\x00" + ip + tcp)

    def _arp(self, eth: int, size: int) -> None:
        request = bytes(self.buffer[eth + 14 : size])
        if request[6:8] == b"\x00\x01" and request[24:28] == self.address:
            asker = request[8:18]
            os.write(self.fd, bytes(self.vnet_len) + asker[:6] + self.mac + b"\x08\x06" + request[:6] + b"\x00\x02" + self.mac + self.address + asker)


def _ones_sum(data: bytes) -> int:
    return int.from_bytes(data, "big") % 0xFFFF

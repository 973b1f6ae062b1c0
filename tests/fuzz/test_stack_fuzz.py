"""A live stack under hostile and broken traffic: no exception, no leak, no stuck timer.

Two hosts talk over a pipe in virtual time; between them a vandal drops, repeats, swaps, truncates and
flips what passes, and throws in frames of its own: arbitrary bytes, and valid segments of the running
conversation with fields replaced. Afterwards both programs close, the vandal goes away, and everything
must come to rest by itself: no socket in the table, no socket's timer armed, no fragment kept, no byte of
memory charged.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import CSUM_NONE, RxFrame, TxFrame
from pytcp.link.pipe import PipeEnd, pipe_pair
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.tcp.sock import Sock
from pytcp.wire.checksum import checksum, pseudo

MS = 1_000_000
HOUR_NS = 3600 * 1_000_000_000
A, B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
A6, B6 = bytes.fromhex("fd" + "00" * 14 + "01"), bytes.fromhex("fd" + "00" * 14 + "02")


class World:
    """Hosts a (client) and b (server) on a pipe of MTU frames, so that damage is per packet."""

    def __init__(self, family: int) -> None:
        self.family = family
        self.runtime = VirtualRuntime()
        self.link_a, self.link_b = pipe_pair(self.runtime.heap, features=0, delay_ns=200_000)
        self.a, self.b = Stack(self.runtime, seed=1), Stack(self.runtime, seed=2)
        for stack, link, n in ((self.a, self.link_a, 1), (self.b, self.link_b, 2)):
            stack.add_interface(link, [f"10.0.0.{n}/24", f"fd00::{n}/64"])
            stack.sysctl.tcp_retries2 = 5
            stack.sysctl.tcp_orphan_retries = 3
        self.listener = self.b.new_sock(family)
        api.bind(self.listener, b"", 80)
        api.listen(self.listener, 8)
        self.client = self.a.new_sock(family)
        with contextlib.suppress(BlockingIOError):
            api.connect(self.client, B if family == 4 else B6, 80)
        self.a.flush()
        self.runtime.run_for(50 * MS)
        self.server: Sock | None = api.accept(self.listener)

    def exchange(self, rng: random.Random) -> None:
        """Both programs do something ordinary."""
        for stack, sk in ((self.a, self.client), (self.b, self.server)):
            if sk is None:
                continue
            stack.now()
            with contextlib.suppress(OSError):
                api.sendmsg(sk, bytes(rng.randrange(1, 20_000)))
            with contextlib.suppress(OSError):
                api.recv(sk, 1 << 20)
            stack.flush()

    def close(self) -> None:
        for stack, sk in ((self.a, self.client), (self.b, self.server), (self.b, self.listener)):
            if sk is not None:
                stack.now()
                api.close(sk)
                stack.flush()

    def assert_at_rest(self) -> None:
        """Everything has ended: nothing is left in tables, queues or timers."""
        self.runtime.run_for(HOUR_NS)
        for stack in (self.a, self.b):
            assert stack.table == {}
            assert stack._armed == {}
            assert stack._listeners == {}
            assert (stack.frags4.memory, stack.frags6.memory) == (0, 0)
            assert stack._owed == []
            for dev in stack.interfaces:
                dev.ring.reap()
                assert len(dev.ring) == 0
        for sk in (self.client, self.server):
            if sk is not None:
                assert (sk.wmem_queued, sk.wmem_alloc, sk.packets_out) == (0, 1, 0)
                assert sk.rmem_alloc == 0
                assert not sk.rtx_queue
                assert not sk.write_queue


class Vandal:
    """Sits on a link's receiving side and spoils what arrives."""

    def __init__(self, link: PipeEnd, rng: random.Random) -> None:
        self.deliver = link.rx
        self.link = link
        self.rng = rng
        self.seen: list[bytes] = []
        self.active = True
        link.rx = self.rx

    def rx(self, frame: RxFrame) -> None:
        if not self.active:
            self.deliver(frame)
            return
        data = bytes(frame.data)
        self.seen.append(data)
        del self.seen[:-32]
        rng = self.rng
        what = rng.random()
        if what < 0.05:
            return
        self.inject(self.spoil(data) if what < 0.35 else data)
        if what > 0.9:
            self.inject(rng.choice(self.seen))
        if what > 0.8:
            self.inject(self.forge(rng.choice(self.seen)))
        if what > 0.7:
            self.inject(self.invent(self.link))

    def inject(self, data: bytes) -> None:
        self.deliver(RxFrame(memoryview(data), csum=CSUM_NONE))

    def spoil(self, data: bytes) -> bytes:
        """Damage that checksums should catch."""
        rng = self.rng
        out = bytearray(data)
        if rng.random() < 0.3:
            return bytes(out[: rng.randrange(len(out))])
        for _ in range(rng.randrange(1, 4)):
            out[rng.randrange(len(out))] = rng.randrange(256)
        return bytes(out)

    def invent(self, link: PipeEnd) -> bytes:
        """A frame the conversation has nothing to do with, right up to its checksum: ICMP errors about what was
        seen, neighbour discovery, fragments, ARP."""
        rng = self.rng
        me, other, me6, other6 = (A, B, A6, B6) if link.mac < link.peer.mac else (B, A, B6, A6)
        quote = bytearray(rng.choice(self.seen)[14 : 14 + rng.choice([8, 28, 48, 100])])
        if quote and rng.random() < 0.5:
            quote[rng.randrange(len(quote))] = rng.randrange(256)
        info = rng.choice([0, 1, 68, 552, 1280, 1499, 1500, 65535]).to_bytes(4, "big")
        kind = rng.randrange(5)
        if kind == 0:
            body = bytes([rng.choice([0, 3, 3, 4, 5, 8, 11, 12]), rng.randrange(16), 0, 0]) + info + quote
            body = body[:2] + checksum(body).to_bytes(2, "big") + body[4:]
            return self.ip4(link, other, me, 1, body)
        if kind == 1:
            body = bytes([rng.choice([1, 2, 2, 3, 4, 128, 133, 134, 135, 136, 137]), rng.randrange(8), 0, 0]) + info + quote + rng.randbytes(rng.randrange(60))
            body = body[:2] + checksum(body, pseudo(other6, me6, 58, len(body))).to_bytes(2, "big") + body[4:]
            return self.ip6(link, other6, me6, 58, body)
        if kind == 2:
            frag = rng.choice([0x2000, 0x2001, 1, 0x3FFF, rng.randrange(1 << 16)])
            return self.ip4(link, other, me, rng.choice([1, 6, 17]), rng.randbytes(rng.choice([7, 8, 24, 1400])), frag=frag, ident=rng.randrange(4))
        if kind == 3:
            head = bytes([rng.choice([6, 17, 58, 44, 0]), 0]) + rng.choice([1, 0, 8, 0xFFF9]).to_bytes(2, "big") + rng.randrange(4).to_bytes(4, "big")
            return self.ip6(link, other6, me6, 44, head + rng.randbytes(rng.choice([0, 7, 8, 1400])))
        sender = rng.choice([other, me, bytes(4), b"\xff" * 4])
        arp = b"\0\1\x08\0\6\4" + rng.choice([1, 2, rng.randrange(1 << 16)]).to_bytes(2, "big") + rng.choice([link.peer.mac, link.mac, b"\xff" * 6]) + sender
        return link.mac + link.peer.mac + b"\x08\x06" + arp + rng.choice([link.mac, bytes(6)]) + rng.choice([me, other])

    def ip4(self, link: PipeEnd, src: bytes, dst: bytes, proto: int, body: bytes, *, frag: int = 0, ident: int = 0) -> bytes:
        words = b"".join(n.to_bytes(2, "big") for n in (0x4500, 20 + len(body), ident, frag))
        head = bytearray(words + bytes([64, proto, 0, 0]) + src + dst)
        head[10:12] = checksum(bytes(head)).to_bytes(2, "big")
        return link.mac + link.peer.mac + b"\x08\0" + bytes(head) + body

    def ip6(self, link: PipeEnd, src: bytes, dst: bytes, proto: int, body: bytes) -> bytes:
        return link.mac + link.peer.mac + b"\x86\xdd\x60\0\0\0" + len(body).to_bytes(2, "big") + bytes([proto, 255]) + src + dst + body

    def forge(self, data: bytes) -> bytes:
        """A segment of the conversation with fields replaced and the checksum made right again."""
        rng = self.rng
        out = bytearray(data)
        l4 = 34 if out[12:14] == b"\x08\x00" else 54
        proto = out[23] if l4 == 34 else out[20]
        if len(out) < l4 + 20 or proto != 6:
            return bytes(out)
        for _ in range(rng.randrange(1, 4)):
            field = rng.choice([(4, 4), (8, 4), (12, 1), (13, 1), (14, 2), (18, 2), (20, 4)])
            at, size = l4 + field[0], field[1]
            if at + size > len(out):
                continue
            value = int.from_bytes(out[at : at + size], "big")
            new = rng.choice([rng.getrandbits(size * 8), value + rng.randrange(-3000, 3000), 0, (1 << size * 8) - 1])
            out[at : at + size] = (new & ((1 << size * 8) - 1)).to_bytes(size, "big")
        out[l4 + 16 : l4 + 18] = b"\0\0"
        src, dst = (out[26:30], out[30:34]) if l4 == 34 else (out[22:38], out[38:54])
        segment = bytes(out[l4:])
        out[l4 + 16 : l4 + 18] = checksum(segment, pseudo(bytes(src), bytes(dst), 6, len(segment))).to_bytes(2, "big")
        return bytes(out)


@pytest.mark.parametrize("family", [4, 6])
@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 32))
def test_a_conversation_survives_or_ends_cleanly_under_a_vandal(family: int, seed: int) -> None:
    rng = random.Random(seed)
    world = World(family)
    vandals = [Vandal(link, rng) for link in (world.link_a, world.link_b)]
    for _ in range(25):
        world.exchange(rng)
        world.runtime.run_for(rng.randrange(1, 400) * MS // 10)
    for vandal in vandals:
        vandal.active = False
    world.close()
    world.assert_at_rest()


@pytest.mark.parametrize("family", [4, 6])
@settings(max_examples=60)
@given(frames=st.lists(st.binary(max_size=200), max_size=30), seed=st.integers(0, 1 << 32))
def test_arbitrary_frames_disturb_nothing(family: int, frames: Sequence[bytes], seed: int) -> None:
    """Any bytes, also behind an Ethernet header addressed to us, with a conversation running."""
    rng = random.Random(seed)
    world = World(family)
    for body in frames:
        head = world.link_b.mac + world.link_a.mac + rng.choice([b"\x08\x00", b"\x86\xdd", b"\x08\x06", b"\x81\x00"])
        for data in (body, head + body):
            world.link_b.rx(RxFrame(memoryview(data), csum=CSUM_NONE))
            world.link_b.rx_end()
        world.runtime.run_for(MS)
    world.exchange(rng)
    world.runtime.run_for(300 * MS)
    assert world.server is not None
    with contextlib.suppress(BlockingIOError):
        assert api.recv(world.server, 1 << 20, 0) is not None
    world.close()
    world.assert_at_rest()


@settings(max_examples=40)
@given(data=st.data())
def test_hostile_segments_at_a_listener_leave_only_bounded_state(data: st.DataObject) -> None:
    """SYNs and everything else from many sources: queues stay within the backlog, and time clears them."""
    world = World(4)
    rng = random.Random(data.draw(st.integers(0, 1 << 32)))
    for _ in range(200):
        source = bytes([10, 0, 0, rng.randrange(3, 250)])
        flags = rng.choice([2, 2, 2, 0x10, 0x12, 1, 4, 0, 0x3F, rng.randrange(256)])
        options = rng.choice([b"", b"\x02\x04\x05\xb4", rng.randbytes(4 * rng.randrange(10))])
        tcp = rng.randbytes(2) + b"\0\x50" + rng.randbytes(8) + bytes([(5 + len(options) // 4) << 4, flags]) + rng.randbytes(2) + b"\0\0" + rng.randbytes(2)
        tcp += options + rng.randbytes(rng.randrange(40))
        tcp = tcp[:16] + checksum(tcp, pseudo(source, B, 6, len(tcp))).to_bytes(2, "big") + tcp[18:]
        ip = bytearray(b"\x45\0" + (20 + len(tcp)).to_bytes(2, "big") + b"\0\0\x40\0\x40\x06\0\0" + source + B)
        ip[10:12] = checksum(bytes(ip)).to_bytes(2, "big")
        world.link_b.rx(RxFrame(memoryview(world.link_b.mac + world.link_a.mac + b"\x08\x00" + bytes(ip) + tcp), csum=CSUM_NONE))
        world.runtime.run_for(rng.randrange(0, 20) * MS)
    assert len(world.b.table) <= 2 * (8 + 1) + 1
    world.close()
    world.assert_at_rest()


def test_the_vandal_is_not_idle() -> None:
    """The fuzz means something: with a fixed seed, damage is counted and data still arrives."""
    rng = random.Random(14)
    world = World(4)
    for link in (world.link_a, world.link_b):
        Vandal(link, rng)
    for _ in range(40):
        world.exchange(rng)
        world.runtime.run_for(20 * MS)
    mib = world.b.mib
    assert mib.TcpInCsumErrors > 0
    assert world.a.mib.TcpRetransSegs > 0
    assert world.server is not None
    assert world.server.bytes_received > 20_000


def test_sending_into_a_vanished_peer_ends_by_the_timeout() -> None:
    world = World(4)
    lost: list[TxFrame] = []

    def swallow(frames: Sequence[TxFrame]) -> int:
        lost.extend(frames)
        return len(frames)

    world.link_a.send = swallow  # type: ignore[method-assign]
    api.sendmsg(world.client, b"anybody there?")
    world.a.flush()
    world.runtime.run_for(HOUR_NS)
    assert lost
    with pytest.raises(TimeoutError):
        api.recv(world.client, 100, 0)

"""Whatever happens, every byte goes out at its own sequence number, and all books stay balanced.

Programs write in any size from any kind of buffer (and use the buffer again at once), the peer
acknowledges in any honest way, timers fire, completions are late, the host refuses: each transmitted
payload is compared with what was written, and `recount` counts everything again after every step.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.tcp import const, input, mtu, sendmsg, slab, tsq, xmit
from pytcp.tcp import sockopt as options
from pytcp.tcp.sock import NEVER, Sock

from .harness import MS, FakeHost, Sent, established, segment
from .recount import SENDING, check

IPPROTO_TCP, TCP_NODELAY, TCP_CORK = 6, 1, 3
MSS = 1000

sizes = st.one_of(st.integers(1, 40), st.integers(1, 3000), st.integers(900, 1100), st.integers(4000, 70_000))
fraction = st.integers(0, 1000)
write = st.tuples(
    st.just("write"),
    st.sampled_from(["bytes", "bytearray", "memoryview", "words"]),
    sizes,
    st.sampled_from([0, 0, 0, const.MSG_MORE, const.MSG_EOR, const.MSG_OOB]),
)
ack = st.tuples(st.just("ack"), fraction, st.booleans())
sack = st.tuples(st.just("sack"), fraction, st.lists(st.tuples(fraction, fraction), min_size=1, max_size=3), st.booleans())
steps = st.one_of(
    write,
    write,
    ack,
    ack,
    sack,
    st.tuples(st.just("wait"), st.sampled_from([10_000, 300_000, 5 * MS, 45 * MS, 300 * MS, 3000 * MS])),
    st.tuples(st.just("complete"), st.integers(1, 5)),
    st.tuples(st.just("window"), st.sampled_from([0, 1, 999, 1000, 1001, 5000, 40_000, 1 << 20])),
    st.tuples(st.just("option"), st.sampled_from([TCP_NODELAY, TCP_CORK]), st.booleans()),
    st.tuples(st.just("refuse"), st.sampled_from([0, 0, 1, -105])),
    st.tuples(st.just("mtu"), st.integers(300, 1040)),
    st.tuples(st.just("pace"), st.integers(20_000, 5_000_000)),
)


class World:
    """One sender, the bytes its program wrote, and a peer that only acknowledges what was sent."""

    def __init__(self, complete: str, **fields: Any) -> None:
        self.host = FakeHost(complete=complete)
        self.sk: Sock = established(self.host, mss=MSS, srtt_us=20_000, **fields)
        self.sk.sndbuf = 200_000
        self.written = bytearray()
        self.window = 1 << 20
        self.sent_up_to = 1
        self.refused = False
        self.seen: list[Sent] = []

    def step(self, step: tuple[Any, ...]) -> None:
        getattr(self, "do_" + step[0])(*step[1:])
        self.look()

    def look(self) -> None:
        """Compare what was just transmitted with what was written, then count."""
        for sent in self.host.take():
            self.seen.append(sent)
            if sent.length:
                start = sent.seq - 1
                assert start >= 0
                assert sent.payload == self.written[start : start + sent.length], (sent.seq, sent.length)
            end = sent.seq + sent.length + ("F" in sent.flags)
            self.sent_up_to = max(self.sent_up_to, end)
        check(self.sk, self.refused)

    # ------------------------------------------------------------ what can happen

    def do_write(self, kind: str, size: int, flags: int) -> None:
        sk = self.sk
        if sk.shutdown or sk.state != const.ESTABLISHED:
            return
        start = len(self.written)
        data = bytes((start + i) * 31 + (start + i >> 8) & 0xFF for i in range(size))
        buf: Any = data
        mutable = None
        if kind != "bytes":
            if kind == "words":
                data = data[: size & ~3]
            mutable = bytearray(data)
            buf = mutable if kind == "bytearray" else memoryview(mutable) if kind == "memoryview" else memoryview(mutable).cast("I")
        # what is transmitted during the call is compared afterwards
        self.written += data
        try:
            taken = sendmsg.sendmsg(sk, buf, flags)
        except OSError:
            taken = 0
        del self.written[start + taken :]
        if mutable is not None:
            del buf
            mutable[:] = bytes(len(mutable))

    def do_window(self, size: int) -> None:
        self.window = size

    def receive(self, upto: int, blocks: tuple[tuple[int, int], ...] = ()) -> None:
        sk = self.sk
        if sk.state in SENDING:
            input.receive(sk, segment(sk, ack=upto, sack=blocks, window=self.window))

    def do_ack(self, part: int, whole_segments: bool) -> None:
        una = self.sk.snd_una - self.sk.iss
        upto = una + (self.sent_up_to - una) * part // 1000
        if whole_segments and upto < self.sent_up_to:
            upto = una + (upto - una) // MSS * MSS
        self.receive(upto)

    def do_sack(self, part: int, ranges: list[tuple[int, int]], whole_segments: bool) -> None:
        una = self.sk.snd_una - self.sk.iss
        span = self.sent_up_to - una
        upto = una + span * part // 4000
        blocks = []
        for a, b in ranges:
            left, right = sorted((una + span * a // 1000, una + span * b // 1000))
            if whole_segments:
                left = una + (left - una) // MSS * MSS
            if upto < left < right:
                blocks.append((left, right))
        self.receive(upto, tuple(blocks))

    def do_wait(self, ns: int) -> None:
        self.host.advance(ns)

    def do_complete(self, n: int) -> None:
        ring = self.host.in_ring
        for _ in range(min(n, len(ring))):
            sk, skb, truesize = ring.pop(0)
            tsq.wfree(sk, skb, truesize)

    def do_option(self, name: int, on: bool) -> None:
        if self.sk.state in SENDING:
            options.setsockopt(self.sk, IPPROTO_TCP, name, int(on))

    def do_refuse(self, verdict: int) -> None:
        self.host.refuse = verdict
        self.refused = True

    def do_mtu(self, size: int) -> None:
        sk = self.sk
        if sk.state in SENDING:
            sk.dst.mtu = size
            mtu.reduced(sk, size)

    def do_pace(self, rate: int) -> None:
        if self.sk.state in SENDING:
            options.setsockopt(self.sk, 1, 47, rate)

    def fin(self) -> None:
        sk = self.sk
        if sk.state == const.ESTABLISHED:
            sk.state = const.FIN_WAIT1
            sk.shutdown |= const.SEND_SHUTDOWN
            xmit.send_fin(sk)

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """From here on the peer takes everything: all of it must arrive, and nothing may be left over."""
        host, sk = self.host, self.sk
        host.refuse = 0
        host.complete = "at_once"
        self.window = 1 << 20
        self.do_complete(len(host.in_ring))
        self.look()
        self.fin()
        self.look()
        for _ in range(5000):
            if sk.state not in SENDING or (sk.snd_una == sk.write_seq and sk.state != const.ESTABLISHED):
                break
            if self.sent_up_to > sk.snd_una - sk.iss:
                self.receive(self.sent_up_to)
            else:
                host.advance(2000 * MS)
                self.receive(sk.snd_una - sk.iss)
            self.look()
        if sk.state == const.CLOSE:
            assert sk.sk_err, "only a timeout may end the connection here"
            return
        assert sk.snd_una == sk.write_seq == sk.iss + 1 + len(self.written) + 1
        assert (sk.packets_out, sk.wmem_queued, sk.wmem_alloc) == (0, 0, 1)
        assert sk.rtx_deadline == NEVER


def run(script: list[tuple[Any, ...]], complete: str, **fields: Any) -> None:
    taken: list[slab.Slab] = []
    original = slab.get

    def counted() -> slab.Slab:
        taken.append(original())
        return taken[-1]

    slab.get = counted
    try:
        world = World(complete, **fields)
        for step in script:
            world.step(step)
        world.finish()
    finally:
        slab.get = original
    held = {id(s) for s in taken if s.refs}
    assert held <= {id(world.sk.slab)}, "every slab but the one being filled is back in the pool"


relaxed = settings(max_examples=200)
scripts = st.lists(steps, min_size=5, max_size=60)


@relaxed
@given(scripts)
def test_with_sack_every_byte_goes_out_at_its_own_number(script: list[tuple[Any, ...]]) -> None:
    run(script, "manual")


@relaxed
@given(scripts)
def test_without_sack_every_byte_goes_out_at_its_own_number(script: list[tuple[Any, ...]]) -> None:
    run(script, "manual", sack=False)


@relaxed
@given(scripts)
def test_with_completions_at_once_and_timestamps_every_byte_goes_out_at_its_own_number(script: list[tuple[Any, ...]]) -> None:
    run(script, "at_once", timestamps=True, cc="cubic")

"""Queueing disciplines under TCP: fq as the one who keeps departure times, fairness, drops that TCP hears of, and what waits is charged."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.delayed import Delayed
from pytcp.link.frame import TxFrame
from pytcp.link.pipe import PipeEnd, pipe_pair
from pytcp.link.qdisc import Fq, Htb, Pfifo
from pytcp.link.qdisc.base import wire_size
from pytcp.net.addr import LOOPBACK4
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.tcp.const import CA_CWR, CA_RECOVERY
from pytcp.tcp.pacing import STATUS_FQ, STATUS_NEEDED, STATUS_NONE
from pytcp.tcp.sock import NEVER, Sock
from pytcp.tcp.sockopt import setsockopt

from .net_world import MS, PEER4, S, dial, serve, transfer

SOL_SOCKET = 1
SO_MAX_PACING_RATE = 47
IPPROTO_TCP = 6
TCP_CONGESTION = 13
TCP_TX_DELAY = 37


class World:
    """A sender with a discipline, a receiver, and when which frame with payload left the sender."""

    def __init__(self, qdisc: Any = None, delay_ns: int = 5 * MS, **options: Any) -> None:
        self.runtime = VirtualRuntime()
        ends = pipe_pair(self.runtime.heap, delay_ns=delay_ns)
        self.sender, self.receiver = Stack(self.runtime, seed=1), Stack(self.runtime, seed=2)
        self.left: list[tuple[int, int, TxFrame]] = []  # time, payload, frame
        self._watch(ends[0])
        self.dev = self.sender.add_interface(ends[0], ["10.0.0.1/24"], qdisc=qdisc, **options)
        self.receiver.add_interface(ends[1], ["10.0.0.2/24"])
        self.listener = serve(self.receiver, 4, 80)

    def _watch(self, end: PipeEnd) -> None:
        send = end.send

        def noting(frames: Any) -> int:
            for frame in frames:
                payload = frame.length - len(frame.head)
                if payload:
                    self.left.append((self.runtime.now(), payload, frame))
            return send(frames)

        end.send = noting  # type: ignore[method-assign]

    def connect(self, rate: int = 0, cc: bytes = b"") -> tuple[Sock, Sock]:
        client = dial(self.sender, PEER4, 80)
        if rate:
            setsockopt(client, SOL_SOCKET, SO_MAX_PACING_RATE, rate.to_bytes(8, "little"))
        if cc:
            setsockopt(client, IPPROTO_TCP, TCP_CONGESTION, cc)
        self.runtime.run_for(50 * MS)
        return client, api.accept(self.listener)

    def write(self, sk: Sock, data: bytes) -> None:
        """A program's write."""
        self.sender.now()
        with contextlib.suppress(BlockingIOError):
            api.sendmsg(sk, data, 0)
        self.sender.flush()

    def read(self, sk: Sock) -> bytes:
        """A program's read of whatever is there."""
        self.receiver.now()
        try:
            return bytes(api.recv(sk, 1 << 20, 0))
        except BlockingIOError:
            return b""
        finally:
            self.receiver.flush()


DATA = bytes(range(256)) * 2000  # 512,000 bytes


def test_a_paced_socket_leaves_departure_times_to_fq_and_they_are_kept_to_the_nanosecond() -> None:
    """1.25 MB/s. From the skb that reaches ten segments on, each leaves payload / rate after the one before it."""
    world = World("fq")
    client, server = world.connect(rate=1_250_000)
    assert client.pacing_status == STATUS_FQ
    assert transfer(world.runtime, client, server, DATA) == DATA
    segments = 0
    gaps = []
    for (when, payload, _), (later, _, _) in pairwise(world.left):
        segments += -(-payload // 1448)
        if segments >= 10:
            gaps.append((later - when, payload * S // 1_250_000))
    assert len(gaps) > 50
    # a departure that was late (the window was used up) moves the next by less than that
    assert sum(gap == due for gap, due in gaps) > 0.95 * len(gaps)
    assert all(gap >= due // 2 for gap, due in gaps)


@pytest.mark.parametrize(("qdisc", "delay_ms"), [("fq", 20), (None, 0)])
def test_tcp_tx_delay_is_kept_by_fq_and_by_nobody_else(qdisc: str | None, delay_ms: int) -> None:
    """5 ms each way. The round trip is measured from the write: the delay is part of it."""
    world = World(qdisc)
    client, _ = world.connect()
    srtt = client.srtt_us >> 3
    setsockopt(client, IPPROTO_TCP, TCP_TX_DELAY, 20_000)
    assert client.srtt_us >> 3 == srtt + 20_000, "corrected at once"
    written = world.runtime.now()
    world.write(client, DATA[:1000])
    world.runtime.run_for(60 * MS)
    assert [when - written for when, _, _ in world.left] == [delay_ms * MS]
    assert client.min_rtt_us == (10 + delay_ms) * 1000


@pytest.mark.parametrize(("qdisc", "timer", "waits"), [("fq", False, True), (None, True, False)])
def test_the_sockets_own_timer_rests_while_fq_works(qdisc: str | None, timer: bool, waits: bool) -> None:
    world = World(qdisc)
    client, _ = world.connect(rate=1_250_000)
    world.write(client, DATA[:60_000])
    armed = waiting = False
    for _ in range(200):
        world.runtime.run_for(100_000)
        armed |= client.pacing_deadline != NEVER
        waiting |= world.dev.qdisc is not None and world.dev.qdisc.qlen > 0
    assert (armed, waiting) == (timer, waits)


@pytest.mark.parametrize("qdisc", [None, "fq"])
def test_timer_and_fq_are_two_enforcers_of_one_schedule(qdisc: str | None) -> None:
    """30 segments at 1 MB/s over 10 ms. The first window of ten leaves at once; the burst that reaches ten segments is the first to be charged. Its
    ACKs come after 10 ms: the first burst of two is late and is charged half of its 2.896 ms, the others follow at the full distance. Who keeps the
    times is nowhere to be seen."""
    world = World(qdisc)
    client, _ = world.connect(rate=1_000_000)
    assert client.pacing_status == (STATUS_FQ if qdisc else STATUS_NEEDED)
    began = world.runtime.now()
    world.write(client, DATA[: 30 * 1448])
    world.runtime.run_for(200 * MS)
    left: dict[int, int] = {}
    for when, payload, _ in world.left:
        left[when - began] = left.get(when - began, 0) + payload // 1448
    assert list(left.items()) == [(0, 10), (10 * MS, 2)] + [(10 * MS + 1_448_000 + 2_896_000 * n, 2) for n in range(9)]


def test_fq_paces_whoever_comes_by_and_bbr_too() -> None:
    for cc in (b"", b"bbr"):
        world = World("fq")
        client, server = world.connect(cc=cc)
        assert client.pacing_status == STATUS_FQ
        assert transfer(world.runtime, client, server, DATA) == DATA
        assert world.dev.qdisc is not None and world.dev.qdisc.throttled > 0
    world = World("pfifo")
    client, _ = world.connect()
    assert client.pacing_status == STATUS_NONE


def test_what_waits_in_fq_is_charged_and_small_queues_bound_it() -> None:
    """The limit is two super-segments: two wait for their time, the rest stays in the socket (linux-tcp §3.5)."""
    world = World("fq")
    client, _ = world.connect(rate=1_000_000)
    world.write(client, DATA)
    seen = set()
    for _ in range(100):
        world.runtime.run_for(MS)
        assert world.dev.qdisc is not None
        seen.add(world.dev.qdisc.qlen)
        if world.dev.qdisc.qlen:
            assert client.wmem_alloc > 1
    assert seen == {0, 1, 2}


def test_two_connections_share_a_slow_device_evenly_under_fq() -> None:
    """Each frame takes the device half a millisecond; small queues are no help, since both may have a lot in the host."""
    world = World("fq", delay_ns=MS, tx_mode=Delayed((500_000, 500_000)))
    world.dev.ring.limit = 1
    world.sender.sysctl.tcp_limit_output_bytes = 1 << 24
    pairs = [world.connect() for _ in range(2)]
    got = [0, 0]
    for ms in range(600):
        for which, (client, server) in enumerate(pairs):
            world.write(client, DATA[:200_000])
            size = len(world.read(server))
            if ms >= 100:  # both have got going
                got[which] += size
        world.runtime.run_for(MS)
    assert sum(got) > 10_000_000
    assert abs(got[0] - got[1]) < 0.02 * sum(got)


def test_a_full_queue_is_local_congestion() -> None:
    """The frame is lost as if in the network, and the window reduced (linux-tcp §3.4)."""
    world = World(Pfifo(1), tx_mode=Delayed((2 * MS, 2 * MS)))
    pairs = [world.connect() for _ in range(3)]
    world.dev.ring.limit = 1
    got = [b"", b"", b""]
    for client, _ in pairs:
        world.write(client, DATA[:40_000])
    states = set()
    for _ in range(3000):
        world.runtime.run_for(MS)
        for which, (client, server) in enumerate(pairs):
            states.add(client.ca_state)
            got[which] += world.read(server)
    assert got == [DATA[:40_000]] * 3
    assert world.dev.qdisc is not None and world.dev.qdisc.drops > 0
    assert world.dev.tx_dropped == world.dev.qdisc.drops
    assert CA_CWR in states or CA_RECOVERY in states
    assert [client.wmem_alloc for client, _ in pairs] == [1, 1, 1]


def test_an_htb_class_holds_whole_super_frames_at_its_rate() -> None:
    world = World(Htb(12_500_000, burst=1600, cburst=1600))
    client, server = world.connect()
    assert transfer(world.runtime, client, server, DATA) == DATA
    assert max(payload for _, payload, _ in world.left) > 10 * 1448
    # between any two frames lies what the first costs at the rate, less the burst
    for (when, _, frame), (later, _, _) in pairwise(world.left):
        assert later - when >= (wire_size(frame)[0] - 1600) * 80


@pytest.mark.parametrize("mode", ["reaped", "orphan"])
def test_super_frames_wait_whole_also_where_the_device_cannot_cut_them(mode: str) -> None:
    """100 kbit/s: the first burst of two segments overdraws the class, two more wait, and each leaves with both segments at once
    (Linux cuts behind the discipline, in validate_xmit_skb)."""
    world = World(Htb(12_500, burst=1600, cburst=1600), tx_mode=mode)
    world.dev.link.features = 0
    client, server = world.connect()
    times = []
    send = world.dev.link.send
    world.dev.link.send = lambda frames: times.extend([world.runtime.now()] * sum(frame.length > 1448 for frame in frames)) or send(frames)  # type: ignore[func-returns-value, method-assign]
    world.sender.sysctl.tcp_limit_output_bytes = 1
    world.write(client, DATA[:5792])
    assert world.dev.qdisc is not None and world.dev.qdisc.qlen == 1
    world.runtime.run_for(S)
    first, second, third, fourth = times
    assert first == second < third == fourth
    assert (world.read(server), client.wmem_alloc) == (DATA[:5792], 1)


def test_the_pieces_of_a_frame_find_room_where_the_frame_does() -> None:
    world = World("pfifo", tx_mode=Delayed((2 * MS, 2 * MS)))
    world.dev.link.features = 0
    world.dev.ring.limit = 1
    client, server = world.connect()
    assert transfer(world.runtime, client, server, DATA[:100_000]) == DATA[:100_000]
    assert (world.dev.ring.limit, world.dev.ring.dropped, world.dev.tx_dropped, client.mib.TcpRetransSegs) == (1, 0, 0, 0)


def test_a_discipline_can_be_changed_while_frames_wait_and_they_are_lost_but_not_leaked() -> None:
    world = World("fq")
    client, server = world.connect(rate=200_000)
    world.write(client, DATA[:40_000])
    while not world.dev.qdisc.qlen:  # type: ignore[union-attr]
        world.runtime.run_for(MS)
    charged = client.wmem_alloc
    world.dev.set_qdisc("pfifo")
    assert world.dev.qdisc is not None and world.dev.qdisc.kind == "pfifo"
    assert client.wmem_alloc == charged, "not inside the call"
    got = b""
    for _ in range(1000):
        world.runtime.run_for(10 * MS)
        got += world.read(server)
    assert (got, client.wmem_alloc) == (DATA[:40_000], 1)
    assert client.mib.TcpRetransSegs > 0
    world.dev.set_qdisc(None)
    assert world.dev.qdisc is None
    with pytest.raises(ValueError, match="not one of"):
        world.dev.set_qdisc("sfq")


def test_closing_leaves_nothing_in_ring_and_discipline() -> None:
    world = World(Fq())
    client, _ = world.connect(rate=200_000)
    world.write(client, DATA[:100_000])
    qdisc = world.dev.qdisc
    while not qdisc.qlen:  # type: ignore[union-attr]
        world.runtime.run_for(MS)
    world.sender.close()
    assert (qdisc.qlen, len(world.dev.ring)) == (0, 0)  # type: ignore[union-attr]
    world.runtime.run_for(S)


def test_a_wrong_name_is_refused_before_anything_is_made() -> None:
    runtime = VirtualRuntime()
    stack = Stack(runtime)
    with pytest.raises(ValueError, match="'cake' is not one of pfifo, fq, htb"):
        stack.add_interface(pipe_pair(runtime.heap)[0], qdisc="cake")
    assert [dev.name for dev in stack.interfaces] == ["lo"]


@pytest.mark.parametrize("before", [True, False], ids=["from_the_first_frame", "under_traffic"])
def test_the_loopback_may_have_a_discipline_like_any_device(before: bool) -> None:
    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=1)
    lo = stack.lo
    listener = serve(stack, 4, 80)
    if before:
        lo.set_qdisc(Fq())
    client = dial(stack, LOOPBACK4, 80)
    runtime.run_for(MS)
    if not before:
        lo.set_qdisc(Fq())
    server = api.accept(listener)
    setsockopt(client, SOL_SOCKET, SO_MAX_PACING_RATE, (10_000_000).to_bytes(8, "little"))
    began = runtime.now()
    data = bytes(2_000_000)
    assert transfer(runtime, client, server, data) == data
    assert client.pacing_status == STATUS_FQ
    # the first ten segments of 64 KiB are not paced
    assert runtime.now() - began > 130 * MS, "1.35 MB at 10 MB/s"
    stack.close()
    assert not lo.ring.queue
    assert client.wmem_alloc <= 1

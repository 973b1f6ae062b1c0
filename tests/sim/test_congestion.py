"""Congestion controls over an emulated bottleneck, in virtual time: do they do what they are for?"""

from __future__ import annotations

import contextlib

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.emulator import Emulator, Impairment
from pytcp.link.pipe import pipe_pair
from pytcp.net.stack import Stack
from pytcp.tcp import api, cong
from pytcp.tcp.cong.bbr import PROBE_BW, Bbr
from pytcp.tcp.rate import AckSample
from pytcp.tcp.sock import Sock

MS = 1_000_000
SECOND = 1_000_000_000
RATE = 20_000_000  # bit/s
RTT_MS = 40
BDP = RATE // 8 * RTT_MS // 1000  # 100,000 bytes
DATA = bytes(1 << 20)


class Path:
    """A sender, a bottleneck with a tail-drop queue, a receiver that reads everything."""

    def __init__(self, control: str, queue_bytes: int, loss: float = 0.0) -> None:
        self.runtime = VirtualRuntime()
        near, far = pipe_pair(self.runtime.heap, delay_ns=RTT_MS * MS // 2)
        self.wire = Emulator(near, self.runtime.heap, 1, tx=Impairment(rate=RATE, queue_bytes=queue_bytes, loss=loss))
        self.sender, self.receiver = Stack(self.runtime, seed=1), Stack(self.runtime, seed=2)
        self.sender.add_interface(self.wire, ["10.0.0.1/24"])
        self.receiver.add_interface(far, ["10.0.0.2/24"])
        self.sender.sysctl.tcp_congestion_control = control
        listener = self.receiver.new_sock(4)
        api.bind(listener, b"", 80)
        api.listen(listener, 1)
        self.sk = self.sender.new_sock(4)
        with contextlib.suppress(BlockingIOError):
            api.connect(self.sk, bytes([10, 0, 0, 2]), 80)
        self.sender.flush()
        self.runtime.run_for(SECOND)
        peer = api.accept(listener)
        assert isinstance(peer, Sock)
        self.peer = peer

    def run(self, seconds: int) -> int:
        """Send as fast as the socket takes it for so long; returns bytes delivered to the program."""
        received = 0
        for _ in range(seconds * 100):
            self.sender.now()
            with contextlib.suppress(BlockingIOError):
                api.sendmsg(self.sk, DATA)
            self.sender.flush()
            self.runtime.run_for(10 * MS)
            self.receiver.now()
            with contextlib.suppress(BlockingIOError):
                received += len(api.recv(self.peer, 1 << 22))
            self.receiver.flush()
        return received


@pytest.mark.parametrize("control", ["reno", "cubic", "bbr"])
def test_a_flow_fills_the_bottleneck_after_its_start(control: str) -> None:
    path = Path(control, queue_bytes=BDP)
    path.run(5)
    received = path.run(5)
    # TCP payload is 1448 of 1514 bytes on the wire
    assert received > 0.9 * RATE * 5 / 8 * 1448 / 1514


def test_bbr_keeps_the_queue_short_where_cubic_fills_it() -> None:
    """A buffer of four BDPs: CUBIC's RTT grows towards 200 ms, BBR's stays near twice the path's."""
    srtt = {}
    for control in ("cubic", "bbr"):
        path = Path(control, queue_bytes=4 * BDP)
        path.run(10)
        srtt[control] = path.sk.srtt_us >> 3
    assert srtt["bbr"] < 2.2 * RTT_MS * 1000
    assert srtt["cubic"] > 2 * srtt["bbr"] or srtt["cubic"] > 120_000


def test_bbr_measures_rate_and_delay_of_the_path() -> None:
    path = Path("bbr", queue_bytes=2 * BDP)
    path.run(8)
    ca = path.sk.ca
    assert isinstance(ca, Bbr)
    assert ca.mode == PROBE_BW
    goodput = RATE / 8 * 1448 / 1514
    assert 0.9 * goodput < ca.info(path.sk)["bw"] < 1.15 * goodput
    assert RTT_MS * 1000 <= ca.min_rtt_us < (RTT_MS + 3) * 1000


def test_bbr_does_not_mistake_random_loss_for_congestion() -> None:
    """1 % loss: Reno falls to a fraction of the rate, BBR hardly notices."""
    received = {}
    for control in ("reno", "bbr"):
        path = Path(control, queue_bytes=2 * BDP, loss=0.01)
        path.run(3)
        received[control] = path.run(5)
    assert received["bbr"] > 0.8 * RATE * 5 / 8 * 1448 / 1514
    assert received["reno"] < 0.6 * received["bbr"]


def test_a_program_may_bring_its_own_congestion_control() -> None:
    @cong.register
    class Fixed(cong.CongestionControl):
        """Eight packets, whatever happens."""

        __slots__ = ()
        name = "fixed8"

        def ssthresh(self, sk: Sock) -> int:
            return 8

        def cong_avoid(self, sk: Sock, ack: int, acked: int) -> None:
            sk.snd_cwnd = 8

    path = Path("fixed8", queue_bytes=BDP)
    path.run(2)
    received = path.run(2)
    # eight packets per round trip, which is the path's and the time eight packets take on the link
    round_ms = RTT_MS + 8 * 1514 * 8 * 1000 / RATE
    assert 0.8 < received / (8 * 1448 * 2000 / round_ms) < 1.1


def test_the_syn_ack_is_told_before_the_algorithm_starts() -> None:
    """As in Linux, where tcp_ack of the SYN-ACK comes before tcp_init_transfer."""
    told = []

    @cong.register
    class Noting(cong.CongestionControl):
        name = "noting"
        has_cong_control = True

        def init(self, sk: Sock) -> None:
            told.append("init")

        def pkts_acked(self, sk: Sock, acked: int, rtt_us: int) -> None:
            told.append("pkts_acked")

        def cong_control(self, sk: Sock, ack: int, flag: int, rs: AckSample) -> None:
            told.append("cong_control")

    Path("noting", queue_bytes=BDP).run(1)
    assert told[:4] == ["pkts_acked", "cong_control", "init", "pkts_acked"]

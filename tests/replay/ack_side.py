"""Replay of recorded conversations of a Linux sender with a scripted receiver: ACKs, SACKs and silence go in.

`tests/data/receive_t/*.json` are recordings of Linux 6.18 (HZ 250) on a TAP without offloads, the kernel as
passive opener. The engine goes through the same handshake, gets the same calls and segments at the same
instants, and must send the same segments and show the same tcp_info. Times: what an event causes comes
at once; what a timer causes within the timer's granularity, because a recording does not tell where in a
tick, or in a bucket of the timer wheel, it began.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from pytcp.tcp import api, cong, const, input
from pytcp.tcp.sock import Sock
from pytcp.wire.tcp import Segment
from tests.unit.harness import MS, FakeDst, FakeHost, Sent, make_sock

DATA = Path(__file__).parent.parent / "data" / "receive_t"
US = 1_000
TICK = 4 * MS
MTU = 1500
MSS = 1460
FLAG_BITS = {"F": 1, "S": 2, "R": 4, "P": 8, ".": 0x10, "U": 0x20, "E": 0x40, "W": 0x80}
SERVER, CLIENT = b"\x0a\x4f\0\1", b"\x0a\x4f\0\2"
PORTS = (80, 40000)
PEER_ISN = 0xFFFFFC00
# what happens within this of an event is caused by it, not by a timer; a frame is stamped when the script reads it
AT_ONCE = 700 * US
# fields of tcp_info under the names of the recordings; times in us
INFO = {
    "ca": "ca_state", "cwnd": "snd_cwnd", "ssthresh": "snd_ssthresh", "rto": "rto", "backoff": "backoff", "retransmits": "retransmits",
    "unacked": "unacked", "sacked": "sacked", "lost": "lost", "retrans": "retrans", "reordering": "reordering", "reord_seen": "reord_seen",
    "dsack_dups": "dsack_dups", "delivered": "delivered", "total_rto": "total_rto", "total_rto_rec": "total_rto_recoveries", "state": "state",
    "rtt": "rtt", "rttvar": "rttvar", "min_rtt": "min_rtt",
}  # fmt: skip
OPTIONS = {"SO_SNDBUF": (1, 7), "TCP_NODELAY": (6, 1), "TCP_CORK": (6, 3)}
MEASURED = ("rtt", "rttvar", "min_rtt")
# counters that only the ACK side moves
COUNTERS = """
    TCPTimeouts TCPLossProbes TCPLossProbeRecovery TCPSackRecovery TCPRenoRecovery TCPFastRetrans TCPSlowStartRetrans TCPLostRetransmit
    TCPSpuriousRTOs TCPLossUndo TCPFullUndo TCPPartialUndo TCPDSACKUndo TCPDSACKRecv TCPDSACKRecvSegs TCPSACKReorder TCPTSReorder TCPRenoReorder
    TCPSACKReneging TCPSackRecoveryFail TCPSackFailures TCPSACKDiscard TCPOrigDataSent TCPDelivered TCPDeliveredCE TCPHPAcks TCPPureAcks
    TCPHystartTrainDetect TCPHystartTrainCwnd TCPHystartDelayDetect TCPHystartDelayCwnd TCPWinProbe TCPDSACKIgnoredDubious
    TCPSackShifted TCPSackMerged TCPSackShiftFallback
"""


class Host(FakeHost):
    """FakeHost with a one-entry demux, cutting super-segments as the recording's TAP did."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint: Any = None

    def route(self, sk: Any) -> None:
        sk.dst = FakeDst(MTU)
        sk.dst.advmss = MTU - 40

    def hash(self, sk: Any) -> None:
        sk.hashed = True
        if sk.daddr:
            self.endpoint = sk

    def unhash(self, sk: Any) -> None:
        sk.hashed = False

    def is_local(self, addr: bytes, dev_if: int = 0) -> bool:
        return addr == SERVER

    def take(self) -> list[Sent]:
        return [piece for sent in super().take() for piece in cut(sent)]


def cut(sent: Sent) -> list[Sent]:
    """The frames a super-segment becomes below TCP: PSH and FIN on the last, CWR on the first."""
    size = sent.gso_size
    if not size or sent.length <= size:
        return [sent]
    out = []
    for at in range(0, sent.length, size):
        end = min(at + size, sent.length)
        flags = sent.flags
        if end < sent.length:
            flags = flags.replace("P", "").replace("F", "")
        if at:
            flags = flags.replace("W", "")
        out.append(sent._replace(seq=sent.seq + at, length=end - at, flags=flags, gso_size=0, payload=sent.payload[at:end]))
    return out


class Replay:
    """One recording against one engine socket; `differences` is empty when they agree."""

    def __init__(self, case: dict[str, Any], phase_ns: int = 0) -> None:
        self.case = case
        self.host = Host()
        self.host.heap.now_ns += phase_ns
        self.start = self.host.now_ns
        self.differences: list[str] = []
        self.expected: list[dict[str, Any]] = []
        self.ours: list[Sent] = []
        self.compared = 0
        self.sk: Sock = make_sock(self.host)
        self.peer_scale = 0
        self.echo: dict[int, int] = {}  # the kernel's TSval -> ours
        self.last_event = self.start

    def at(self, step: dict[str, Any]) -> int:
        return self.start + int(step["t"] * 1_000_000_000 + 0.5)

    # ------------------------------------------------------------ the peer

    def segment(self, peer: dict[str, Any], iss: int) -> Segment:
        seg = Segment()
        seg.family = 4
        seg.src, seg.dst = CLIENT, SERVER
        seg.sport, seg.dport = PORTS[1], PORTS[0]
        seg.flags = sum(FLAG_BITS[c] for c in peer["flags"])
        seg.seq = (PEER_ISN + peer["seq"]) & 0xFFFFFFFF
        seg.ack = (iss + peer.get("ack", 0)) & 0xFFFFFFFF if seg.flags & const.ACK else 0
        seg.length = peer["len"]
        seg.payload = memoryview(bytes(seg.length))
        seg.window = peer["win"] >> self.peer_scale
        header = 20
        if "ts" in peer:
            seg.saw_tstamp = True
            seg.tsval = peer["ts"][0]
            seg.tsecr = self.echo.get(peer["ts"][1], 0)
            header += 12
        if "sack" in peer:
            seg.options.sack = tuple(((iss + a) & 0xFFFFFFFF, (iss + b) & 0xFFFFFFFF) for a, b in peer["sack"])
            header += 4 + 8 * len(seg.options.sack)
        opts = peer.get("opts", {})
        seg.options.mss = opts.get("mss")
        seg.options.wscale = opts.get("ws")
        seg.options.sack_perm = bool(opts.get("sackok"))
        seg.doff = header // 4
        seg.tos = 3 if peer.get("note") == "CE" else 0
        seg.nsegs = 1
        seg.truesize = (34 + header + seg.length + 64 + 63) // 64 * 64 + 576
        return seg

    # ------------------------------------------------------------ the handshake

    def open(self) -> list[dict[str, Any]]:
        """Bring a child of a listener through the recorded handshake; returns the steps after accept()."""
        case = self.case
        host = self.host
        setup = case["setup"]
        for name, value in setup.items():
            if name.startswith("tcp_"):
                setattr(host.sysctl, name, value)
        lsk = self.sk
        cong.assign(lsk, setup["cc"])
        if "SO_SNDBUF before listen" in setup:
            api.setsockopt(lsk, 1, 7, setup["SO_SNDBUF before listen"])
        lsk.saddr = SERVER
        api.bind(lsk, SERVER, PORTS[0])
        api.listen(lsk, 5)
        steps = case["steps"]
        at = next(i for i, s in enumerate(steps) if "peer" in s)
        synack = next(s["kernel"] for s in steps[at:] if "kernel" in s)
        syn = dict(steps[at]["peer"])
        if "ts" in synack:
            syn["ts"] = [synack["ts"][1], 0]
        host.advance_to(self.at(steps[at]))
        lsk.receive(self.segment(syn, 0))
        req = host.endpoint
        self.peer_scale = req.snd_wscale
        if "ts" in synack:
            self.echo[synack["ts"][0]] = req.snt_tsval_first
        last = next(i for i, s in enumerate(steps) if i > at and "peer" in s)
        host.advance_to(self.at(steps[last]))
        req.receive(self.segment(steps[last]["peer"], req.snt_isn))
        self.sk = api.accept(lsk)
        rest: list[dict[str, Any]] = steps[last + 1 :]
        return rest

    # ------------------------------------------------------------ the steps

    def run(self) -> Replay:
        steps = self.open()
        if "acks" in self.case:
            return self.run_table(steps)
        for step in steps:
            if "kernel" in step:
                self.expected.append(step)
                continue
            if "note" in step and "peer" not in step:
                continue
            self.host.advance_to(self.at(step))
            self.compare()
            self.last_event = self.host.now_ns
            if "peer" in step:
                input.receive(self.sk, self.segment(step["peer"], self.sk.iss))
            elif "app" in step:
                self.call(step)
            elif "info" in step:
                self.look(step["info"], step["t"])
        if self.expected:
            self.host.advance_to(self.at(self.expected[-1]) + 40 * MS)
        self.compare(end=True)
        self.count()
        return self

    def call(self, step: dict[str, Any]) -> None:
        text = step["app"]
        name, _, rest = text.partition("(")
        args = rest.rstrip(")").split(",")
        got: Any = None
        try:
            if name == "send":
                got = api.sendmsg(self.sk, bytes(int(args[0])), int(args[1]) if len(args) > 1 else 0)
            elif name == "recv":
                got = len(api.recv(self.sk, int(args[0])))
            elif name == "shutdown":
                api.shutdown(self.sk, api.SHUT_WR)
            elif name == "setsockopt":
                api.setsockopt(self.sk, *OPTIONS[args[0]], int(args[1]))
            elif name != "accept":
                raise AssertionError(f"unknown call {text}")
        except OSError as error:
            got = errno.errorcode[error.errno or 0]
        if "ret" in step and got != step["ret"]:
            self.differences.append(f"{step['t']}: {text} gave {got}, kernel {step['ret']}")

    def look(self, theirs: dict[str, Any], t: float) -> None:
        info = api.tcp_info(self.sk)
        for name, value in theirs.items():
            if name not in INFO:
                continue
            mine = getattr(info, INFO[name])
            # measured times carry the script's latency; the rest must agree
            allowed = max(150, value // 100) if name in MEASURED else 0
            if self.sk.tstamp_ok and name in MEASURED:
                allowed += 1000
            if abs(mine - value) > allowed:
                self.differences.append(f"{t}: {name} {mine}, kernel {value}")

    def compare(self, end: bool = False) -> None:
        """Hold what both have sent so far against each other, in order."""
        self.ours += self.host.take()
        while self.ours and self.expected:
            sent = self.ours.pop(0)
            step = self.expected.pop(0)
            kernel = step["kernel"]
            self.compared += 1
            if "ts" in kernel:
                self.echo[kernel["ts"][0]] = int.from_bytes(sent.options[4:8], "big")
            theirs = {k: kernel[k] for k in ("flags", "seq", "len", "ack", "win")} | {"ecn": kernel.get("ecn", 0)}
            mine = {
                "flags": sent.flags,
                "seq": sent.seq,
                "len": sent.length,
                "ack": sent.ack,
                "win": sent.window << self.sk.rcv_wscale,
                "ecn": sent.ecn,
            }
            if mine != theirs:
                self.differences.append(f"{step['t']}: we {mine}, kernel {theirs}")
                continue
            late = sent.t_ns - self.at(step)
            since = self.at(step) - self.last_event
            self.last_event = self.at(step)
            allowed = AT_ONCE
            if since > AT_ONCE:
                ticks = since // TICK
                allowed += TICK * (1 if ticks < 63 else 8 if ticks < 504 else 64)
            if abs(late) > allowed:
                self.differences.append(f"{step['t']}: ours {late / MS:.2f} ms later")
        if end:
            self.differences += [f"never sent: {step}" for step in self.expected]
            self.differences += [f"the kernel did not send {s.flags} {s.seq} len {s.length} at {(s.t_ns - self.start) / 1e9:.6f}" for s in self.ours]

    def count(self) -> None:
        for name in COUNTERS.split():
            ours, theirs = getattr(self.host.mib, name), self.case["counters"].get(name, 0)
            if ours != theirs:
                self.differences.append(f"counter {name}: {ours}, kernel {theirs}")

    # ------------------------------------------------------------ long flows: one row per ACK

    def run_table(self, steps: list[dict[str, Any]]) -> Replay:
        """A flow that never runs dry; each row of the table is one ACK and the cwnd it led to.

        `delivered` says how much had arrived: the receiver here takes what we sent in the order we sent
        it, but for the first copies of the `dropped` segments."""
        sk = self.sk
        # the script writes right after accept() and reads frames only when write() has returned
        self.host.advance_to(self.at(steps[0]) + 30 * US)
        api.sendmsg(sk, bytes(3_900_000), 0)
        columns = self.case["acks_columns"]
        shown = [(columns.index(name), name) for name in ("cwnd", "ssthresh", "ca_state", "packets_out") if name in columns]
        delivered_at = columns.index("delivered")
        dropped = set(self.case["setup"].get("dropped", ()))
        arrivals: list[int] = []
        received: set[int] = set()
        expected = 0
        for row in self.case["acks"]:
            self.host.advance_to(self.start + round(row[0] * 1_000_000_000))
            for sent in self.host.take():
                number = (sent.seq - 1) // MSS
                if number in dropped:
                    dropped.discard(number)
                elif sent.length:
                    arrivals.append(number)
            while len(received) < row[delivered_at] - 1 and arrivals:
                received.add(arrivals.pop(0))
            while expected in received:
                expected += 1
            above = sorted(n for n in received if n >= expected)
            peer: dict[str, Any] = {"flags": ".", "seq": 1, "len": 0, "ack": expected * MSS + 1, "win": 4_000_000}
            if above:
                peer["sack"] = [[above[0] * MSS + 1, (above[-1] + 1) * MSS + 1]]
            input.receive(sk, self.segment(peer, sk.iss))
            if sk.write_seq - sk.snd_nxt < 1_000_000:
                api.sendmsg(sk, bytes(2_000_000), 0)
            info = api.tcp_info(sk)
            ours = {"cwnd": info.snd_cwnd, "ssthresh": min(info.snd_ssthresh, 99999), "ca_state": info.ca_state, "packets_out": info.unacked}
            for column, name in shown:
                if ours[name] != row[column]:
                    self.differences.append(f"{row}: {name} {ours[name]}")
            self.compared += 1
        if self.case["counters"]:
            self.count()
        return self


def tick_phase(case: dict[str, Any]) -> int:
    """Where in a tick the case began, ns: from the jiffies in its table, or from when its timers fired."""
    if "jiffy" in case.get("acks_columns", ()):
        # the middle of the offsets that explain the most rows
        stamps = [(round(row[0] * 1_000_000), row[1]) for row in case["acks"]]
        score = []
        for offset_us in range(0, TICK // US, 5):
            base = [(t + offset_us) // (TICK // US) - jiffy for t, jiffy in stamps]
            score.append(base.count(max(set(base), key=base.count)))
        best = [i for i, n in enumerate(score) if n == max(score)]
        return best[len(best) // 2] * 5 * US
    cause = 0
    late = []
    for step in case["steps"]:
        at = round(step["t"] * 1_000_000_000)
        if "kernel" not in step:
            cause = at
        elif at - cause > MS:
            late.append(at % TICK)
            cause = at
    if not late:
        return 0
    # timers fire at tick boundaries and are read some 40 us later
    boundary: int = max(late, key=lambda r: (sum((other - r) % TICK < MS // 4 for other in late), -r))
    return (40 * US - boundary) % TICK


def load(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return case


def replay(name: str) -> Replay:
    case = load(name)
    return Replay(case, tick_phase(case)).run()


__all__ = ["DATA", "Replay", "load", "replay", "tick_phase"]

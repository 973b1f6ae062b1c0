"""Replay of recorded receiver cases: the script's segments and calls go in, ours must be the kernel's segments.

`tests/data/receive/*.json` are recordings of Linux 6.18.44 (HZ 250) driven by a scripted peer on a TAP:
each step is something the peer sent, the program called, or the kernel sent or reported (tcp_info,
SO_MEMINFO). The `random_*` ones were made by a generator of hostile peers. `replay` walks the steps in
virtual time and lists every difference. Only a timer's phase is free: the recording does not say where in
a tick it began, so `tick_phase` reads it off the times at which timers fired.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from struct import unpack_from
from typing import Any

from pytcp.tcp import api, const, handshake, input, recv, reset, rtt, rwnd, sockopt, sockopt_socket
from pytcp.tcp.delack import delack_max
from pytcp.tcp.sock import Sock
from pytcp.wire.tcp import Segment

from .harness import MS, FakeHost, Sent, flag_text, make_sock

DATA = Path(__file__).parent.parent / "data" / "receive"
FLAG_BITS = {"S": 2, "F": 1, "R": 4, "P": 8, "U": 0x20, "E": 0x40, "W": 0x80, ".": 0x10}
ERRNO = {11: "EAGAIN", 22: "EINVAL", 104: "ECONNRESET", 32: "EPIPE", 107: "ENOTCONN"}
RECV_FLAGS = {"": 0, "OOB": const.MSG_OOB, "PEEK": const.MSG_PEEK, "OOB|PEEK": const.MSG_OOB | const.MSG_PEEK}
OPTIONS = {"SO_RCVBUF": (1, 8), "SO_OOBINLINE": (1, 10), "SO_RCVLOWAT": (1, 18), "TCP_QUICKACK": (6, 12)}
OUR_ISN = 0xFFFFF000
PEER_ISN = 0xFFFFFC00
# counters the receive path moves
COUNTERS = (
    "DelayedACKs", "TCPHPHits", "TCPRcvCoalesce", "TCPRcvCollapsed", "PruneCalled", "RcvPruned", "OfoPruned", "TCPRcvQDrop", "TCPOFOQueue", "TCPOFOMerge",
    "TCPOFODrop", "TCPZeroWindowDrop", "BeyondWindow", "TCPFromZeroWindowAdv", "TCPToZeroWindowAdv", "TCPWantZeroWindowAdv", "TCPDSACKOldSent",
    "TCPDSACKOfoSent", "TCPAckCompressed", "DelayedACKLost", "TCPChallengeACK", "TCPSYNChallenge", "TCPACKSkippedChallenge", "PAWSEstab", "PAWSOldAck",
    "TCPACKSkippedPAWS", "TCPACKSkippedSeq", "TCPAbortOnData",
)  # fmt: skip


def cases(*patterns: str) -> list[str]:
    """Names of the recordings that match."""
    return sorted(path.stem for pattern in patterns for path in DATA.glob(f"{pattern}.json"))


def load(name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return case


def truesize(length: int, header: int) -> int:
    """The recording machine's receive skbs: one piece of a page, one of the general allocator, or pages behind a head."""
    frame = 34 + header + length
    piece = (frame + 64 + 63) // 64 * 64
    if (frame + 320 + 63) // 64 * 64 + 320 <= 4096:
        return piece + 576
    if frame + 64 < 4096:
        return (4096 if piece + 320 <= 4096 else 8192) + 256
    return 832 + (length + 4095) // 4096 * 4096


def host_of(sk: Sock) -> FakeHost:
    """The fake host a test made `sk` on."""
    host: Any = sk.host
    assert isinstance(host, FakeHost)
    return host


class Host(FakeHost):
    """A fake host with a demux table of one entry; what belongs to no socket is recorded like the rest."""

    def __init__(self, our_isn: int, peer_isn: int) -> None:
        super().__init__()
        self.our_isn = our_isn
        self.peer_isn = peer_isn
        self.entry: Any = None

    def hash(self, sk: Any) -> None:
        self.entry = sk
        sk.hashed = True

    def unhash(self, sk: Any) -> None:
        sk.hashed = False
        if self.entry is sk:
            self.entry = None

    def listener(self, family: int, addr: bytes, port: int) -> Sock | None:
        return None

    def reply(self, family: int, src: bytes, dst: bytes, th: bytes, payload: bytes, tos: int, ttl: int, mark: Any, flowlabel: int = 0, dev_if: int = 0) -> None:
        seq, ack, bits, window = unpack_from("!IIHH", th, 4)
        flags = flag_text(bits & 0xFF)
        # a reset without ACK in its cause has no sequence number of ours
        relative = 0 if flags == "R." else (seq - self.our_isn) & 0xFFFFFFFF
        self.sent.append(Sent(self.heap.now_ns, flags, relative, (ack - self.peer_isn) & 0xFFFFFFFF, 0, window, 0, th[20:], b"", 0, 0))


class Replay:
    """One case against one socket."""

    def __init__(self, case: dict[str, Any], phase_ns: int, ignored: frozenset[str]) -> None:
        self.case = case
        self.ignored = ignored
        self.host = Host(OUR_ISN, PEER_ISN)
        self.start_ns = self.host.heap.now_ns = self.host.heap.now_ns + phase_ns
        self.differences: list[str] = []
        self.syn_ts: tuple[int, int] | None = None
        self.expected: list[dict[str, Any]] = []
        self.ours: list[Sent] = []
        self.compared = 0
        self.sk: Sock = make_sock(self.host)
        self.host.entry = self.sk
        self.peer_scale = 0
        self.passive = any("listen" in str(s.get("app")) for s in case["steps"])

    # ------------------------------------------------------------ the peer's segments

    def segment(self, step: dict[str, Any], note: str) -> Segment:
        sk = self.sk
        seg = Segment()
        seg.flags = sum(FLAG_BITS[c] for c in step["flags"])
        seg.src, seg.dst, seg.sport, seg.dport = sk.daddr, sk.saddr, sk.dport, sk.sport
        seg.seq = (PEER_ISN + step["seq"]) & 0xFFFFFFFF
        seg.ack = (OUR_ISN + step.get("ack", 0)) & 0xFFFFFFFF if seg.flags & const.ACK else 0
        seg.length = step["len"]
        seg.payload = memoryview(bytes(i & 0xFF for i in range(step["seq"], step["seq"] + step["len"])))
        seg.window = step["win"] if seg.flags & const.SYN else step["win"] >> self.peer_scale
        header = 20
        ts = step.get("ts") or (self.syn_ts if "ts" in step.get("opts", {}).get("order", ()) else None)
        if ts:
            seg.saw_tstamp = True
            seg.tsval, seg.tsecr = ts
            header += 12
        opts = step.get("opts", {})
        seg.options.mss = opts.get("mss")
        seg.options.wscale = opts.get("ws")
        seg.options.sack_perm = bool(opts.get("sackok"))
        seg.doff = header // 4
        seg.gso_size = step.get("gso_size", 0)
        seg.nsegs = -(-seg.length // seg.gso_size) if seg.gso_size else 1
        seg.truesize = truesize(seg.length, header)
        seg.urg_ptr = step.get("urp", 0)
        seg.tos = 3 if note == "CE" else 0
        return seg

    def deliver(self, step: dict[str, Any]) -> None:
        seg = self.segment(step["peer"], step.get("note") or step["peer"].get("note", ""))
        entry = self.host.entry
        if entry is None:
            host: Any = self.host
            reset.closed_port(host, seg)
        else:
            entry.receive(seg)

    # ------------------------------------------------------------ the handshake

    def open(self) -> list[dict[str, Any]]:
        """Bring the socket through the recorded handshake; returns the steps that follow it."""
        steps = self.case["steps"]
        sk = self.sk
        setup = self.case["setup"]
        for name, value in setup.items():
            if name.startswith("tcp_"):
                setattr(self.host.sysctl, name, value)
        buffer = setup.get("SO_RCVBUF before connect") or setup.get("SO_RCVBUF before listen")
        if buffer:
            rwnd.set_rcvbuf(sk, buffer)
        sk.host.route(sk)
        sk.dst.advmss = 1460
        sk.saddr, sk.daddr, sk.sport, sk.dport = b"\x0a\x4f\0\1", b"\x0a\x4f\0\2", 80, 40000
        sk.pseudo_base = 0x0A4F + 1 + 0x0A4F + 2 + 6
        return self._open_passive(steps) if self.passive else self._open_active(steps)

    def _open_active(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        sk = self.sk
        at = next(i for i, s in enumerate(steps) if "kernel" in s)
        syn = steps[at]["kernel"]
        self.host.advance_to(self.time(steps[at]))
        sk.write_seq = OUR_ISN  # what a reused TIME-WAIT leaves: connect() starts there
        sk.state = const.SYN_SENT
        handshake.connect(sk)
        sk.ts_offset = (syn["ts"][0] - self.host.now_ns // MS) & 0xFFFFFFFF if "ts" in syn else 0
        sent = self.host.take()[0]
        if sent.window != syn["win"] or sk.rcv_wscale != syn["opts"]["ws"]:
            self.differences.append(f"SYN: window {sent.window} scale {sk.rcv_wscale}, kernel {syn['win']} {syn['opts']['ws']}")
        at = next(i for i, s in enumerate(steps) if "peer" in s)
        answer = steps[at]
        third = next(s["kernel"] for s in steps[at:] if "kernel" in s)
        if "ts" in third:
            # a SYN's own timestamp is not recorded, but echoed
            self.syn_ts = (third["ts"][1], syn["ts"][0])
        self.host.advance_to(self.time(answer))
        input.receive(sk, self.segment(answer["peer"], ""))
        self.peer_scale = answer["peer"]["opts"].get("ws", 0)
        return steps[at + 1 :]

    def _open_passive(self, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What listen and request leave when the last ACK of the handshake has come."""
        sk = self.sk
        at = next(i for i, s in enumerate(steps) if "peer" in s)
        opts = steps[at]["peer"]["opts"]
        synack_step = next(s for s in steps if "kernel" in s)
        synack = synack_step["kernel"]
        sk.iss = (1 << 32) + OUR_ISN
        sk.irs = (1 << 32) + PEER_ISN
        sk.tstamp_ok = "ts" in synack
        sk.sack_ok = True
        sk.wscale_ok = "ws" in opts
        sk.ecn_flags = 1 if "E" in synack["flags"] else 0
        self.peer_scale = sk.snd_wscale = opts.get("ws", 0)
        header = 32 if sk.tstamp_ok else 20
        full = rwnd.full_space(sk)
        clamp = full if sk.rcvbuf_locked else 0
        sk.rcv_wnd, sk.window_clamp, sk.rcv_wscale = rwnd.select_initial_window(sk, full, 1460 - header + 20, clamp, sk.wscale_ok)
        if min(sk.rcv_wnd, 65535) != synack["win"]:
            self.differences.append(f"SYN-ACK: window {sk.rcv_wnd}, kernel {synack['win']}")
        self.host.advance_to(self.time(synack_step))
        if sk.tstamp_ok:
            sk.ts_offset = (synack["ts"][0] - self.host.now_ns // MS) & 0xFFFFFFFF
            sk.ts_recent = synack["ts"][1]
        sent_at = self.host.now_ns
        last = next(i for i, s in enumerate(steps) if i > at and "peer" in s)
        self.host.advance_to(self.time(steps[last]))
        rtt.synack_rtt_meas(sk, (self.host.now_ns - sent_at) // 1000)
        sk.snd_una = sk.snd_nxt = sk.write_seq = sk.snd_up = sk.snd_sml = sk.pushed_seq = sk.iss + 1
        sk.rcv_nxt = sk.rcv_wup = sk.copied_seq = sk.irs + 1
        sk.rcv_ssthresh = sk.rcv_wnd
        sk.tcp_header_len = header
        sk.advmss = 1460 - header + 20
        sk.mss_clamp = 1460
        sk.mss_cache = sk.advmss
        sk.snd_wnd = sk.max_window = steps[last]["peer"]["win"]
        sk.snd_wl1 = sk.irs
        sk.state = const.ESTABLISHED
        rwnd.init_rcv_mss(sk)
        handshake.init_transfer(sk)
        sk.pred = True
        return [s for s in steps[last + 1 :] if s.get("app") != "accept()"]

    # ------------------------------------------------------------ the steps

    def time(self, step: dict[str, Any]) -> int:
        return self.start_ns + int(step["t"] * 1_000_000_000)

    def run(self) -> Replay:
        for step in self.open():
            if "kernel" in step:
                self.expected.append(step)
                continue
            self.host.advance_to(self.time(step))
            self.compare()
            if "peer" in step:
                self.deliver(step)
            elif "app" in step:
                self.call(step)
            elif "info" in step:
                self.look(step)
        if self.expected:
            self.host.advance_to(self.time(self.expected[-1]) + 5 * MS)
        self.compare()
        self.differences += [f"never sent: {step}" for step in self.expected]
        self.differences += [f"{(sent.t_ns - self.start_ns) / 1e9:.6f}: the kernel did not send {self.describe(sent)}" for sent in self.ours]
        self.count()
        return self

    def call(self, step: dict[str, Any]) -> None:
        text = step["app"]
        match = re.match(r"(\w+)(?:\(([\w,| ]*)\))?", text)
        assert match is not None
        try:
            got = self.perform(match[1], (match[2] or "").split(","))
        except OSError as error:
            got = ERRNO.get(error.errno or 0, str(error))
        if "ret" in step and got != step["ret"]:
            self.differences.append(f"{step['t']}: {text} gave {got}, kernel {step['ret']}")

    def perform(self, name: str, args: list[str]) -> Any:
        sk = self.sk
        if name == "recv":
            return len(recv.recv(sk, int(args[0] or 100000), RECV_FLAGS[args[1] if len(args) > 1 else ""]))
        if name == "send":
            return api.sendmsg(sk, bytes(int(args[0])))
        if name == "setsockopt":
            return sockopt.setsockopt(sk, *OPTIONS[args[0]], int(args[1]))
        if name == "shutdown":
            return api.shutdown(sk, {"RD": api.SHUT_RD, "WR": api.SHUT_WR}[args[0]])
        if name == "close":
            api.close(sk)
            return None
        if name == "SO_ERROR":
            return sockopt_socket.take_error(sk)
        if name == "poll":
            return api.poll(sk)
        assert name == "ioctl"
        return int(api.at_mark(sk)) if args[0] == "SIOCATMARK" else recv.inq(sk)

    def look(self, step: dict[str, Any]) -> None:
        sk = self.sk
        ours = {
            "rcv_ssthresh": sk.rcv_ssthresh,
            "clamp": sk.window_clamp,
            "rcv_wnd": sk.rcv_wnd,
            "rcvbuf": sk.rcvbuf,
            "rmem": sk.rmem_alloc,
            "rcv_mss": sk.rcv_mss,
            "rcv_space": sk.rcvq_space,
            "rcv_ws": sk.rcv_wscale,
            "advmss": sk.advmss,
            "ato": min(sk.ato_jiffies, delack_max(sk)) * 4000,
            "rcv_rtt": sk.rcv_rtt_us >> 3,
            "state": sk.state,
        }
        for name, value in step["info"].items():
            if name in ours and name not in self.ignored and ours[name] != value:
                self.differences.append(f"{step['t']}: {name} {ours[name]}, kernel {value}")

    def compare(self) -> None:
        """Hold what both have sent so far against each other, in order; the script may have read late."""
        self.ours += self.host.take()
        while self.ours and self.expected:
            sent = self.ours.pop(0)
            step = self.expected.pop(0)
            self.compared += 1
            theirs = {k: v for k, v in step["kernel"].items() if k in ("flags", "seq", "ack", "len", "win", "sack")}
            if theirs["flags"] == "R." and not theirs["win"]:
                theirs["seq"] = 0
            ours = self.describe(sent)
            late = sent.t_ns - self.time(step)
            if ours != theirs:
                self.differences.append(f"{step['t']}: we {ours}, kernel {theirs}")
            elif not -5 * MS <= late <= 5 * MS:
                self.differences.append(f"{step['t']}: ours {late / MS:.1f} ms off")

    def describe(self, sent: Sent) -> dict[str, Any]:
        out: dict[str, Any] = {"flags": sent.flags, "seq": sent.seq, "len": sent.length, "win": 0 if sent.flags == "R" else sent.window << self.sk.rcv_wscale}
        if "." in sent.flags:
            out["ack"] = sent.ack
        blocks = sent.options.split(b"\1\1\5", 1)
        if len(blocks) == 2:
            raw = blocks[1][1:]
            out["sack"] = [[(int.from_bytes(raw[i + j : i + j + 4], "big") - PEER_ISN) & 0xFFFFFFFF for j in (0, 4)] for i in range(0, len(raw), 8)]
        return out

    def count(self) -> None:
        for name in COUNTERS:
            ours, theirs = getattr(self.host.mib, name), self.case["counters"].get(name, 0)
            if ours != theirs and name not in self.ignored:
                self.differences.append(f"counter {name}: {ours}, kernel {theirs}")


def tick_phase(case: dict[str, Any]) -> int:
    """Where in a tick the case began, ns: its timers fired at tick boundaries, and were read some 30 us later."""
    tick = 4 * MS
    cause = 0
    late = []
    for step in case["steps"]:
        at = int(step["t"] * 1_000_000_000)
        if "kernel" not in step:
            cause = at
        elif at - cause > MS:
            late.append(at % tick)
    if not late:
        return 0
    boundary = max(late, key=lambda r: (sum((other - r) % tick < MS // 4 for other in late), -r))
    return (30_000 - boundary) % tick


def replay(name: str, ignored: frozenset[str] = frozenset()) -> Replay:
    """Run one case; `ignored` names tcp_info fields and counters that are not to be compared."""
    case = load(name)
    return Replay(case, tick_phase(case), ignored).run()

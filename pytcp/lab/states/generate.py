"""Random scripts of stimuli, by kind and seed.

A generator walks through TCP with pytcp as its guide: each next action is drawn knowing what the stack has said until then, so
that sequence numbers lie at and around the edges that matter in the state it is in. The walk is in virtual time, so that a
seed gives the same script every time (of one version of pytcp). The script is then what anybody can be given.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from pytcp.drill.flow import M32, Flow
from pytcp.drill.script import Event, Syscall
from pytcp.tcp.const import CLOSE, LISTEN, SYN_SENT

from .player import View, script_of
from .twin import TwinPlayer

SYSCTLS = "net.ipv4.tcp_rmem=4096,131072,6291456 net.ipv4.tcp_wmem=4096,16384,4194304 net.ipv4.tcp_no_metrics_save=1"
SETTINGS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("tcp_fin_timeout", (1, 2)), ("tcp_syn_retries", (1, 2)), ("tcp_synack_retries", (0, 1, 2)), ("tcp_timestamps", (0, 2)), ("tcp_sack", (0,)),
    ("tcp_window_scaling", (0,)), ("tcp_abort_on_overflow", (1,)), ("tcp_rfc1337", (1,)), ("tcp_invalid_ratelimit", (0, 100)), ("tcp_syncookies", (0, 2)),
    ("tcp_fastopen", (0, 3, 0x603, 7)), ("tcp_ecn", (0, 1)), ("tcp_retries2", (1, 2)), ("tcp_orphan_retries", (1, 2)), ("tcp_stdurg", (1,)),
    ("tcp_min_snd_mss", (500,)), ("tcp_dsack", (0,)), ("tcp_retries1", (1,)), ("tcp_early_retrans", (0,)), ("tcp_frto", (0,)),
    ("tcp_syn_linear_timeouts", (0, 1)), ("tcp_base_mss", (500,)), ("tcp_shrink_window", (1,)), ("ip_no_pmtu_disc", (1,)),
)  # fmt: skip
OPTIONS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("SOL_TCP", "TCP_NODELAY", (0, 1)), ("SOL_TCP", "TCP_CORK", (0, 1)), ("SOL_TCP", "TCP_MAXSEG", (0, 87, 88, 500, 1000, 1460, 32767, 32768)),
    ("SOL_TCP", "TCP_KEEPIDLE", (0, 1, 2)), ("SOL_TCP", "TCP_KEEPINTVL", (1, 2)), ("SOL_TCP", "TCP_KEEPCNT", (1, 2)), ("SOL_SOCKET", "SO_KEEPALIVE", (0, 1)),
    ("SOL_TCP", "TCP_SYNCNT", (0, 1, 2)), ("SOL_TCP", "TCP_LINGER2", (-1, 0, 1, 2, 100)), ("SOL_TCP", "TCP_DEFER_ACCEPT", (0, 1, 2, 5)),
    ("SOL_TCP", "TCP_WINDOW_CLAMP", (0, 100, 3000, 65535, 200000)), ("SOL_TCP", "TCP_QUICKACK", (0, 1)), ("SOL_TCP", "TCP_USER_TIMEOUT", (0, 100, 700, 1500)),
    ("SOL_TCP", "TCP_FASTOPEN", (0, 5)), ("SOL_TCP", "TCP_FASTOPEN_CONNECT", (0, 1)), ("SOL_TCP", "TCP_NOTSENT_LOWAT", (0, 1, 5000)),
    ("SOL_SOCKET", "SO_RCVBUF", (1, 2000, 10000, 100000)), ("SOL_SOCKET", "SO_SNDBUF", (1, 10000, 100000)), ("SOL_SOCKET", "SO_OOBINLINE", (0, 1)),
    ("SOL_SOCKET", "SO_RCVLOWAT", (0, 1, 10, 2000)), ("SOL_SOCKET", "SO_REUSEADDR", (0, 1)), ("IP", "IP_RECVERR", (0, 1)),
    ("SOL_SOCKET", "SO_REUSEPORT", (0, 1)),
    ("SOL_TCP", "TCP_RTO_MAX_MS", (1000, 2000)), ("SOL_TCP", "TCP_SAVE_SYN", (0, 1, 2)), ("SOL_SOCKET", "SO_PRIORITY", (0, 3)),
    ("SOL_TCP", "TCP_FASTOPEN_NO_COOKIE", (0, 1)), ("SOL_TCP", "TCP_THIN_LINEAR_TIMEOUTS", (0, 1)),
)  # fmt: skip
ASKED = (("SOL_SOCKET", "SO_ERROR"), ("SOL_TCP", "TCP_MAXSEG"), ("SOL_SOCKET", "SO_ACCEPTCONN"), ("SOL_SOCKET", "SO_TYPE"))
SYN_MSS = (0, 1, 36, 87, 88, 500, 536, 1000, 1000, 1460, 1460, 1460, 9000, 65535)
ISNS = (0, 1, 1000, 0x7FFFFFFF, 0x80000000, 0xFFFFFF00, 0xFFFFFFFE, 0xFFFFFFFF)
FAR = (1 << 31) - 400_000  # as far as is surely ahead
UNUSUAL = {
    "": 1, "P": 1, "F": 1, "SF": 0.5, "SR": 0.4, "SF.": 0.5, "FR.": 0.4, "SFRPU.": 0.4, "PU.": 1, "U.": 0.5, "FPU.": 0.4, "E.": 1, "W.": 0.7, "EW.": 0.5,
    "SEW": 0.3, "A.": 0.3, "UEW.": 0.2,
}  # fmt: skip
STRANGE = ("nop", "eol", "FO", "FO 0102030405060708", "FOEXP", "ECN")
RAW = (
    "c8040000", "0203", "0201", "0200", "030300", "0304010203", "04", "0403ff", "080a0000", "0809000000010000", "fe04f989", "1e08000000000000", "0502", "050a",
    "13", "0100", "ff02", "220261", "2206deadbeef", "0204",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """What a random script is about."""

    opening: tuple[str, ...]  # ways to begin, one is drawn
    packets: int = 10  # weights of what comes next
    calls: int = 4
    options: int = 1
    icmp: int = 0
    closing: int = 1
    odd: float = 0.3  # how often a packet's field is unusual
    syn: float = 0.3  # the same for options of a SYN
    waits: float = 0.08  # how often a timer is waited for
    settings: float = 0.5
    steps: tuple[int, int] = (6, 16)


KINDS: dict[str, Kind] = {
    "listen": Kind(("listen",), syn=0.5),
    "connect": Kind(("connect",)),
    "simultaneous": Kind(("cross",)),
    "open": Kind(("passive", "active"), odd=0.4),
    "close": Kind(("passive", "active"), closing=8, waits=0.12),
    "orphan": Kind(("orphan",), waits=0.12, odd=0.4),
    "timewait": Kind(("timewait",), odd=0.5),
    "syn": Kind(("listen", "connect"), syn=0.95, odd=0.1, steps=(3, 8)),
    "icmp": Kind(("passive", "active", "connect", "listen"), icmp=8),
    "urgent": Kind(("passive", "active"), odd=0.2),
    "calls": Kind(("nothing", "listen", "connect", "passive", "active"), packets=5, calls=10, options=6, closing=3),
    "timers": Kind(("passive", "active", "connect", "listen"), waits=0.45, options=3, steps=(5, 10), odd=0.15),
    "keepalive": Kind(("keepalive",), waits=0.5, steps=(3, 8), odd=0.2, packets=6),
    "zero": Kind(("zero",), waits=0.4, steps=(3, 9), odd=0.15),
    "fastopen": Kind(("fastopen", "fastconnect"), steps=(5, 12)),
    "closed": Kind(("nothing",), packets=12, calls=1),
    "listeners": Kind(("listeners",), packets=10, calls=6, steps=(8, 20), odd=0.15),
}
LONGEST_NS = 7_000_000_000


class Walk:
    """One random script."""

    def __init__(self, kind: str, seed: int) -> None:
        self.name = kind
        self.kind = KINDS[kind]
        self.rng = Random(f"{kind} {seed}")
        self.ip = self.rng.choices(("ipv4", "ipv6", "ipv4-mapped"), (8, 2, 1))[0]
        self.head = self._sysctls()
        self.lines: list[str] = []
        self.player = TwinPlayer(script_of([self.head, "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3"], kind, self.ip), self.ip)
        self.now = 0
        self.next_fd = 3
        self.state: dict[int, dict[str, Any]] = {}

    def text(self) -> str:
        """Walk, and return the script. `self.ip` is the mode it is for."""
        self.player.begin()
        try:
            for opening in self.rng.choices(self.kind.opening):
                getattr(self, f"_open_{opening}")()
            for _ in range(self.rng.randint(*self.kind.steps)):
                self._next()
                if self.now > LONGEST_NS:
                    break
            if self.rng.random() < self.kind.waits * 4:
                self._gap(True)
                self._packet()
        finally:
            self.player.target.close()
        return "\n".join([f"// {self.name}", self.head, *self.lines]) + "\n"

    def _sysctls(self) -> str:
        rng = self.rng
        words = [SYSCTLS]
        if rng.random() < self.kind.settings:
            for name, values in rng.sample(SETTINGS, rng.choice((1, 1, 2, 3))):
                words.append(f"net.ipv4.{name}={rng.choice(values)}")
        text = " ".join(words)
        return "`sysctl -q " + " ".join(f'{w.split("=")[0]}="{w.split("=")[1].replace(",", " ")}"' if "," in w else w for w in text.split()) + "`"

    # --- performing ---

    def _gap(self, wait: bool = False) -> None:
        rng = self.rng
        if not self.lines:
            return
        if wait:
            self.now += rng.choice((45_000_000, 210_000_000, 320_000_000, 1_050_000_000, 1_050_000_000, 1_600_000_000, 2_100_000_000))
        self.now += rng.randint(6_000, 14_000) * 1000 if rng.random() < 0.8 else rng.randint(300, 1500) * 1000

    def _do(self, text: str, wait: bool = False) -> str:
        """One action; what it gave."""
        self._gap(wait)
        event: Event = script_of([f"0 {text}"], self.name, self.ip).events[0]
        self.player.at(self.now, event)
        step = self.player.notes.steps[-1]
        self.state = step.sockets
        if isinstance(event.action, Syscall) and step.result.startswith("E") and not text.endswith("..."):
            text = f"{text.rpartition('=')[0]}= -1 {step.result}"
        self.lines.append(f"{self.now / 1e9:.6f} {text}" if self.lines else f"0 {text}")
        return step.result

    def _socket(self) -> int:
        fd, self.next_fd = self.next_fd, self.next_fd + 1
        self._do(f"socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = {fd}")
        return fd

    def _accept(self, fd: int) -> int:
        new, self.next_fd = self.next_fd, self.next_fd + 1
        result = self._do(f"accept4({fd}, ..., ..., SOCK_NONBLOCK) = {new}")
        return new if not result.startswith("E") else -1

    # --- openings ---

    def _open_nothing(self) -> None:
        self._socket()

    def _listener(self, port: int = 0) -> int:
        fd = self._socket()
        for _ in range(self.rng.choice((0, 0, 0, 1, 2))):
            self._option(fd)
        address = f"{{sa_family=AF_INET, sin_port=htons({port})}}" if port else "..."
        self._do(f"bind({fd}, {address}, ...) = ...")
        self._do(f"listen({fd}, {self.rng.choice((0, 1, 2, 5, 5))}) = ...")
        return fd

    def _open_listen(self) -> None:
        self._listener()
        if self.rng.random() < 0.8:
            self._syn()

    def _open_listeners(self) -> None:
        self._listener()

    def _open_connect(self) -> None:
        fd = self._socket()
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            self._option(fd)
        self._do(f"connect({fd}, ..., ...) = ...")

    def _open_cross(self) -> None:
        self._open_connect()
        self._syn()

    def _open_active(self) -> None:
        self._open_connect()
        self._syn(True, usual=True)

    def _open_passive(self) -> None:
        fd = self._listener()
        self._syn(usual=True)
        self._ack()
        self._accept(fd)

    def _open_orphan(self) -> None:
        self.rng.choice((self._open_active, self._open_passive))()
        self._traffic()
        live = self._connected()
        if live:
            self._do(f"close({live[-1]}) = ...")

    def _open_timewait(self) -> None:
        self.rng.choice((self._open_active, self._open_passive))()
        live = self._connected()
        if not live:
            return
        order = self.rng.choice(("active", "active", "cross", "half"))
        self._do(f"shutdown({live[-1]}, SHUT_WR) = ..." if order == "half" else f"close({live[-1]}) = ...")
        view = self._view()
        if order == "cross":
            self._segment("F.", view.rcv_nxt, 0, view.snd_nxt - 1 if view.fin else view.snd_nxt)
            self._segment(".", view.rcv_nxt, 0, view.snd_nxt)
        else:
            self._segment(self.rng.choice(("F.", "FP.")), view.rcv_nxt, self.rng.choice((0, 0, 100)), view.snd_nxt)
        view.nxt = view.rcv_nxt

    def _open_keepalive(self) -> None:
        """A connection that is probed after a second."""
        rng = self.rng
        rng.choice((self._open_active, self._open_passive))()
        for fd in self._connected()[-1:]:
            options = [("SOL_TCP", "TCP_KEEPIDLE", 1), ("SOL_TCP", "TCP_KEEPINTVL", 1), ("SOL_SOCKET", "SO_KEEPALIVE", 1)]
            options.append(("SOL_TCP", "TCP_KEEPCNT", rng.choice((1, 2, 3))))
            if rng.random() < 0.3:
                options.append(("SOL_TCP", "TCP_USER_TIMEOUT", rng.choice((500, 1500, 2500))))
            rng.shuffle(options)
            for level, name, value in options:
                self._do(f"setsockopt({fd}, {level}, {name}, [{value}], 4) = ...")

    def _open_zero(self) -> None:
        """A peer without room."""
        rng = self.rng
        rng.choice((self._open_active, self._open_passive))()
        for fd in self._connected()[-1:]:
            view = self._view()
            if rng.random() < 0.3:
                self._do(f"write({fd}, ..., 1000) = ...")
            self._segment(".", view.rcv_nxt, 0, view.snd_nxt, rng.choice((0, 0, 0, 1)))
            self._do(f"write({fd}, ..., {rng.choice((1, 1000, 5000))}) = ...")

    def _open_fastopen(self) -> None:
        fd = self._socket()
        self._do(f"bind({fd}, ..., ...) = ...")
        self._do(f"listen({fd}, 5) = ...")
        self._do(f"setsockopt({fd}, SOL_TCP, TCP_FASTOPEN, [{self.rng.choice((0, 1, 5))}], 4) = ...")
        self._syn(data=True)

    def _open_fastconnect(self) -> None:
        fd = self._socket()
        if self.rng.random() < 0.5:
            self._do(f"sendto({fd}, ..., {self.rng.choice((0, 100, 2000))}, MSG_FASTOPEN, ..., ...) = ...")
        else:
            self._do(f"setsockopt({fd}, SOL_TCP, TCP_FASTOPEN_CONNECT, [1], 4) = ...")
            self._do(f"connect({fd}, ..., ...) = ...")
            self._do(f"write({fd}, ..., 100) = ...")
        if self.rng.random() < 0.6:
            self._syn(True)

    # --- what next ---

    def _next(self) -> None:
        kind, rng = self.kind, self.rng
        wait = rng.random() < kind.waits
        if wait:
            self._gap(True)
        what = rng.choices(("packet", "call", "option", "icmp", "close", "traffic"), (kind.packets, kind.calls, kind.options, kind.icmp, kind.closing, 2))[0]
        match what:
            case "packet":
                self._packet()
            case "call":
                self._call()
            case "option":
                self._any_option()
            case "icmp":
                self._icmp()
            case "close":
                self._close()
            case "traffic":
                self._traffic()

    def _fds(self) -> list[int]:
        return list(self.state)

    def _connected(self) -> list[int]:
        return [fd for fd, seen in self.state.items() if seen.get("state", CLOSE) not in (CLOSE, LISTEN)]

    def _listening(self) -> list[int]:
        return [fd for fd, seen in self.state.items() if seen.get("state") == LISTEN]

    def _flow(self) -> Flow | None:
        return self.player.flow

    def _view(self) -> View:
        flow = self._flow()
        return self.player.view(flow) if flow is not None else View()

    # --- packets ---

    def _packet(self) -> None:
        rng, flow = self.rng, self._flow()
        states = {seen.get("state") for seen in self.state.values()}
        if self.name == "listeners":
            self._of_many()
            return
        if flow is None or (SYN_SENT in states and rng.random() < 0.5) or rng.random() < 0.06:
            self._syn(SYN_SENT in states and rng.random() < 0.8)
            return
        if rng.random() < 0.25 and not self.kind.odd > 0.45:
            self._ack()
            return
        view = self._view()
        odd = self.kind.odd
        window = max(view.window, 1)
        seq, size, ack = view.rcv_nxt, 0, view.snd_nxt
        if rng.random() < odd:
            edges = window, window - 1, window + 1, window + 1000, -view.rcv_nxt
            seq += rng.choice((-1, 1, -1000, 1000, 100, *edges, -100000, FAR, -FAR))
        if rng.random() < 0.35:
            size = rng.choice((1, 10, 100, 1000, 1000, 1460))
        if rng.random() < 0.02:
            size = 1460
            seq = view.rcv_nxt + window - 730
        if rng.random() < odd:
            una, nxt = view.snd_una, view.snd_nxt
            ack = rng.choice((una, una - 1, nxt - 1, nxt + 1, nxt + 100000, una - 100000, 0, 1, nxt + FAR))
        usual = {".": 30, "P.": 14, "F.": 12, "FP.": 3, "R": 3 + 4 * odd, "R.": 3 * odd, "S": 3 * odd, "S.": 3 * odd}
        flags = rng.choices((*usual, *UNUSUAL), (*usual.values(), *UNUSUAL.values()))[0]
        if self.name == "urgent" and rng.random() < 0.5:
            flags = flags.replace("U", "") + "U"
        self._segment(flags, seq, size, ack)

    def _segment(self, flags: str, seq: int, size: int, ack: int, win: int | None = None, ports: str = "") -> None:
        rng, view, flow = self.rng, self._view(), self._flow()
        letters = "".join(letter for letter in "FSRP.UEWA" if letter in flags) or "-"
        syn = "S" in flags
        seq = seq & M32
        if syn:
            seq = seq + (flow.remote_isn if flow is not None and flow.remote_isn is not None else 0) & M32
        text = f"< {self._ip_info()}{ports}{letters} {seq}:{seq + size & M32}({size})"
        if "." in flags:
            text += f" ack {ack & M32}"
            if view.snd_una < ack <= view.snd_nxt:
                view.snd_una = ack
        if win is None:
            win = rng.choice((1000, 1000, 1000, 1000, 0, 1, 10, 65535)) if rng.random() < 0.5 else 1000
        text += f" win {win}"
        if "U" in flags or rng.random() < 0.01:
            text += f" urg {rng.choice((0, 1, 1, 2, max(size, 1), size + 1, 100, 1000, 65535))}"
        if syn:
            text += self._syn_options("." in flags)
        else:
            text += self._options(view)
        self._do(text)

    def _ip_info(self) -> str:
        return self.rng.choice(("[ect0] ", "[ce] ", "[ect1] ", "[ttl 1] ", "[tos 16] ")) if self.rng.random() < 0.05 else ""

    def _options(self, view: View) -> str:
        rng = self.rng
        found = []
        if view.stamp is not None:
            if rng.random() < 0.9:
                val = 1000 + self.now // 1_000_000
                ecr = view.stamp
                if rng.random() < 0.15:
                    val += rng.choice((-10000, -100, -1, 1 << 31, 100000, -1000 - self.now // 1_000_000))
                if rng.random() < 0.1:
                    ecr += rng.choice((-50, 50, 5000, -ecr))
                found += ["nop", "nop", f"TS val {val & M32} ecr {ecr & M32}"]
        elif rng.random() < 0.04:
            found += ["nop", "nop", f"TS val {rng.choice((1, 1000))} ecr {rng.choice((0, 100))}"]
        if rng.random() < 0.05:
            left = view.snd_una + rng.choice((0, 1, 100, 1000, -1, -1000))
            found += ["nop", "nop", f"sack {left & M32}:{left + rng.choice((1, 100, 1000)) & M32}"]
        if rng.random() < 0.03:
            found.append(f"raw {rng.choice(RAW)}")
        return f" <{','.join(found)}>" if found else ""

    def _syn_options(self, reply: bool, usual: bool = False) -> str:
        rng = self.rng
        stamp = self._view().stamp
        ecr = (stamp or 0) if reply else 0
        pieces = [f"mss {1460 if usual else rng.choice(SYN_MSS)}"]
        if rng.random() < 0.6:
            pieces += ["sackOK"]
        if rng.random() < 0.5:
            pieces += [f"TS val {1000 + self.now // 1_000_000} ecr {ecr}"]
        if rng.random() < 0.6:
            pieces += ["nop", f"wscale {rng.choice((0, 1, 7, 7, 8, 14) if usual else (0, 1, 7, 8, 14, 15, 255))}"]
        if not usual and rng.random() < self.kind.syn:
            rng.shuffle(pieces)
            for _ in range(rng.choice((0, 1, 1, 2))):
                raw = f"raw {rng.choice(RAW)}"
                pieces.insert(rng.randint(0, len(pieces)), rng.choice((*STRANGE, raw, raw)))
            if rng.random() < 0.3:
                pieces.pop(rng.randrange(len(pieces)))
            if rng.random() < 0.1:
                pieces += [rng.choice(("mss 600", "wscale 3", "TS val 5 ecr 0", "sackOK"))]
        size = 0
        kept = []
        for piece in pieces:
            size += _size(piece)
            if size > 40:
                break
            kept.append(piece)
        return f" <{','.join(kept)}>" if kept else ""

    def _syn(self, reply: bool = False, usual: bool = False, data: bool = False) -> None:
        """A SYN, or (reply) SYN-ACK."""
        rng, flow, view = self.rng, self._flow(), self._view()
        isn = rng.choice(ISNS)
        if flow is not None and flow.remote_isn is not None and rng.random() < 0.8:
            isn = flow.remote_isn
            if rng.random() < 0.2:
                isn = isn + rng.choice((1, -1, 1000, 100000, 200000)) & M32
        size = rng.choice((0, 100, 1000)) if data or (not usual and rng.random() < 0.1) else 0
        flags = "S" + ("F" if not usual and rng.random() < 0.04 else "") + ("EW" if rng.random() < 0.12 and not reply else "E" if rng.random() < 0.06 else "")
        letters = "".join(letter for letter in "FSRP.UEWA" if letter in flags + ("." if reply else ""))
        text = f"< {self._ip_info() if not usual else ''}{letters} {isn}:{isn + size & M32}({size})"
        if reply:
            ack = view.snd_nxt if usual or rng.random() < 0.75 else rng.choice((0, 2, view.snd_nxt + 1, view.snd_nxt - 1, 1 << 31))
            text += f" ack {ack & M32}"
            if 0 < ack <= view.snd_nxt:
                view.snd_una = ack
        text += f" win {rng.choice((65535, 65535, 65535, 1000, 0))}"
        options = self._syn_options(reply, usual)
        if data and rng.random() < 0.7:
            options = f" <mss 1000,sackOK,{rng.choice(('FO', 'FO 0102030405060708', 'FO 01020304', 'FOEXP'))}>"
        self._do(text + options)

    def _ack(self) -> None:
        """What a peer would say now."""
        view = self._view()
        self._segment(".", view.rcv_nxt, 0, view.snd_nxt, 1000)

    def _traffic(self) -> None:
        """Data one way or the other, and an answer, perhaps."""
        rng, live = self.rng, self._connected()
        if live and rng.random() < 0.5:
            self._do(f"write({rng.choice(live)}, ..., {rng.choice((1, 100, 1000, 5000))}) = ...")
            if rng.random() < 0.6:
                self._ack()
            return
        view = self._view()
        self._segment("P.", view.rcv_nxt, rng.choice((1, 100, 1000)), view.snd_nxt, 1000)

    def _of_many(self) -> None:
        """Packets of several connections at once."""
        rng = self.rng
        port = rng.choice((40001, 40002, 40003, 40004))
        ports = f"{port} > 8080 "
        flow = next((f for f in self.player.flows if f.remote_port == port), None)
        if flow is None or flow.remote_isn is None or rng.random() < 0.1:
            isn = rng.choice(ISNS) if flow is None or flow.remote_isn is None else flow.remote_isn
            self._do(f"< {ports}S {isn}:{isn}(0) win 65535{self._syn_options(False, usual=True)}")
            return
        self.player.flow = flow
        view = self._view()
        flags = rng.choices((".", "P.", "F.", "R", "R."), (10, 5, 3, 2, 1))[0]
        self._segment(flags, view.rcv_nxt, rng.choice((1, 100, 1000)) if "P" in flags else 0, view.snd_nxt, 1000, ports)

    def _icmp(self) -> None:
        rng, flow, view = self.rng, self._flow(), self._view()
        if flow is None:
            self._packet()
            return
        if self.ip == "ipv6":
            known = [f"unreachable {code}" for code in range(7)] + [f"packet_too_big mtu {mtu}" for mtu in (500, 1280, 1400, 1500, 9000)]
        else:
            known = [f"unreachable {code}" for code in (*range(4), *range(5, 17))] + ["source_quench 0"]
            known += [f"unreachable 4 mtu {mtu}" for mtu in (0, 68, 500, 552, 1000, 1400, 1500, 9000)]
        what = rng.choice([*known, "time_exceeded 0", "time_exceeded 1", "parameter_problem 0"])
        quote = ""
        if rng.random() < 0.7:
            seq = rng.choice((view.snd_una, view.snd_una, view.snd_nxt, view.snd_nxt - 1, view.snd_una - 1, view.snd_nxt + 1, view.snd_nxt + 100000)) & M32
            size = rng.choice((0, 0, 100, 1000))
            quote = f" [{seq}:{seq + size & M32}({size})]"
        self._do(f"< icmp {what}{quote}")

    # --- calls ---

    def _call(self) -> None:
        rng = self.rng
        fds = self._fds()
        listening, connected = self._listening(), self._connected()
        if listening and rng.random() < 0.4:
            self._accept(rng.choice(listening))
            return
        if not fds:
            if rng.random() < 0.3:
                rng.choice((self._open_listen, self._open_connect))()
            else:
                self._packet()
            return
        fd = rng.choice(connected or fds) if rng.random() < 0.8 else rng.choice(fds)
        size = rng.choice((0, 1, 100, 1000, 1460, 5000, 100000))
        call = rng.choices(
            (
                f"write({fd}, ..., {size}) = ...", f"read({fd}, ..., {size}) = ...", f"send({fd}, ..., {size}, MSG_OOB) = ...",
                f"recv({fd}, ..., {size}, MSG_OOB) = ...", f"recv({fd}, ..., {size}, MSG_PEEK) = ...", f"recv({fd}, ..., {size}, MSG_TRUNC) = ...",
                f"send({fd}, ..., {size}, MSG_MORE) = ...", f"shutdown({fd}, SHUT_WR) = ...", f"shutdown({fd}, SHUT_RD) = ...",
                f"shutdown({fd}, SHUT_RDWR) = ...", f"close({fd}) = ...", f"connect({fd}, ..., ...) = ...", f"connect({fd}, AF_UNSPEC, ...) = ...",
                f"listen({fd}, {rng.choice((0, 1, 5))}) = ...", f"bind({fd}, ..., ...) = ...", "accept", f"ioctl({fd}, SIOCATMARK, [0]) = ...", "socket", "ask",
            ),
            (10, 10, 2, 2, 2, 1, 2, 3, 1, 1, 2, 1.5, 1, 0.7, 0.5, 0.7, 1, 0.5, 3),
        )[0]  # fmt: skip
        if self.name == "urgent" and rng.random() < 0.4:
            urgent = f"send({fd}, ..., {size}, MSG_OOB)", f"recv({fd}, ..., 1, MSG_OOB)", f"ioctl({fd}, SIOCATMARK, [0])", f"read({fd}, ..., {size})"
            call = f"{rng.choice(urgent)} = ..."
        match call:
            case "accept":
                self._accept(fd)
            case "socket":
                self._socket()
            case "ask":
                level, name = rng.choice(ASKED)
                self._do(f"getsockopt({fd}, {level}, {name}, [0], [4]) = ...")
            case _:
                self._do(call)

    def _any_option(self) -> None:
        fds = self._fds()
        if fds:
            self._option(self.rng.choice(self._connected() or fds) if self.rng.random() < 0.8 else self.rng.choice(fds))
        else:
            self._packet()

    def _option(self, fd: int) -> None:
        rng = self.rng
        if rng.random() < 0.1:
            self._do(f"setsockopt({fd}, SOL_SOCKET, SO_LINGER, {{onoff={rng.choice((0, 1))}, linger=0}}, 8) = ...")
            return
        level, name, values = rng.choice(OPTIONS)
        if level == "IP":
            level, name = ("SOL_IPV6", f"IPV6_{name[3:]}") if self.ip == "ipv6" else ("SOL_IP", name)
        if rng.random() < 0.2:
            self._do(f"getsockopt({fd}, {level}, {name}, [0], [4]) = ...")
            return
        self._do(f"setsockopt({fd}, {level}, {name}, [{rng.choice(values)}], 4) = ...")

    def _close(self) -> None:
        rng, live = self.rng, self._connected()
        if live and rng.random() < 0.6:
            fd = live[-1]
            self._do(rng.choice((f"close({fd})", f"close({fd})", f"shutdown({fd}, SHUT_WR)", f"shutdown({fd}, SHUT_RDWR)")) + " = ...")
            return
        view = self._view()
        self._segment("F.", view.rcv_nxt, rng.choice((0, 0, 100)), rng.choice((view.snd_nxt, view.snd_nxt, view.snd_nxt - 1)))


def _size(piece: str) -> int:
    word, _, rest = piece.partition(" ")
    match word:
        case "nop" | "eol":
            return 1
        case "mss":
            return 4
        case "wscale":
            return 3
        case "sackOK" | "ECN":
            return 2
        case "TS":
            return 10
        case "FO":
            return 2 + len(rest) // 2
        case "FOEXP":
            return 4 + len(rest) // 2
    return len(rest) // 2


def random_script(kind: str, seed: int) -> tuple[str, str]:
    """The text of a random script, and its IP mode."""
    walk = Walk(kind, seed)
    return walk.text(), walk.ip



"""Replays a recorded conversation of a Linux 6.18 host with a scripted peer against a whole stack, in virtual time.

A recording lists in order what the peer sent, what a program called and got, what the kernel sent, what
tcp_info and the kernel's table of sockets said. `replay` does to a `Stack` what peer and program did to
the kernel, and returns every difference, each with the last segments before it.

What must be the same: every segment of every connection in order (flags, relative numbers, length,
window, options and their order, echoed timestamps, IP fields where the recording has them), every result
of a call, the readiness, states and table. Times may differ by a tick, by the granularity of the timer
wheel for the time since the last event, and by the delay with which the script read a frame. PSH may
differ where a segment does not end a write. A peer that waited for a frame waits for ours, too.

The scripts did a few things they did not write down: `script_program` has them, and between two
connections they reset the socket of the first, which is told from the reset that follows.
"""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

from pytcp.tcp import api, const
from pytcp.tcp.sock import Sock
from pytcp.tcp.timewait import TimeWait

from . import script_calls as calls
from . import script_wire as wire
from .script_program import HIDDEN, MANY_PEERS, SILENT, TOLD, UNREAD, Program
from .script_world import MS, OURS, PEER, PEER_ISN, READ_LATE, TICK, Conn, granularity, tick_phase

DATA = Path(__file__).parent.parent / "data" / "sockets"


# a number this far from the first one belongs to a later connection on the same ports
FAR = 1 << 17


class Replay(Program):
    """One case against one stack. `differences` is empty when they agree."""

    def __init__(self, case: dict[str, Any], phase_ns: int = 0) -> None:
        super().__init__(case, phase_ns)
        self.skew = 0
        self.step: dict[str, Any] = {}
        self.differences: list[str] = []
        self.resets = self._implied_resets()

    def time(self, step: dict[str, Any]) -> int:
        return self.start + int(step["t"] * 1_000_000_000)

    def run(self) -> Replay:
        for i, step in enumerate(self.steps):
            if "kernel" in step:
                conn = self.conn(step)
                conn.expected.append((i, step))
                continue
            self._wait(i, step)
            self.step = step
            self._between(i, step)
            self._do(i, step)
            self._take()
            if "info" not in step and "table" not in step:
                self.conn(step).last_event = int(step["t"] * 1_000_000_000)
        self._end()
        return self

    def _between(self, i: int, step: dict[str, Any]) -> None:
        """When the script turns to a new connection it resets the one before; of some states that is silent."""
        for number in self.resets.get(i, ()):
            self.abort(self.conns[number])
        number = step.get("conn", 0)
        if number in self.conns or "conn" not in step:
            return
        for conn in self.conns.values():
            if conn.sk is not None and conn.sk.state in SILENT and not any(s.get("conn", 0) == conn.number for s in self.steps[i:]):
                self.abort(conn)

    def _implied_resets(self) -> dict[int, list[int]]:
        """Index of a step -> connections whose socket the script reset just before it: their RST follows another connection's step."""
        found: dict[int, list[int]] = {}
        first: dict[int, int] = {}
        last = -1
        for i, step in enumerate(self.steps):
            number = step.get("conn", 0)
            first.setdefault(number, i)
            if "kernel" not in step:
                last = i
            elif step["kernel"]["flags"].startswith("R") and last >= 0 and self.steps[last].get("conn", 0) != number:
                began = first[self.steps[last].get("conn", 0)]
                if all(s.get("conn", 0) != number or "kernel" in s for s in self.steps[began:i]):
                    found.setdefault(began, []).append(number)
        return found

    def _wait(self, i: int, step: dict[str, Any]) -> None:
        """Let time pass up to a step, and further until the frames the script had read before it are there."""
        when = self.time(step)
        self._still(i, step)
        self._run_until(when + self.skew)
        for conn in self.conns.values():
            self._match(conn)
            if conn.expected and conn.expected[0][0] == i - 1 and self._turns_away(conn, i):
                self.abort(conn)
            if conn.expected:
                limit = self.time(conn.expected[-1][1]) + self.skew + TICK + granularity(self._delay(conn, conn.expected[-1][1])) + 15 * MS
                while conn.expected and self._run_until(min(self.runtime.heap.now_ns + TICK, limit)) < limit:
                    self._match(conn)
                self._match(conn)
                for number, missing in conn.expected:
                    self.differ(missing, f"the kernel sends {wire.text(missing['kernel'])} (step {number}); nothing comes")
                conn.expected.clear()

    def _turns_away(self, conn: Conn, i: int) -> bool:
        """Whether the kernel's reset before step `i` is how the script ended one connection to begin the next."""
        step = self.steps[i]
        number = step.get("conn", 0)
        begins = "note" in step and all(s.get("conn", 0) != number for s in self.steps[:i])
        return begins and number != conn.number and conn.expected[0][1]["kernel"]["flags"] == "R."

    def _still(self, i: int, step: dict[str, Any]) -> None:
        """A connection that the script watched until it was gone must not go much earlier."""
        watched = step.get("table") == "none" and any("gone" in str(s.get("note")) for s in self.steps[i : i + 2])
        if not watched and not str(step.get("note")).startswith("socket closed"):
            return
        conn = self.conn(step)
        delay = self._delay(conn, step)
        if delay < 100 * MS:
            return
        self._run_until(self.time(step) + self.skew - granularity(delay) - 60 * MS)
        gone = self.entry(conn) == "none" if "table" in step else self.socket(conn).state == const.CLOSE
        if gone and not conn.expected:
            self.differ(step, f"connection {conn.number} is gone too early")

    def _delay(self, conn: Conn, step: dict[str, Any]) -> int:
        return int(step["t"] * 1_000_000_000) - conn.last_event

    def _run_until(self, when: int) -> int:
        """Run to `when` (never back), seeing to closes that wait; returns the time."""
        while self.runtime.step(when):
            for conn in self.conns.values():
                if conn.linger is not None:
                    sk, begin, end = conn.linger
                    if not api.lingering(sk) or self.runtime.heap.now_ns >= end:
                        conn.lingered_ns = self.runtime.heap.now_ns - begin
                        conn.linger = None
                        self.stack.now()
                        api.finish_close(sk)
                        self.stack.flush()
        if self.runtime.heap.now_ns < when:
            self.runtime.heap.now_ns = when
        self._take()
        return self.runtime.heap.now_ns

    def _end(self) -> None:
        end = max((self.time(step) for step in self.steps), default=self.start)
        self._run_until(end + self.skew)
        for conn in self.conns.values():
            self._wait_all(conn)
        for conn in self.conns.values():
            if (self.name, conn.number) in UNREAD:
                continue
            for when, got in conn.sent:
                early = granularity(when - self.start - conn.last_event) + TICK + 15 * MS
                if when + early < end + self.skew:
                    self.differ({"t": (when - self.start) / 1e9}, f"the kernel does not send {wire.text(self.relative(conn, got))} (connection {conn.number})")

    def _wait_all(self, conn: Conn) -> None:
        self._match(conn)
        if conn.expected:
            self._run_until(self.time(conn.expected[-1][1]) + self.skew + TICK + granularity(self._delay(conn, conn.expected[-1][1])) + 15 * MS)
            self._match(conn)
        if conn.expected and conn.expected[0][0] == len(self.steps) - 1 and conn.expected[0][1]["kernel"]["flags"] == "R.":
            # the script's last act
            self.abort(conn)
            self._take()
            self._match(conn)
        for i, missing in conn.expected:
            self.differ(missing, f"the kernel sends {wire.text(missing['kernel'])} (step {i}); nothing comes")
        conn.expected.clear()

    def differ(self, step: dict[str, Any], what: str) -> None:
        lines = "".join(f"\n    {line}" for line in self.history)
        self.differences.append(f"t={step['t']:.6f}: {what}{lines}")

    def _do(self, i: int, step: dict[str, Any]) -> None:
        if "peer" in step:
            self._peer(self.conn(step), step, i)
        elif "app" in step:
            self._app(self.conn(step), step)
        elif "icmp" in step or "icmpv6" in step:
            self._icmp(self.conn(step), step.get("icmp") or step["icmpv6"])
        elif "info" in step:
            self._info(self.conn(step), step)
        elif "table" in step:
            self._table(self.conn(step), step)
        elif "note" in step:
            self._note(step)
        elif "meminfo" in step:
            self._meminfo(self.conn(step), step)

    # ------------------------------------------------------------ what we send

    def _take(self) -> None:
        """Sort what has left by connection; what is no TCP is none of this replayer's business."""
        while self.link.sent:
            when, data = self.link.sent.popleft()
            got = wire.describe(data)
            if got is None:
                continue
            found = [c for c in self.conns.values() if c.peer_port == got["dport"] and c.port == got["sport"]]
            if not found:
                # the script does not look at what comes from ports it did not choose
                continue
            conn = found[0]
            if "S" in got["flags"]:
                if conn.isn is None:
                    conn.isn = got["seq"]
                conn.syn_scales["ours"] = got.get("opts", {}).get("ws")
                self._agree(conn)
            conn.sent.append((when, got))
            self.history.append(f"{(when - self.start) / 1e9:.6f} [{conn.number}]     > {wire.text(self.relative(conn, got))}")

    def _agree(self, conn: Conn) -> None:
        ours, theirs = conn.syn_scales.get("ours"), conn.syn_scales.get("peer")
        conn.scale = ours if ours is not None and theirs is not None else 0
        conn.peer_scale = min(theirs, 14) if ours is not None and theirs is not None else 0

    def relative(self, conn: Conn, got: dict[str, Any]) -> dict[str, Any]:
        """A segment of ours with numbers relative to both sides' first, and the window unscaled."""
        isn = conn.isn or 0
        out = dict(got)
        if conn.isn is not None:
            out["seq"] = (got["seq"] - isn + (1 << 31)) % (1 << 32) - (1 << 31)
            if abs(out["seq"]) > FAR and "S" not in got["flags"]:
                out["seq"] -= conn.again
        if got["ack"] is not None:
            out["ack"] = (got["ack"] - PEER_ISN) & 0xFFFFFFFF
        if "sack" in got:
            out["sack"] = [[(edge - PEER_ISN) & 0xFFFFFFFF for edge in block] for block in got["sack"]]
        if "S" not in got["flags"]:
            out["win"] = got["win"] << conn.scale
        return out

    def _match(self, conn: Conn) -> None:
        while conn.expected and conn.sent:
            i, step = conn.expected.popleft()
            when, raw = conn.sent.popleft()
            want = step["kernel"]
            got = self.relative(conn, raw)
            wrong = self._wrong_fields(conn, want, got, i)
            if wrong and self.case.get("runs_differ"):
                # not even the kernel did the same in each run: a delayed ACK was or was not in time
                if got["flags"] == "." and not got["len"]:
                    conn.expected.appendleft((i, step))
                    continue
                if want["flags"] == "." and not want["len"]:
                    conn.sent.appendleft((when, raw))
                    continue
            if wrong:
                self.differ(step, f"step {i}, connection {conn.number}: the kernel sends {wire.text(want)}, we {wire.text(got)}; {wrong}")
            delay = self._delay(conn, step)
            slack = TICK + granularity(delay) + 15 * MS
            off = when - self.time(step) - self.skew
            if not -slack - READ_LATE <= off <= slack:
                self.differ(step, f"step {i}, connection {conn.number}: {wire.text(got)} comes {off / MS:.1f} ms off")
            elif delay > 5 * MS and off > 0:
                # a timer of ours in the same bucket as the kernel's: what the script does next, it does after it
                self.skew += off
            conn.last_event = int(step["t"] * 1_000_000_000)

    def _wrong_fields(self, conn: Conn, want: dict[str, Any], got: dict[str, Any], i: int) -> dict[str, Any]:
        wrong: dict[str, Any] = {}
        for name in ("flags", "seq", "len", "ack", "win", "opts", "sack", "tos", "ttl", "df", "hlim", "tclass", "ip_ecn", "ts", "flow"):
            theirs, ours = want.get(name), got.get(name)
            if "tsopt_present" in want and name not in ("flags", "seq", "len", "win"):
                # a recording that only has these
                continue
            if name in ("tos", "ttl", "df", "hlim", "tclass", "flow") and theirs is None:
                continue
            if name == "ip_ecn":
                theirs = (theirs or 0) if "ip" in self.setup else ours
            if name == "flags" and theirs != ours and got["seq"] + got["len"] not in conn.ends:
                theirs, ours = str(theirs).replace("P", ""), str(ours).replace("P", "")
            if name == "ts":
                if not self._same_timestamps(conn, theirs, ours):
                    wrong[name] = (theirs, ours)
                continue
            if name == "seq" and conn.isn is None and "S" in want["flags"]:
                continue
            if name == "seq" and theirs is not None and abs(theirs) > FAR and want["flags"] == "R." and not (got["seq"] + (conn.isn or 0)) % (1 << 32):
                continue  # it is 0 on the wire
            if name == "seq" and theirs is not None and abs(theirs) > FAR and "S" in want["flags"]:
                # another connection's: numbers of a clock, or relative to what the script did not know
                conn.again = got["seq"] - theirs
                continue
            if name == "flow":
                known = conn.flow.setdefault(int(theirs or 0), int(ours or 0))
                if known != ours or (theirs and not ours) or len(set(conn.flow.values())) < len(conn.flow):
                    wrong[name] = (theirs, ours)
                continue
            if theirs != ours:
                wrong[name] = (theirs, ours)
        return wrong

    def _same_timestamps(self, conn: Conn, theirs: list[int] | None, ours: list[int] | None) -> bool:
        if theirs is None or ours is None:
            return theirs is ours
        if conn.ts_offset is None:
            conn.ts_offset = ours[0] - theirs[0]
        conn.echo[theirs[0]] = ours[0]
        drift = (ours[0] - theirs[0] - conn.ts_offset + (1 << 31)) % (1 << 32) - (1 << 31)
        return ours[1] == theirs[1] and abs(drift) < 2200

    # ------------------------------------------------------------ what the peer sends

    def _peer(self, conn: Conn, step: dict[str, Any], i: int) -> None:
        peer = step["peer"]
        flags = peer["flags"]
        if flags == "S" and self.name.startswith(MANY_PEERS):
            self.current += 1
            conn = self.conn(step)
        opts = peer.get("opts", {})
        ts = self._peer_timestamps(conn, peer, i)
        isn = conn.isn or 0
        if "S" in flags:
            conn.syn_scales["peer"] = opts.get("ws")
            if "." in flags:
                self._agree(conn)
        win = peer["win"] if "S" in flags else peer["win"] >> conn.peer_scale
        sack = [((isn + left) & 0xFFFFFFFF, (isn + right) & 0xFFFFFFFF) for left, right in peer.get("sack", ())]
        payload = bytes(k & 0xFF for k in range(peer["seq"], peer["seq"] + peer["len"]))
        options = wire.options_of(opts, ts, sack)
        src, dst = PEER[conn.family], OURS[conn.family]
        ack = isn + (peer.get("ack") or 0) if "." in flags else 0
        if (peer.get("ack") or 0) > FAR:
            ack += conn.again
        data = wire.tcp(src, dst, (conn.peer_port, conn.port), PEER_ISN + peer["seq"], ack, flags, min(win, 65535), peer.get("urp", 0), options, payload)
        tos = peer.get("ip_ecn", 0) | peer.get("tos", 0) | (3 if str(peer.get("note")) == "CE" else 0)
        self.history.append(f"{step['t']:.6f} [{conn.number}] < {wire.text(peer)}")
        gso = peer.get("gso_size", 0)
        self.link.inject(wire.ethernet(src, dst, 6, data, tos=tos, flow=peer.get("flow", 0)), gso if peer["len"] > gso else 0)

    def _peer_timestamps(self, conn: Conn, peer: dict[str, Any], i: int) -> tuple[int, int] | None:
        if "ts" in peer:
            theirs, echoed = peer["ts"]
            return theirs, self._echo(conn, echoed)
        if "ts" not in peer.get("opts", {}).get("order", ()):
            return None
        # a SYN's own timestamps are not recorded, but the kernel's next segment echoes them
        number = self.steps[i].get("conn", self.current)
        after = next((s["kernel"]["ts"] for s in self.steps[i:] if s.get("conn", self.current) == number and "ts" in s.get("kernel", {})), None)
        before = [s["kernel"]["ts"][0] for s in self.steps[:i] if s.get("conn", self.current) == number and "ts" in s.get("kernel", {})]
        return (after[1] if after else 5000), (self._echo(conn, before[-1]) if before and "." in peer["flags"] else 0)

    def _echo(self, conn: Conn, theirs: int) -> int:
        """Our timestamp where the kernel's was echoed."""
        if theirs in conn.echo:
            return conn.echo[theirs]
        return (theirs + conn.ts_offset) & 0xFFFFFFFF if theirs and conn.ts_offset is not None else theirs

    def _icmp(self, conn: Conn, error: dict[str, Any]) -> None:
        src, dst = OURS[conn.family], PEER[conn.family]
        seq = (conn.isn or 0) + error["quoted_seq"]
        quote = wire.ethernet(src, dst, 6, wire.tcp(src, dst, (conn.port, conn.peer_port), seq, 0, ".", 64, 0, b"", b""))[14:]
        if conn.family == 4:
            quote = quote[:28]
        self.history.append(f"{self.step['t']:.6f} [{conn.number}] icmp {error}")
        self.link.inject(wire.icmp_error(dst, src, error["type"], error["code"], error.get("mtu", 0), quote))

    # ------------------------------------------------------------ what the program does

    def _app(self, conn: Conn, step: dict[str, Any]) -> None:
        want = step.get("ret")
        got = self.call(conn, step["app"], want)
        if isinstance(want, int) and isinstance(got, str):
            # some scripts show an error as its number
            want = calls.error_name(want) if want in errno.errorcode else want
        if want is not None and not _same_result(want, got):
            self.differ(step, f"connection {conn.number}: {step['app']} gives {want} with the kernel, {got} here")
        for prefix, text, hidden in HIDDEN:
            if self.name.startswith(prefix) and step["app"] == text:
                for more in hidden:
                    self.call(conn, more.format(n=self.number), None)

    def _info(self, conn: Conn, step: dict[str, Any]) -> None:
        sk = self.socket(conn)
        info = api.tcp_info(sk)
        ours = {
            "state": const.STATE_NAMES[info.state] if isinstance(step["info"].get("state"), str) else info.state,
            "cwnd": info.snd_cwnd, "ca": info.ca_state, "unacked": info.unacked, "snd_mss": info.snd_mss, "advmss": info.advmss,
            "pmtu": info.pmtu, "lost": info.lost, "retrans": info.retrans, "options": info.options, "notsent": info.notsent_bytes,
            "rcv_ssthresh": info.rcv_ssthresh, "rcv_wnd": info.rcv_wnd, "rcv_mss": info.rcv_mss, "retransmits": info.retransmits,
            "bytes_retrans": info.bytes_retrans, "ato": info.ato, "backoff": info.backoff, "snd_ws": info.snd_wscale, "rcv_ws": info.rcv_wscale,
            "clamp": sk.window_clamp, "rcvbuf": sk.rcvbuf, "rmem": sk.rmem_alloc, "sacked": info.sacked, "reordering": info.reordering,
            "ssthresh": info.snd_ssthresh, "tfo_fail": info.fastopen_client_fail,
        }  # fmt: skip
        for name, value in step["info"].items():
            if name in ours and ours[name] != value:
                self.differ(step, f"connection {conn.number}: {name} is {value} with the kernel, {ours[name]} here")
            elif name == "rto" and abs(info.rto - value) > 12_000 * max(1, value // 200_000):
                self.differ(step, f"connection {conn.number}: rto is {value} with the kernel, {info.rto} here")

    def _meminfo(self, conn: Conn, step: dict[str, Any]) -> None:
        sk = self.socket(conn)
        ours = {
            "rmem_alloc": sk.rmem_alloc, "rcvbuf": sk.rcvbuf, "wmem_alloc": sk.wmem_alloc - 1, "sndbuf": sk.sndbuf, "fwd_alloc": sk.forward_alloc,
            "wmem_queued": sk.wmem_queued, "optmem": 0, "backlog": 0, "drops": 0,
        }  # fmt: skip
        if ours != step["meminfo"]:
            self.differ(step, f"SO_MEMINFO is {step['meminfo']} with the kernel, {ours} here")

    def entry(self, conn: Conn) -> str:
        """What the table of sockets says of a connection."""
        key = PEER[conn.family] + OURS[conn.family] + conn.peer_port.to_bytes(2, "big") + conn.port.to_bytes(2, "big")
        found = self.stack.table.get(key)
        if found is None:
            return "none"
        if isinstance(found, TimeWait):
            return const.STATE_NAMES[found.substate]
        return const.STATE_NAMES[found.state] if isinstance(found, Sock) else "SYN_RECV"

    def _table(self, conn: Conn, step: dict[str, Any]) -> None:
        got = self.entry(conn)
        if step["table"] == "none" and got != "none" and conn.linger is None:
            # it goes by a timer
            limit = self.runtime.heap.now_ns + TICK + granularity(self._delay(conn, step)) + 15 * MS
            while got != "none" and self.runtime.heap.now_ns < limit:
                self._run_until(min(self.runtime.heap.now_ns + TICK, limit))
                got = self.entry(conn)
            self.skew = max(self.skew, self.runtime.heap.now_ns - self.time(step))
        if got != step["table"]:
            self.differ(step, f"connection {conn.number}: the table says {step['table']} with the kernel, {got} here")

    def _note(self, step: dict[str, Any]) -> None:
        note = str(step["note"])
        peer = re.match(r"peer (?:port )?(\d+)", note)
        if peer and "conn" not in step:
            self.current = int(peer[1]) + 100
        conn = self.conn(step)
        for prefix, pattern, told in TOLD:
            found = re.search(pattern, note)
            if self.name.startswith(prefix) and found:
                for text in told:
                    if text.startswith("listener "):
                        conn.before_listen.append(text.removeprefix("listener ").format(n=found[found.re.groups]))
                    else:
                        self.call(conn, text.format(n=found[found.re.groups]), None)
        if note.startswith("socket closed"):
            self._run_until(self.runtime.heap.now_ns + TICK + granularity(self._delay(conn, step)) + 15 * MS)
            if self.socket(conn).state != const.CLOSE:
                self.differ(step, f"connection {conn.number} is not closed")
        route = re.search(r"ip route add (\w+) (\S+)", note)
        if route:
            self.stack.add_route(route[2], kind=route[1])
        if re.match(r"route \S+ features ecn", note):
            for line in self.stack.routes4.routes():
                line.ecn = True
            self.stack.routes_changed()
        if note == "listener closed" and conn.listener is not None:
            self.call(conn, "close()", None)


def _same_result(want: Any, got: Any) -> bool:
    """Results the recording describes more fully than a call here returns."""
    if isinstance(got, bytes):
        # TCP_SAVED_SYN: the script shows one reading by its length; ports, numbers and checksums are the script's own
        return len(got) == want if isinstance(want, int) else isinstance(want, str) and _masked(bytes.fromhex(want)) == _masked(got)
    if isinstance(want, dict) and isinstance(got, dict):
        return all(got[name] == want[name] for name in got if name in want)
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(_same_result(a, b) for a, b in zip(want, got, strict=True))
    return bool(want == got)


def _masked(packet: bytes) -> bytes:
    """A saved SYN without what each script chooses for itself."""
    mac = len(packet) % 4 and packet[:14]
    ip = packet[len(mac) if mac else 0 :]
    return bytes(ip[:4]) + ip[6:10] + ip[12:20] + ip[28:36] + ip[38:] if ip else b""


def load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text())
    return {"name": path.stem} | case


def replay(case: dict[str, Any]) -> list[str]:
    """Differences between the recording and a stack.

    The recording does not say where in a tick, and in a bucket of the timer wheel, it began. Its timers
    tell the former if there are any; other phases are tried before a difference is believed."""
    phase = tick_phase(case["steps"])
    best: list[str] | None = None
    shifts = [*range(0, TICK, MS // 2), 2 * TICK, 4 * TICK, 6 * TICK]
    if case["steps"] and case["steps"][-1]["t"] > 16:
        shifts += [bucket * TICK for bucket in (64, 128, 192, 256, 320, 384, 448)]
    for shift in shifts:
        one = Replay(case, phase + shift).run()
        one.stack.close()
        found = one.differences
        if not found:
            return []
        if best is None or len(found) < len(best):
            best = found
    assert best is not None
    return best

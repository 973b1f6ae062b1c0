"""`--record`: what a stack really did, written as a script.

The script that is given provides the actions: calls, injected packets, commands. Its expectations only say how long to
wait, and where the stack's own numbers begin, which injected packets refer to. What comes out has the results the calls
had and the packets the stack sent, at the times they had, in full (options, window): a start for a test, not a test.
Whoever keeps it decides which of it is meant. Packets of a connection other than the newest cannot be expected without
its ports; they are there as comments.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .constants import errno_name
from .errors import Mismatch, Where
from .flow import ACK, M32, SYN, Flow
from .packets import Live, decode_options, flags_text, numbers, option_text
from .runner import MISSING_NS, Runner
from .script import Code, Event, Expect, Inject, ListOf, Opt, Script, Struct, Syscall, TcpPacket, TimeKind
from .syscalls import Prepared, epoll_names, poll_names
from .target import Pending

LASTS_NS = 2_000_000  # a call that takes so long has blocked
FINEST_NS = 10_000


@dataclass(slots=True)
class Line:
    """One event of the new script."""

    time_ns: int
    text: str
    ended_ns: int | None = None  # of a call: when it returned
    blocks: bool = False  # the script says it may take a while
    aside: str = ""  # why it is a comment, which takes no part in the times


class Recorder(Runner):
    """A run that compares nothing."""

    def record(self) -> str:
        """Run, and return the new script. Raises as `run` does for what is not a difference."""
        self.lines: list[Line] = []
        self._calls: dict[Where, Line] = {}
        self._unclaimed: deque[tuple[int, int]] = deque()  # time and length of packets no expectation has had yet
        self._ahead = list(self.script.events)
        self._ports = {pair for event in self._ahead if (pair := _ports(event)) is not None}
        self.calls.verify = self._note_result  # type: ignore[method-assign]
        self.run()
        return self._text()

    # --- what is noted ---

    def _note_result(self, event: Event, prepared: Prepared | None, pending: Pending) -> None:
        line = self._calls[event.where]
        line.ended_ns = pending.ended_ns
        if pending.error is not None:
            line.text += f" = -1 {errno_name(pending.error.errno or 0)} ({os.strerror(pending.error.errno or 0)})"
        else:
            assert prepared is not None
            assert isinstance(event.action, Syscall)
            line.text = f"{_answered(event.action, line.text, pending.value)} = {prepared.returned(pending.value)}"

    def _event(self, event: Event) -> None:
        action = event.action
        self._ahead = self._ahead[self._ahead.index(event) :]
        if isinstance(action, Expect):
            self._pause(event)
            return
        self._wait_for(event)
        self._take_packets()
        line = Line(self.target.now(), self._action_text(event))
        self.lines.append(line)
        if isinstance(action, Syscall):
            self._calls[event.where] = line
            line.blocks = event.when.until_ns is not None
            if event.when.until_ns is None:
                # any call may block: it is given until the next one
                event = replace(event, when=replace(event.when, until_ns=event.when.at_ns))
        try:
            super()._event(event)
        except Mismatch:
            if not isinstance(action, Code):
                raise
            self._passed()
        self._take_packets()

    def _pause(self, event: Event) -> None:
        """What was expected says how long to wait: until a packet came that may be it, as many bytes as there should be."""
        assert isinstance(event.action, Expect) and isinstance(event.action.packet, TcpPacket)
        when, left = event.when, event.action.packet.length
        if when.kind is TimeKind.ANY:
            early, late = 0, min(self.target.now() + MISSING_NS, self.limit_ns)
        else:
            due = self._due(event)
            self._check_limit(due, event.where)
            slack = self._tolerance(due - self.base_ns)
            early, late = due - slack, (due if when.late_ns is None else due + when.late_ns - when.at_ns) + slack
        while True:
            self._until_packet(late)
            while self._unclaimed and self._unclaimed[0][0] < early:
                self._unclaimed.popleft()
            if not self._unclaimed:
                if self.target.now() < late:
                    continue
                self._passed()
                return
            time_ns, length = self._unclaimed.popleft()
            left -= length
            if left <= 0 or not length:
                break
            late = self.target.now() + self.setup.tolerance_ns
        self.base_ns = time_ns
        self.chain_ns = None

    def _until_packet(self, until_ns: int) -> None:
        self._take_packets()
        while not self._unclaimed and self.target.now() < until_ns:
            self.target.wait(until_ns, lambda: bool(self.target.captured) or self._returned())
            self._check_blocked()
            self._take_packets()

    def _finish(self) -> None:
        if self.blocked is not None:
            self._until_done(self.blocked)
            if self.blocked.pending.done:
                self._check_blocked()
            else:
                self._calls[self.blocked.event.where].aside = "blocks beyond the end"
                self.blocked = None
        self._until(self.target.now() + self.setup.tolerance_ns)
        self._take_packets()

    def _check_end(self, event: Event, pending: Pending, due_ns: int, base_ns: int) -> None:
        """When a call returned is noted, not judged."""

    def _action_text(self, event: Event) -> str:
        match event.action:
            case Syscall():
                return _call(event.source)
            case Code(source):
                return f"%{{\n{source.strip()}\n}}%"
        return event.source

    def _take_packets(self) -> None:
        self._drain()
        for live in self._seen:
            flow = self._flow_of(live)
            flow.last_seq = live.header.seq
            pair = live.header.sport, live.header.dport
            aside = "of another connection" if flow is not self.flow and pair not in self._ports else ""
            ports = f"{pair[0]} > {pair[1]} " if aside or pair in self._ports else ""
            self.lines.append(Line(live.time_ns, f"> {ports}{self._packet_text(live, flow)}", aside=aside))
            if not aside:
                self._unclaimed.append((live.time_ns, live.length))
        self._seen.clear()

    def _flow_of(self, live: Live) -> Flow:
        pair = live.header.sport, live.header.dport
        known = next((flow for flow in self.flows if (flow.local_port, flow.remote_port) == pair), None) or self._new_flow(*pair)
        if live.header.flags & SYN:
            known.learn(live.header.seq, next((packet.seq for packet in self._expected() if packet.flags & SYN), 0))
        return known

    def _expected(self) -> Iterator[TcpPacket]:
        """What the script expects from here on."""
        return (event.action.packet for event in self._ahead if isinstance(event.action, Expect) and isinstance(event.action.packet, TcpPacket))

    def _first_stamp(self) -> int:
        """The script's number for the timestamp the stack begins with; 100 if it has none."""
        options = (option for packet in self._expected() if isinstance(packet.options, tuple) for option in packet.options)
        return next((option.value[0] for option in options if option.kind == "TS" and option.value[0] >= 0), 100)

    def _packet_text(self, live: Live, flow: Flow) -> str:
        header = live.header
        seq, ack = numbers(header, flow)
        text = f"{flags_text(header.flags)} {seq}:{seq + live.length & M32}({live.length})"
        if header.flags & ACK:
            text += f" ack {ack}"
        text += f" win {header.window}"
        if header.urg_ptr:
            text += f" urg {header.urg_ptr}"
        options = decode_options(header, flow)
        for index, option in enumerate(options):
            if option.kind == "TS":
                # small numbers instead of the clock's; ticks are as they are
                first = flow.first_stamp or (self._first_stamp(), option.value[0])
                script = option.value[0] - first[1] + first[0] & M32
                flow.saw_stamp(script, option.value[0])
                options[index] = Opt("TS", (script, option.value[1]))
        return f"{text} <{','.join(map(option_text, options))}>" if options else text

    def _text(self) -> str:
        script = self.script
        out = [f"// Recorded from {self.target.name}."]
        out += [f"--{name}" if value is None else f"--{name}={value}" for name, value in script.options.items()]
        if script.init is not None:
            out.append(f"`{script.init.text}`")
        step_ns = _step(script)
        last = 0
        for index, line in enumerate(sorted(self.lines, key=lambda line: line.time_ns)):
            at = round(line.time_ns / step_ns) * step_ns  # steps of the whole, so that they do not add up to something else
            time = "0" if not index else f"+{_seconds(at - last)}"
            if line.aside:
                out.append(f"// {line.aside}, {time}: {' '.join(line.text.split())}")
                continue
            if line.ended_ns is not None and (line.blocks or line.ended_ns - line.time_ns > LASTS_NS):
                time += f"...{_seconds(round(line.ended_ns / step_ns) * step_ns - last)}"
            out.append(f"{time:>7} {line.text}")
            last = at
        if script.cleanup is not None:
            out.append(f"`{script.cleanup.text}`")
        return "\n".join(out) + "\n"


def _answered(call: Syscall, text: str, value: Any) -> str:
    """A call as it was written, with what it found in place of what the script says about it."""
    match call.name:
        case "epoll_wait":
            found = [f"{{events={epoll_names(events)}, fd={data}}}" for events, data in value] or ["{events=0, ptr=0}"]
            return re.sub(r"\{.*\}", found[0] if len(found) == 1 else f"[{', '.join(found)}]", text, count=1, flags=re.DOTALL)
        case "poll":
            entries = call.args[0].items if isinstance(call.args[0], ListOf) else ()
            ready = iter([got for entry, got in zip(entries, value, strict=False) if isinstance(entry, Struct) and "revents" in entry.fields])
            return re.sub(r"revents\s*=[^,}]*", lambda _: f"revents={poll_names(next(ready, 0))}", text)
        case "getsockopt" if isinstance(call.args[3], ListOf):
            return re.sub(r"\[[^]]*\]", f"[{int.from_bytes(value, 'little', signed=True)}]", text, count=1)
        case "ioctl" if len(call.args) > 2 and isinstance(call.args[2], ListOf):
            return re.sub(r"\[[^]]*\]", f"[{value}]", text, count=1)
    return text


def _call(source: str) -> str:
    """A system call without its result and what follows: up to the parenthesis that closes it."""
    depth = 0
    for piece in re.finditer(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|[()]', source, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if piece[0] == ")" and not depth:
            return source[: piece.end()]
    return source


def _seconds(time_ns: int) -> str:
    """Seconds as people write them."""
    whole, rest = divmod(max(time_ns, 0), 1_000_000_000)
    return f"{whole}.{rest:09}".rstrip("0").rstrip(".")


def _step(script: Script) -> int:
    """What times are rounded to, in ns: 1 ms, or less where the script's own times are finer."""
    finest = 1_000_000
    for event in script.events:
        for time_ns in (event.when.at_ns, event.when.until_ns or 0):
            while time_ns % finest and finest > FINEST_NS:
                finest //= 10
    return finest


def _ports(event: Event) -> tuple[int, int] | None:
    """The pair a packet of the script is of, if it says so, seen from the stack."""
    if not isinstance(event.action, Inject | Expect) or not isinstance(event.action.packet, TcpPacket) or event.action.packet.ports is None:
        return None
    ports = event.action.packet.ports
    return ports if isinstance(event.action, Expect) else (ports[1], ports[0])

"""`--record`: what a stack really did, written as a script.

The script that is given provides the actions: calls, injected packets, commands. Its expectations only say how long to
wait. What comes out has the results the calls had and the packets the stack sent, at the times they had, in full
(options, window): a start for a test, not a test. Whoever keeps it decides which of it is meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .constants import errno_name
from .errors import Mismatch, Where
from .flow import ACK, M32, SYN, Flow
from .packets import Live, decode_options, flags_text, numbers, option_text
from .runner import Runner
from .script import Code, Event, Expect, Opt, Syscall, TimeKind
from .syscalls import Prepared
from .target import Pending

LASTS_NS = 2_000_000  # a call that takes so long has blocked


@dataclass(slots=True)
class Line:
    """One event of the new script."""

    time_ns: int
    text: str
    ended_ns: int | None = None  # of a call: when it returned


class Recorder(Runner):
    """A run that compares nothing."""

    def record(self) -> str:
        """Run, and return the new script. Raises as `run` does for what is not a difference."""
        self.lines: list[Line] = []
        self._calls: dict[Where, Line] = {}
        self.calls.verify = self._note_result  # type: ignore[method-assign]
        self.run()
        return self._text()

    # --- what is noted ---

    def _note_result(self, event: Event, prepared: Prepared | None, pending: Pending) -> None:
        line = self._calls[event.where]
        line.ended_ns = pending.ended_ns
        if pending.error is not None:
            line.text += f" = -1 {errno_name(pending.error.errno or 0)} ({pending.error.strerror})"
        else:
            assert prepared is not None
            line.text += f" = {prepared.returned(pending.value)}"

    def _event(self, event: Event) -> None:
        action = event.action
        if isinstance(action, Expect):
            self._pause(event)
            return
        self._wait_for(event)
        self._take_packets()
        line = Line(self.target.now(), self._action_text(event))
        self.lines.append(line)
        if isinstance(action, Syscall):
            self._calls[event.where] = line
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
        """What was expected, and when, only says how long to wait."""
        when = event.when
        if when.kind is not TimeKind.ANY:
            due = self._due(event) + (when.late_ns or when.at_ns) - when.at_ns
            self._check_limit(due, event.where)
            self._until(due)
        if not self._seen and not self.target.captured:
            self.target.wait(self.target.now() + min(self.target.patience_ns, LASTS_NS), lambda: bool(self.target.captured))
        self._take_packets()
        self._passed()

    def _finish(self) -> None:
        if self.blocked is not None:
            self._until_done(self.blocked)
            self._check_blocked()
        self._until(self.target.now() + self.setup.tolerance_ns)
        self._take_packets()

    def _check_end(self, event: Event, pending: Pending, due_ns: int, base_ns: int) -> None:
        """When a call returned is noted, not judged."""

    def _action_text(self, event: Event) -> str:
        match event.action:
            case Syscall():
                return event.source.rpartition("=")[0].rstrip()
            case Code(source):
                return f"%{{\n{source.strip()}\n}}%"
        return event.source

    def _take_packets(self) -> None:
        self._drain()
        for live in self._seen:
            flow = self._flow_of(live)
            if live.header.flags & SYN:
                flow.learn(live.header.seq, 0)
            flow.last_seq = live.header.seq
            self.lines.append(Line(live.time_ns, self._packet_text(live, flow)))
        self._seen.clear()

    def _flow_of(self, live: Live) -> Flow:
        pair = live.header.sport, live.header.dport
        known = next((flow for flow in self.flows if (flow.local_port, flow.remote_port) == pair), None)
        return known or self._new_flow(*pair)

    def _packet_text(self, live: Live, flow: Flow) -> str:
        header = live.header
        seq, ack = numbers(header, flow)
        text = f"> {flags_text(header.flags)} {seq}:{seq + live.length & M32}({live.length})"
        if header.flags & ACK:
            text += f" ack {ack}"
        text += f" win {header.window}"
        if header.urg_ptr:
            text += f" urg {header.urg_ptr}"
        options = decode_options(header, flow)
        for index, option in enumerate(options):
            if option.kind == "TS":
                # small numbers instead of the clock's: the first is 100, ticks are as they are
                first = flow.first_stamp or (100, option.value[0])
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
        last = 0
        for index, line in enumerate(sorted(self.lines, key=lambda line: line.time_ns)):
            time = "0" if not index else f"+{_seconds(line.time_ns - last)}"
            if line.ended_ns is not None and line.ended_ns - line.time_ns > LASTS_NS:
                time += f"...{_seconds(line.ended_ns - last)}"
            out.append(f"{time:>7} {line.text}")
            last = line.time_ns
        if script.cleanup is not None:
            out.append(f"`{script.cleanup.text}`")
        return "\n".join(out) + "\n"


def _seconds(time_ns: int) -> str:
    """Seconds to the millisecond, as people write them."""
    return f"{round(max(time_ns, 0) / 1e6) / 1000:g}"

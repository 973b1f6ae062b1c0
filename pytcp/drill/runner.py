"""Running one script on one target: time, packets, calls, in the order of the script.

Rules (packetdrill's, except where said):
- An action runs when its time has come; times are relative to when the event before it was over, a chain of injected
  packets to the nominal time of the first.
- What is expected may be off by `--tolerance_usecs`, or by 12.5 % of the time since the event before, if that is more.
- An expected packet takes the next packet of the connection, whatever it is. One that is missing fails 2 s after its time.
- One line can stand for several packets of equal size (a super-segment); with `--strict_segments` it cannot.
- A packet that nobody expected fails the run: the next expectation sees it, and the end of the script looks again, which
  the original does not (`compat`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pytcp.wire.tcpopt import Timestamps

from .codeblock import Blocks
from .errors import DrillError, Mismatch, ScriptError, Where
from .flow import ACK, M32, SYN, Flow
from .packets import (
    Addresses,
    Live,
    build_icmp,
    build_tcp,
    checksum_ok,
    compare,
    decode_options,
    flags_of,
    flags_text,
    is_syn,
    merge,
    numbers,
    options_text,
    read,
    scripted,
)
from .report import Trace, seconds, side_by_side, with_trace
from .script import Code, Command, Event, Expect, IcmpPacket, Inject, Script, Syscall, TcpPacket, TimeKind
from .syscalls import Prepared, Syscalls
from .target import Pending, Setup, Target

MISSING_NS = 2_000_000_000  # an expected packet is given up so long after its time
LISTEN_NS = 4_000_000  # for what the stack sends behind the last event: a longer tolerance is for late packets, not for timers
FIRST_PORT = 40000  # of the tool, one more for each connection
NEVER = 1 << 62


@dataclass(slots=True)
class Blocked:
    """The system call under way."""

    event: Event
    prepared: Prepared
    pending: Pending
    due_ns: int  # when it must return
    base_ns: int


class Runner:
    """One run of one script."""

    def __init__(self, script: Script, target: Target, setup: Setup, addresses: Addresses) -> None:
        self.script = script
        self.target = target
        self.setup = setup
        self.to = addresses
        self.calls = Syscalls(target, setup)
        self.blocks = Blocks()
        self.trace = Trace()
        self.flows: list[Flow] = []
        self.flow: Flow | None = None
        self.base_ns = 0  # what relative times count from
        self.chain_ns: int | None = None  # nominal time of the injected packet before
        self.blocked: Blocked | None = None
        self.expecting = False
        self.limit_ns = round(setup.timeout_s * 1e9)
        self._seen: list[Live] = []  # taken off the target, not yet compared
        self._owner: dict[int, Flow] = {}
        self.calls.on_close = self._closed
        self.calls.on_open = self._opened

    # --- the whole ---

    def run(self) -> None:
        """Raises what it ends with, if that is not a pass."""
        script, target = self.script, self.target
        target.open()
        try:
            if script.init is not None:
                self._shell(script.init, script.init_where, False)
            target.start()
            for event in script.events:
                self._event(event)
            self._finish()
        finally:
            try:
                if script.cleanup is not None:
                    self._shell(script.cleanup, script.cleanup_where, True)
            finally:
                target.close()

    def _event(self, event: Event) -> None:
        try:
            match event.action:
                case Inject():
                    self._inject(event)
                case Expect():
                    self._expect(event)
                case Syscall():
                    self._syscall(event)
                case Code(source):
                    self._wait_for(event)
                    self.blocks.run(source, self._info(), event.where)
                    self._passed()
                case Command():
                    self._wait_for(event)
                    self._shell(event.action, event.where, False)
                    self._passed()
        except DrillError as error:
            if error.where is None:
                error.where = event.where
            if isinstance(error, Mismatch) and error.report.count("last ") == 0:
                error.report = with_trace(error.report, self._all_traced())
            raise

    def _finish(self) -> None:
        """The last event is over: a call must have returned, and the stack have nothing more to say."""
        last = self.script.events[-1]
        if self.blocked is not None:
            self._until_done(self.blocked)
            self._check_blocked(final=True)
        if self.setup.compat:
            return
        self._until(self.target.now() + min(self.setup.tolerance_ns, LISTEN_NS))
        extra = self._next(None, None)
        if extra is not None:
            name = self._describe(extra, self._flow_of(extra))
            raise Mismatch(f"the script is over, and the stack sent {name}", last.where, with_trace(f"  unexpected: {name}", self._all_traced()))

    def _shell(self, command: Command, where: Where | None, cleanup: bool) -> None:
        try:
            self.target.shell(command.text, cleanup)
        except DrillError as error:
            error.where = error.where or where
            if cleanup and isinstance(error, Mismatch):
                return  # what is over is over
            raise

    def _info(self) -> dict[str, int]:
        fds = self.calls.fds
        handle = fds.live.get(fds.sockets[-1]) if fds.sockets else None
        return {} if handle is None else self.target.info(handle)

    # --- time ---

    def _due(self, event: Event) -> int:
        when = event.when
        if when.kind is TimeKind.ABSOLUTE:
            return when.at_ns
        base = self.base_ns
        if isinstance(event.action, Inject) and self.chain_ns is not None:
            base = self.chain_ns
        return base + when.at_ns

    def _tolerance(self, gap_ns: int) -> int:
        return max(self.setup.tolerance_ns, round(gap_ns * self.setup.tolerance_percent / 100))

    def _passed(self) -> None:
        self.base_ns = self.target.now()
        self.chain_ns = None

    def _called(self, pending: Pending) -> None:
        """A call is made. Time counts from its start: it takes next to none, and on a busy machine we hear late of its end."""
        self.base_ns = pending.began_ns
        self.chain_ns = None

    def _check_limit(self, until_ns: int, where: Where | None = None) -> None:
        if until_ns > self.limit_ns:
            raise Mismatch(f"the script wants to go on until {seconds(until_ns)} s, the limit is {self.setup.timeout_s:g} s (--timeout)", where)

    def _until(self, until_ns: int) -> None:
        """Let time pass; a call that returns meanwhile is checked."""
        while True:
            self.target.wait(until_ns, self._returned)
            if not self._returned():
                return
            self._check_blocked()

    def _returned(self) -> bool:
        """The call under way is over."""
        return self.blocked is not None and self.blocked.pending.done

    def _wait_for(self, event: Event) -> int:
        due = self._due(event)
        self._check_limit(due, event.where)
        if due < self.target.now() - self._tolerance(0) and event.when.kind is TimeKind.ABSOLUTE:
            raise ScriptError(f"time {seconds(due)} has passed already (it is {seconds(self.target.now())})", event.where)
        self._until(due)
        return due

    # --- system calls ---

    def _syscall(self, event: Event) -> None:
        self._wait_for(event)
        if self.blocked is not None:
            # one thread makes the calls: the next waits for the one under way
            self._until_done(self.blocked)
            self._check_blocked(final=True)
        prepared = None
        try:
            prepared = self.calls.prepare(event)
            pending = self.target.begin(prepared.function, *prepared.args)
        except OSError as error:
            pending = Pending(True, None, error, self.target.now(), self.target.now())
        except (ValueError, TypeError, OverflowError) as error:
            # what C would cut down to size Python's sockets refuse to pass on
            raise ScriptError(f"arguments that cannot be passed on: {error}", event.where) from None
        when = event.when
        if when.until_ns is None:
            if not pending.done:
                self.target.wait(pending.began_ns + self.target.patience_ns, lambda: pending.done)
            if not pending.done:
                raise Mismatch("the call blocks, and the script does not say so (T...E)", event.where)
            self.calls.verify(event, prepared, pending)
            self._called(pending)
            return
        due = when.until_ns + (self.base_ns if when.until_relative else 0)
        self._check_limit(due, event.where)
        assert prepared is not None or pending.done
        base = self.base_ns
        self._called(pending)
        if pending.done:
            self._check_end(event, pending, due, base)
            self.calls.verify(event, prepared, pending)
        else:
            assert prepared is not None
            self.blocked = Blocked(event, prepared, pending, due, base)

    def _until_done(self, blocked: Blocked) -> None:
        until = blocked.due_ns + self._tolerance(blocked.due_ns - blocked.base_ns) + self.target.patience_ns
        self.target.wait(until, lambda: blocked.pending.done)

    def _check_blocked(self, final: bool = False) -> None:
        blocked = self.blocked
        if blocked is None:
            return
        if not blocked.pending.done:
            if final or self.target.now() > blocked.due_ns + self._tolerance(blocked.due_ns - blocked.base_ns) + self.target.patience_ns:
                raise Mismatch(f"the call still blocks at {seconds(self.target.now())}, it should return at {seconds(blocked.due_ns)}", blocked.event.where)
            return
        self.blocked = None
        try:
            self._check_end(blocked.event, blocked.pending, blocked.due_ns, blocked.base_ns)
            self.calls.verify(blocked.event, blocked.prepared, blocked.pending)
        except DrillError as error:
            error.where = blocked.event.where
            raise

    def _check_end(self, event: Event, pending: Pending, due_ns: int, base_ns: int) -> None:
        off = pending.ended_ns - due_ns
        if abs(off) > self._tolerance(due_ns - base_ns):
            raise Mismatch(
                f"the call returned at {seconds(pending.ended_ns)}, expected at {seconds(due_ns)} ({off / 1e6:+.3f} ms)", event.where,
            )  # fmt: skip

    # --- injecting ---

    def _closed(self, fd: int) -> None:
        flow = self._owner.pop(fd, None)
        if flow is not None:
            flow.closed = True

    def _opened(self, fd: int) -> None:
        if self.flow is not None and self.calls.connects == 0:
            self._owner[fd] = self.flow

    def _new_flow(self, local: int, remote: int) -> Flow:
        flow = Flow(local, remote)
        flow.listens = self.calls.listens
        self.flows.append(flow)
        self.flow = flow
        return flow

    def _flow_to_inject(self, event: Event, packet: TcpPacket | IcmpPacket) -> Flow:
        flow = self.flow
        if isinstance(packet, TcpPacket) and packet.ports is not None:
            remote, local = packet.ports
            for known in self.flows:
                if (known.local_port, known.remote_port) == (local, remote):
                    self.flow = known
                    return known
            return self._new_flow(local, remote)
        opens = isinstance(packet, TcpPacket) and packet.flags & (SYN | ACK) == SYN
        if flow is None or (opens and (flow.closed or flow.listens != self.calls.listens)):
            if not isinstance(packet, TcpPacket):
                raise ScriptError("an ICMP error needs a connection it is about", event.where)
            return self._new_flow(self.setup.bind_port, FIRST_PORT + len(self.flows))
        return flow

    def _built(self, event: Event, packet: TcpPacket | IcmpPacket) -> bytes:
        """A packet to inject, in the numbers of the connection it belongs to."""
        flow = self._flow_to_inject(event, packet)
        if not isinstance(packet, TcpPacket):
            return build_icmp(packet, flow, self.to, event.where)
        if packet.flags & SYN and flow.remote_isn is None:
            flow.remote_isn = packet.seq
        return build_tcp(packet, flow, self.to, event.where)

    def _inject(self, event: Event) -> None:
        action = event.action
        assert isinstance(action, Inject)
        due = self._wait_for(event)
        packet = action.packet
        self.target.check(packet, True)
        data = self._built(event, packet)
        self._drain()
        self.trace.add(self.target.now(), "<", data)
        gso = self.setup.mss if isinstance(packet, TcpPacket) and self.setup.mss and packet.length > self.setup.mss else 0
        self.target.inject(data, gso)
        self.base_ns = self.target.now()
        self.chain_ns = due

    # --- expecting ---

    def _drain(self) -> None:
        captured = self.target.captured
        while captured:
            time_ns, data = captured.popleft()
            live = read(time_ns, data)
            if live is None or (live.src, live.dst) != (self.to.local, self.to.remote):
                continue
            self.trace.add(time_ns, ">", data)
            self._seen.append(live)

    def _all_traced(self) -> Trace:
        self._drain()
        return self.trace

    def _next(self, packet: TcpPacket | None, event: Event | None) -> Live | None:
        """The next packet of the connection in question; those of others are passed over."""
        self._drain()
        while self._seen:
            live = self._seen[0]
            if self._mine(live, packet):
                return self._seen.pop(0)
            self._seen.pop(0)
        return None

    def _mine(self, live: Live, packet: TcpPacket | None) -> bool:
        """Whether a packet is what `packet` speaks of; without one: whether the end of the script may not have it."""
        pair = (live.header.sport, live.header.dport)
        if packet is not None and packet.ports is not None:
            if pair != packet.ports:
                return False
            self.flow = next((flow for flow in self.flows if (flow.local_port, flow.remote_port) == pair), None) or self._new_flow(*pair)
            return True
        flow = self.flow
        # a connection begun since: its SYN is what an expected SYN means
        fresh = packet is not None and packet.flags & (SYN | ACK) == SYN and self.calls.connects > 0
        if flow is not None and (flow.local_port, flow.remote_port) == pair and not fresh:
            return True
        known = any((other.local_port, other.remote_port) == pair for other in self.flows)
        if packet is None:
            return not known
        if not known and is_syn(live):
            self.calls.connects = 0
            flow = self._new_flow(*pair)
            if self.calls.fds.sockets:
                self._owner[self.calls.fds.sockets[-1]] = flow
            return True
        return False

    def _flow_of(self, live: Live) -> Flow:
        """The connection of a packet of the stack, a new one if need be."""
        pair = live.header.sport, live.header.dport
        known = next((flow for flow in self.flows if (flow.local_port, flow.remote_port) == pair), None)
        if known is None:
            known = self._new_flow(*pair)
            if live.header.flags & SYN:
                known.learn(live.header.seq, 0)
        return known

    def _expect(self, event: Event) -> None:
        action = event.action
        assert isinstance(action, Expect) and isinstance(action.packet, TcpPacket)
        packet = action.packet
        self.target.check(packet, False)
        when = event.when
        any_time = when.kind is TimeKind.ANY
        due = self.target.now() if any_time else self._due(event)
        late = due + (when.late_ns - when.at_ns if when.late_ns is not None else 0)
        self._check_limit(due, event.where)
        deadline = self.limit_ns if any_time else late + MISSING_NS + self._tolerance(late - self.base_ns)
        live = self._await(packet, event, deadline)
        if live is None:
            reason = f"no packet came: expected at {seconds(due)}, waited until {seconds(deadline)}"
            raise Mismatch(reason, event.where, f"  expected: {_line(packet)}\n  got:      nothing")
        live = self._whole(packet, live, event)
        self._compare(packet, live, event)
        if not any_time:
            self._check_time(live, due, late, event)
        self.base_ns = live.time_ns
        self.chain_ns = None

    def _await(self, packet: TcpPacket, event: Event, deadline: int) -> Live | None:
        while True:
            live = self._next(packet, event)
            if live is not None:
                return live
            if self.target.now() >= deadline:
                return None
            self.target.wait(deadline, lambda: bool(self.target.captured) or self._returned())
            self._check_blocked()

    def _whole(self, packet: TcpPacket, live: Live, event: Event) -> Live:
        """The pieces of a super-segment as one packet."""
        if self.setup.strict_segments:
            return live
        size = live.length
        while live.length < packet.length and size and self.flow is not None:
            if numbers(live.header, self.flow)[0] != packet.seq:
                return live
            more = self._await(packet, event, min(self.target.now() + self.setup.tolerance_ns, self.limit_ns))
            if more is None:
                return live
            joined = merge(live, more)
            if isinstance(joined, str) or more.length > size or (more.length < size and joined.length < packet.length):
                self._seen.insert(0, more)
                return live
            live = joined
        return live

    def _compare(self, packet: TcpPacket, live: Live, event: Event) -> None:
        flow = self.flow
        assert flow is not None
        if live.header.flags & SYN and packet.flags & SYN:
            flow.learn(live.header.seq, packet.seq)
        gap = max(live.time_ns - self.base_ns, 0)
        slack = self._tolerance(gap) + self.setup.stamp_tick_ns
        differences = compare(packet, live, flow, self.setup.stamp_tick_ns, slack)
        if not checksum_ok(live) and live.pieces == 1 and self.target.name == "pytcp":
            raise Mismatch("the packet has a wrong checksum", event.where)
        if differences:
            names = ", ".join(item.name for item in differences)
            report = f"{side_by_side(differences)}\n  expected: {_line(packet)}\n  got:      {self._describe(live, flow)}"
            raise Mismatch(f"packet differs in {names}", event.where, report)
        flow.last_seq = live.header.seq
        self._learn_stamp(packet, live, flow)

    def _learn_stamp(self, packet: TcpPacket, live: Live, flow: Flow) -> None:
        wire = next((option.tsval for option in live.header.options if isinstance(option, Timestamps)), None)
        if wire is None or not isinstance(packet.options, tuple):
            return
        for option in packet.options:
            if option.kind == "TS" and option.value[0] >= 0:
                flow.saw_stamp(option.value[0], wire)

    def _check_time(self, live: Live, due: int, late: int, event: Event) -> None:
        allowed = self._tolerance(due - self.base_ns)
        if due - allowed <= live.time_ns <= late + allowed:
            return
        off = live.time_ns - (due if live.time_ns < due else late)
        window = f"{seconds(due)}..{seconds(late)}" if late != due else seconds(due)
        raise Mismatch(
            f"packet came at {seconds(live.time_ns)}, expected at {window} ({off / 1e6:+.3f} ms, {allowed / 1e6:g} ms are allowed)", event.where,
            f"  expected at: {window}\n  came at:     {seconds(live.time_ns)}",
        )  # fmt: skip

    def _describe(self, live: Live, flow: Flow) -> str:
        """A captured packet as a line of a script."""
        header = live.header
        seq, ack = numbers(header, flow)
        text = f"{flags_text(header.flags)} {seq}:{seq + live.length & M32}({live.length})"
        if header.flags & ACK:
            text += f" ack {ack}"
        options = scripted(decode_options(header, flow), flow)
        text += f" win {header.window}" + (f" urg {header.urg_ptr}" if header.urg_ptr else "")
        return text + (f" {options_text(options)}" if options else "") + f" at {seconds(live.time_ns)}"


def _line(packet: TcpPacket) -> str:
    """A packet of the script as it was written, tidied."""
    ip = packet.ip
    said = [ip.ecn] if ip.ecn is not None else []
    said += [f"{name} {value}" for name, value in (("tos", ip.tos), ("ttl", ip.ttl), ("flowlabel", ip.flowlabel)) if value is not None]
    text = f"[{', '.join(said)}] " if said else ""
    text += f"{flags_text(flags_of(packet), packet.ace is not None)} {packet.seq}:{packet.seq + packet.length & M32}({packet.length})"
    if packet.ack is not None:
        text += f" ack {packet.ack}"
    if packet.window is not None:
        text += f" win {packet.window}"
    if packet.urg is not None:
        text += f" urg {packet.urg}"
    if isinstance(packet.options, tuple) and packet.options:
        text += f" {options_text(packet.options)}"
    return text

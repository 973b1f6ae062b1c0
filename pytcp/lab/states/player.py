"""One script of stimuli on one stack, with everything seen noted.

A script here has only actions: system calls that do not block, and packets that arrive, each at a time of its own. A
`Player` performs them one by one with the machinery of `pytcp drill`, and notes for each what the call returned, which
packets left since the one before, and, behind it, what poll() says of every socket, its queues and its tcp_info. What is
noted of a packet is free of what differs from run to run: sequence numbers count from the initial ones, timestamps from the
first, the local port of an active open is `*`.
"""

from __future__ import annotations

import errno
import select
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from pytcp.drill.constants import NAMES
from pytcp.drill.errors import Mismatch, ScriptError
from pytcp.drill.flow import ACK, M32, SYN, Flow
from pytcp.drill.packets import Addresses, Live, decode_options, flags_text, numbers, option_text
from pytcp.drill.parser import parse
from pytcp.drill.run import Settings, default_macros, setup_for
from pytcp.drill.runner import Runner
from pytcp.drill.script import Event, Inject, Opt, Script, Syscall, TimeKind, When
from pytcp.drill.target import Pending, Target
from pytcp.wire.tcpopt import WindowScale

READY = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP
FIRST_STAMP = 100  # the first timestamp of the stack in a script's numbers
QUEUES = {"inq": NAMES["SIOCINQ"], "outq": NAMES["SIOCOUTQ"]}


@dataclass(slots=True)
class Sent:
    """A packet of the stack."""

    t_us: int
    step: int  # of the action before it
    text: str  # everything but its timestamp
    stamp: int | None  # TS val, ms since the first one
    flow: int = 0  # which connection, in the order of their first packets


@dataclass(slots=True)
class Step:
    """One action, and what there was to see behind it."""

    t_us: int
    text: str
    result: str = ""
    sockets: dict[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class Notes:
    """One run."""

    steps: list[Step] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    times_ns: list[int] = field(default_factory=list)  # when each action was performed
    end_ns: int = 0
    boot_ns: int = 0  # where the stack's ticks stood at time 0, ns


class View:
    """A connection as the tool's end sees it; numbers are the script's."""

    def __init__(self) -> None:
        self.snd_una = 0  # the tool has acknowledged so much
        self.snd_nxt = 0  # end of what the stack has sent
        self.rcv_nxt = 0  # the stack acknowledged so much
        self.window = 0  # right edge minus rcv_nxt, bytes
        self.nxt = 1  # end of what the tool sent
        self.stamp: int | None = None  # TS val of the stack's last segment, the script's numbers
        self.wscale = 0
        self.fin = False
        self.syn = False


class Player(Runner):
    """See the module."""

    def __init__(self, script: Script, target: Target, ip: str = "ipv4") -> None:
        setup = setup_for(script, ip, Settings())
        super().__init__(script, target, setup, Addresses(ip_address(setup.local).packed, ip_address(setup.remote).packed))
        self.notes = Notes()
        self.views: dict[Flow, View] = {}

    def perform(self, event: Event) -> Step:
        """Do what the event says, now."""
        self.take()
        now = self.target.now()
        self.notes.times_ns.append(now)
        step = Step(now // 1000, event.source)
        self.notes.steps.append(step)
        match event.action:
            case Inject(packet):
                self.target.inject(self._built(event, packet), 0)
            case Syscall():
                step.result = self._call(event)
        self.take()
        step.sockets = {fd: self.look(handle) for fd, handle in sorted(self.calls.fds.live.items())}
        return step

    def finish(self, counters: dict[str, int]) -> Notes:
        """The run is over."""
        self.take()
        self.notes.counters = counters
        self.notes.end_ns = self.target.now()
        return self.notes

    def ready(self, handle: Any) -> int:
        """What poll() says of a socket."""
        raise NotImplementedError

    # --- acting ---

    def _call(self, event: Event) -> str:
        prepared = None
        try:
            prepared = self.calls.prepare(event)
            pending = self.target.begin(prepared.function, *prepared.args)
        except OSError as error:
            pending = Pending(True, None, error)
        except ScriptError as error:
            return error.reason  # of a descriptor that accept() gave to the other
        if not pending.done:
            return "blocks"
        if pending.error is not None:
            return errno.errorcode.get(pending.error.errno or 0, "?")
        assert prepared is not None
        value = pending.value
        assert isinstance(event.action, Syscall)
        if event.action.name in ("read", "recv"):
            return str(len(value))  # what MSG_TRUNC leaves in the buffer is anybody's
        if event.action.name == "getsockopt":
            return str(int.from_bytes(value[:4], "little", signed=True))
        try:
            return str(prepared.returned(value))
        except Mismatch as error:
            if not isinstance(value, bytes):
                self.target.begin(self.target.calls.close, value)  # a descriptor the script did not count on
            return error.reason

    # --- seeing ---

    def look(self, handle: Any) -> dict[str, Any]:
        """A socket's readiness, queues and tcp_info."""
        seen: dict[str, Any] = {"poll": self.ready(handle)}
        for name, request in QUEUES.items():
            try:
                seen[name] = self.target.calls.ioctl(handle, request)
            except OSError as error:
                seen[name] = errno.errorcode.get(error.errno or 0, "?")
        seen.update(self.target.info(handle))
        return seen

    def take(self) -> None:
        """Note what the stack has sent."""
        self._drain()
        for live in self._seen:
            flow = self._learn(live)
            text, stamp = self._text(live, flow)
            self.notes.sent.append(Sent(live.time_ns // 1000, len(self.notes.steps), text, stamp, self.flows.index(flow)))
        self._seen.clear()

    def view(self, flow: Flow) -> View:
        return self.views.setdefault(flow, View())

    def _learn(self, live: Live) -> Flow:
        header = live.header
        pair = header.sport, header.dport
        flow = next((flow for flow in self.flows if (flow.local_port, flow.remote_port) == pair), None) or self._new_flow(*pair)
        flow.last_seq = header.seq
        view = self.view(flow)
        if header.flags & SYN:
            if flow.local_isn not in (None, header.seq):
                self.views[flow] = view = View()  # another connection of the same ports
                flow.local_isn = header.seq
            flow.learn(header.seq, 0)
        seq, ack = numbers(header, flow)
        if header.flags & SYN:
            view.syn = True
            view.wscale = next((option.shift for option in header.options if isinstance(option, WindowScale)), 0)
        if not header.flags & 4:
            end = seq + live.length + bool(header.flags & SYN) + (header.flags & 1) & M32
            if end > view.snd_nxt:
                view.snd_nxt = end
                view.fin = bool(header.flags & 1)
            if header.flags & ACK:
                view.rcv_nxt = ack if not header.flags & SYN or flow.remote_isn is None else ack - flow.remote_isn & M32
                view.window = header.window if header.flags & SYN else header.window << view.wscale
        return flow

    def _text(self, live: Live, flow: Flow) -> tuple[str, int | None]:
        header = live.header
        seq, ack = numbers(header, flow)
        stamp = None
        options = decode_options(header, flow)
        for at, option in enumerate(options):
            if option.kind == "TS":
                first = flow.first_stamp or (FIRST_STAMP, option.value[0])
                stamp = option.value[0] - first[1] + first[0] & M32
                flow.saw_stamp(stamp, option.value[0])
                self.view(flow).stamp = stamp
                options[at] = Opt("TS", (0, option.value[1]))
            elif option.kind in ("FO", "FOEXP"):
                options[at] = replace(option, data=bytes(len(option.data)))  # each host has a key of its own
        local = str(flow.local_port) if flow.local_port == self.setup.bind_port else "*"
        if not header.seq:
            seq = 0  # of a reset that answers what had no ACK
        text = f"[tos {live.tos} ttl {live.ttl}] {local} > {header.dport} {flags_text(header.flags)} {seq}:{seq + live.length & M32}({live.length})"
        text += f" ack {ack} win {header.window} urg {header.urg_ptr} <{','.join(map(option_text, options))}>"
        return text, stamp


def script_of(lines: list[str], name: str, ip: str) -> Script:
    """Lines of a script, with only its actions, each at a time counted from the start. Raises ScriptError.

    What the stack is expected to do, code blocks and commands are left out; an expectation's time passes."""
    script = parse("\n".join(lines) + "\n", name, default_macros(ip))
    events: list[Event] = []
    now = 0
    for event in script.events:
        when = event.when
        now = when.at_ns if when.kind is TimeKind.ABSOLUTE else now + when.at_ns
        action = event.action
        if isinstance(action, Syscall) and action.name == "socket" and "SOCK_NONBLOCK" not in event.source:
            raise ScriptError("sockets of a script of stimuli have SOCK_NONBLOCK", event.where)
        if isinstance(action, Inject | Syscall):
            events.append(replace(event, when=When(TimeKind.ABSOLUTE, now)))
    script.events = events
    return script

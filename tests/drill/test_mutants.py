"""The runner cannot be fooled: a passing script with one field changed fails, on either target.

Each mutant says something else about the same conversation. Mutants of what the script does (an injected packet, a call)
are not made: they are another conversation, which may well pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytcp.drill.parser import parse
from pytcp.drill.run import Settings, run_script
from pytcp.drill.script import ANY, Any_, Code, Event, Expect, IpInfo, ListOf, Opt, Script, Struct, Syscall, TcpPacket, TimeKind, When

HERE = Path(__file__).parent
ORIGINALS = [
    "handshake/active_then_data",
    "handshake/refused",
    "options/everything_offered_and_taken",
    "data/fast_retransmit_by_sack",
    "data/epoll_edges",
    "data/poll_wakes_for_data",
    "reorder/two_holes_newest_first",
    "close/half_close_still_reads",
    "window/window_clamp",
    "paws/old_timestamp_is_refused",
    "urgent/sent",
]
ON_THE_KERNEL = ["handshake/active_then_data", "options/everything_offered_and_taken", "reorder/two_holes_newest_first", "close/half_close_still_reads"]
LATER_NS = 60_000_000  # beyond any tolerance used here
SHORT = {"tolerance_usecs": "20000"}
M32 = 0xFFFFFFFF


def packet_mutants(packet: TcpPacket) -> Iterator[tuple[str, TcpPacket]]:
    """The same packet with one field changed."""
    if not packet.flags & 0x002:  # a SYN's number is the script's own name for what the stack has chosen
        yield "sequence number", replace(packet, seq=packet.seq + 1 & M32)
    yield "payload length", replace(packet, length=packet.length + 1)
    if packet.length:
        yield "payload length, shorter", replace(packet, length=packet.length - 1)
    yield "PSH", replace(packet, flags=packet.flags ^ 0x008)
    yield "FIN", replace(packet, flags=packet.flags ^ 0x001)
    yield "ECE", replace(packet, flags=packet.flags ^ 0x040)
    yield "URG", replace(packet, flags=packet.flags ^ 0x020)
    yield "RST", replace(packet, flags=packet.flags ^ 0x004)
    yield "ACE", replace(packet, flags=packet.flags & 0x03F, ace=5)
    for info in (IpInfo(ecn="ce"), IpInfo(tos=0xFC), IpInfo(ttl=3), IpInfo(flowlabel=0xFFFFF)):
        yield f"IP header, {info}", replace(packet, ip=info)
    if packet.ack is not None:
        yield "acknowledgement", replace(packet, ack=packet.ack + 1 & M32)
    if packet.window is not None:
        yield "window", replace(packet, window=packet.window ^ 1)
    if packet.urg is not None:
        yield "urgent pointer", replace(packet, urg=packet.urg + 1)
    options = packet.options
    if isinstance(options, Any_):
        return
    yield "an option too many", replace(packet, options=(*(options or ()), Opt("nop"), Opt("nop"), Opt("nop"), Opt("nop")))
    if options:
        yield "no options", replace(packet, options=None)
        yield "an option missing", replace(packet, options=options[1:])
        if len(set(options)) > 1:
            yield "options turned around", replace(packet, options=options[::-1])
        for index, option in enumerate(options):
            if option.kind in ("mss", "wscale"):
                changed = replace(option, value=(option.value[0] + 1,))
            elif option.kind == "TS":
                changed = replace(option, value=(option.value[0], option.value[1] + 1))
            elif option.kind == "sack":
                changed = replace(option, blocks=((option.blocks[0][0], option.blocks[0][1] + 1), *option.blocks[1:]))
            else:
                continue
            yield f"value of {option.kind}", replace(packet, options=(*options[:index], changed, *options[index + 1 :]))


def answer_mutants(call: Syscall) -> Iterator[Syscall]:
    """The same call that finds something else: the value of an option or of an ioctl, readiness."""
    args = call.args
    match call.name, args:
        case "getsockopt", (*_, ListOf((int(value),)), _):
            yield replace(call, args=(*args[:3], ListOf((value + 1,)), args[4]))
        case "ioctl", (_, _, ListOf((int(value),))):
            yield replace(call, args=(*args[:2], ListOf((value + 1,))))
        case "poll", (ListOf((Struct(fields), *more)), *rest) if "revents" in fields:
            yield replace(call, args=(ListOf((Struct({**fields, "revents": 0x7F}), *more)), *rest))
        case "epoll_wait", (epoll, Struct(fields), *rest) if call.result:
            yield replace(call, args=(epoll, Struct({**fields, "events": 0x7F}), *rest))
            yield replace(call, args=(epoll, Struct({**fields, "fd": 77}), *rest))


def moved(when: When, by_ns: int) -> When:
    """A time moved, with its window."""
    late = None if when.late_ns is None else when.late_ns + by_ns
    return replace(when, at_ns=when.at_ns + by_ns, late_ns=late)


def event_mutants(event: Event) -> Iterator[tuple[str, Event]]:
    """The same event with one thing changed."""
    match event.action:
        case Expect(TcpPacket() as packet):
            for what, changed in packet_mutants(packet):
                yield what, replace(event, action=Expect(changed))
            if event.when.kind is TimeKind.RELATIVE:
                yield "time", replace(event, when=moved(event.when, LATER_NS))
        case Syscall() as call if isinstance(call.result, int):
            if call.name not in ("socket", "accept", "epoll_create"):  # their results are names the script gives
                yield "return value", replace(event, action=replace(call, result=call.result + 1))
            if call.error is not None:
                yield "errno", replace(event, action=replace(call, error="EXDEV"))
            else:
                for answer in answer_mutants(call):
                    yield "what it found", replace(event, action=answer)
                yield "an errno where there is none", replace(event, action=replace(call, result=-1, error="EXDEV"))
            if event.when.until_ns is not None:
                yield "end of a blocking call", replace(event, when=replace(event.when, until_ns=event.when.until_ns + LATER_NS))
        case Code(source):
            yield "assertion", replace(event, action=Code(source.replace("==", "!=").replace("&", "and not")))


def mutants(script: Script) -> Iterator[tuple[str, Script]]:
    """The script with one event changed, added, or missing where that must be seen."""
    for index, event in enumerate(script.events):
        for what, changed in event_mutants(event):
            yield f"line {event.where.line}: {what}", with_events(script, [*script.events[:index], changed, *script.events[index + 1 :]])
        if isinstance(event.action, Expect):
            yield f"line {event.where.line}: the packet twice", with_events(script, [*script.events[: index + 1], event, *script.events[index + 1 :]])
    last = max(index for index, event in enumerate(script.events) if isinstance(event.action, Expect))
    behind = script.events[last + 1 :]
    yield "the last packet is not expected", with_events(script, [*script.events[:last], *behind])


def with_events(script: Script, events: list[Event]) -> Script:
    return replace(script, events=events)


def load(name: str) -> Script:
    path = HERE / f"{name}.pkt"
    return parse(path.read_text(), str(path))


def survivors(script: Script, target: str, settings: Settings) -> list[str]:
    """The mutants that passed, or ended in anything but a failure."""
    found = []
    for what, mutant in mutants(script):
        result = run_script(mutant, target, "ipv4", settings)
        if result.verdict != "fail":
            found.append(f"{what}: {result.verdict} {result.reason}")
    return found


@pytest.mark.parametrize("name", ORIGINALS)
def test_every_mutant_fails_on_pytcp(name: str) -> None:
    script = load(name)
    assert run_script(script, "pytcp").verdict == "pass"
    assert len(list(mutants(script))) > 8
    assert survivors(script, "pytcp", Settings()) == []


@pytest.mark.tap
@pytest.mark.slow
@pytest.mark.parametrize("name", ON_THE_KERNEL)
def test_every_mutant_fails_on_the_kernel(name: str) -> None:
    script = load(name)
    assert run_script(script, "kernel", settings=Settings(SHORT)).verdict == "pass"
    assert survivors(script, "kernel", Settings(SHORT)) == []


def test_a_trailing_packet_is_missed_only_in_compat_mode() -> None:
    script = load("delack/first_segments_at_once")
    assert isinstance(script.events[-1].action, Expect)
    shorter = with_events(script, script.events[:-1])
    strict, compat = (run_script(shorter, settings=Settings(compat=compat)) for compat in (False, True))
    assert (strict.verdict, compat.verdict) == ("fail", "pass")
    assert "the script is over" in strict.reason


def test_options_that_nobody_looks_at_are_not_compared() -> None:
    script = load("options/everything_offered_and_taken")
    index = next(i for i, event in enumerate(script.events) if isinstance(event.action, Expect))
    event = script.events[index]
    assert isinstance(event.action, Expect)
    assert isinstance(event.action.packet, TcpPacket)
    blind = replace(event, action=Expect(replace(event.action.packet, options=ANY)))
    # nor is anything learnt from them: the timestamps of the rest of the script cannot be translated
    assert run_script(with_events(script, [*script.events[:index], blind])).verdict == "pass"

"""The language: what scripts say is understood, and what is none is refused with a place and never a traceback."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.drill.errors import ScriptError
from pytcp.drill.parser import parse
from pytcp.drill.script import ANY, Code, Command, Expect, IcmpPacket, Inject, ListOf, Or, Struct, Syscall, TcpPacket, TimeKind, When

MS = 1_000_000


def packet(line: str) -> TcpPacket:
    event = parse(f"0 {line}").events[0]
    assert isinstance(event.action, Inject | Expect)
    assert isinstance(event.action.packet, TcpPacket)
    return event.action.packet


def call(line: str, **macros: str) -> Syscall:
    event = parse(f"0 {line}", macros=macros).events[0]
    assert isinstance(event.action, Syscall)
    return event.action


def when(text: str, action: str = "> . 1:1(0) ack 1") -> When:
    return parse(f"0 close(3) = 0\n{text} {action}").events[1].when


# ---- times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.25", When(TimeKind.ABSOLUTE, 250 * MS)),
        ("+.1", When(TimeKind.RELATIVE, 100 * MS)),
        ("+0", When(TimeKind.RELATIVE, 0)),
        ("+1.000000001", When(TimeKind.RELATIVE, 1_000_000_001)),
        ("*", When(TimeKind.ANY)),
        ("+.3~+.4", When(TimeKind.RELATIVE, 300 * MS, 400 * MS)),
        ("1~2", When(TimeKind.ABSOLUTE, 1000 * MS, 2000 * MS)),
    ],
)
def test_times(text: str, expected: When) -> None:
    assert when(text) == expected


def test_a_blocking_call_has_an_end_counted_like_its_start() -> None:
    got = when("+.1...0.200", "read(4, ..., 10) = 10")
    assert (got.at_ns, got.until_ns, got.until_relative) == (100 * MS, 200 * MS, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 close(3) = 0", "first event must be at time 0"),
        ("0...1 > . 1:1(0) ack 1", "only a system call can last"),
        ("0~1 < . 1:1(0) ack 1 win 1", "only an expected packet can have a window"),
        ("0 close(3) = 0\n+2~+1 > . 1:1(0) ack 1", "ends before it begins"),
        ("0 close(3) = 0\n+1~2 > . 1:1(0) ack 1", "both ends"),
        ("0 close(3) = 0\n99999999999 close(3) = 0", "more than 9999999 seconds"),
    ],
)
def test_times_that_make_no_sense(text: str, says: str) -> None:
    with pytest.raises(ScriptError, match=says):
        parse(text)


# ---- packets


def test_a_segment_with_everything() -> None:
    got = packet("< [ect0, ttl 9] SP. 4294967295:1(2) ack 7 win 300 urg 5 <mss 1460,sackOK,TS val 1 ecr 2,nop,wscale 7,sack 1:2 3:4>")
    assert (got.flags, got.seq, got.length, got.ack, got.window, got.urg) == (0x01A, 4294967295, 2, 7, 300, 5)
    assert (got.ip.ecn, got.ip.ttl) == ("ect0", 9)
    assert isinstance(got.options, tuple)
    assert [option.kind for option in got.options] == ["mss", "sackOK", "TS", "nop", "wscale", "sack"]
    assert got.options[-1].blocks == ((1, 2), (3, 4))


@pytest.mark.parametrize(("flags", "bits", "ace"), [("-", 0, None), (".", 0x10, None), ("FSRP.UEWA", 0x1FF, None), ("P5.", 0x018, 5)])
def test_flags(flags: str, bits: int, ace: int | None) -> None:
    got = packet(f"> {flags} 1:1(0) ack 1")
    assert (got.flags, got.ace) == (bits, ace)


def test_options_not_written_none_and_not_looked_at_are_three_things() -> None:
    assert packet("> . 1:1(0) ack 1").options is None
    assert packet("> . 1:1(0) ack 1 <>").options == ()
    assert packet("> . 1:1(0) ack 1 <...>").options is ANY


def test_cookies_are_hex_or_a_macro_or_a_request() -> None:
    event = parse("0 > S 0:0(0) <FO,FO 00ff,FOEXP COOKIE>", macros={"COOKIE": "abcd"}).events[0]
    assert isinstance(event.action, Expect)
    assert isinstance(event.action.packet, TcpPacket)
    assert isinstance(event.action.packet.options, tuple)
    assert [option.data for option in event.action.packet.options] == [b"", b"\x00\xff", b"\xab\xcd"]


def test_icmp() -> None:
    lines = "0 < icmp unreachable frag_needed mtu 800 [1:1001(1000)]\n+0 < icmp unreachable\n+0 < icmp packet_too_big mtu 1300"
    got = [event.action.packet for event in parse(lines).events if isinstance(event.action, Inject)]
    assert got == [
        IcmpPacket("unreachable", "frag_needed", 800, 1, 1000),
        IcmpPacket("unreachable", None, None, None, 0),
        IcmpPacket("packet_too_big", None, 1300, None, 0),
    ]


def test_ports_choose_a_connection() -> None:
    assert packet("< 5001 > 80 S 0:0(0) win 1").ports == (5001, 80)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("< . 1:3(1) ack 1 win 1", r"1 \+ 1 is 2, not 3"),
        ("< . 1:1(0) ack 1", "needs a window"),
        ("> SS 0:0(0)", "twice"),
        ("> Q 0:0(0)", "expected TCP flags"),
        ("> . 1:1(0) ack 1 <mss>", "expected mss"),
        ("> . 1:1(0) ack 1 <mss 70000>", "outside 0..65535"),
        ("> . 1:1(0) ack 1 <frob>", "no TCP option 'frob'"),
        ("> . 1:1(0) ack 1 <FO abc>", "even number of hex digits"),
        ("< . 1:1(0) ack 1 win 1 <...>", "written out"),
        ("> icmp unreachable", "only be injected"),
        ("< icmp teapot", "no ICMP type"),
        ("< [blue] . 1:1(0) ack 1 win 1", "says nothing about an IP header"),
        ("< . 1:99999999(99999998) win 1", "outside 0..65535"),
    ],
)
def test_packets_that_are_none(line: str, says: str) -> None:
    with pytest.raises(ScriptError, match=says):
        parse(f"0 {line}")


# ---- system calls


def test_arguments_of_every_shape() -> None:
    got = call('f(..., NULL, -1, 0x10, "a\\x00b", A|B|4, [1, 2], {events=POLLIN, fd=3}, {msg_iov(1)=[{..., 10}]}) = -1 EAGAIN (try again)')
    assert (got.result, got.error) == (-1, "EAGAIN")
    assert got.args[1:5] == (None, -1, 16, b"a\0b")
    assert isinstance(got.args[5], Or)
    assert got.args[6] == ListOf((1, 2))
    assert isinstance(got.args[7], Struct)
    assert list(got.args[7].fields) == ["events", "fd"]
    assert isinstance(got.args[8], Struct)


def test_macros_expand_where_a_word_is_read() -> None:
    assert call("close(FD) = 0", FD="7").args == (7,)


def test_comments_and_layout_do_not_matter() -> None:
    script = parse("// one\n0 close(3) = 0 /* two\nlines */ +0 close(\n4\n) = 0 // end")
    assert len(script.events) == 2


# ---- the rest


def test_options_commands_and_blocks() -> None:
    script = parse("--mss=1000\n--strict_segments\n`init`\n0 `during`\n+0 %{ x = 1\ny = 2 }%\n`cleanup`\n")
    assert script.options == {"mss": "1000", "strict_segments": None}
    assert (script.init, script.cleanup) == (Command("init"), Command("cleanup"))
    assert isinstance(script.events[1].action, Code)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("0 close(3) = 0\n  +0 frob", 2, 10),
        ("--nothing=1\n0 close(3) = 0", 1, 1),
        ("0 %{ assert }%", 1, 3),
        ("0 close(3) = 0\n`a` `b`", 2, 5),
        ("0 `never ends", 1, 3),
        ("0 close(3) = 0 /* never ends", 1, 16),
        ('0 open("never ends) = 0', 1, 8),
    ],
)
def test_errors_say_where(text: str, line: int, column: int) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(text)
    assert caught.value.where is not None
    assert (caught.value.where.line, caught.value.where.column) == (line, column)


def test_the_caret_stands_under_the_place_even_behind_a_tab() -> None:
    with pytest.raises(ScriptError) as caught:
        parse("0 close(3) = 0\n\t+0 > X 0:0(0)\n")
    shown = caught.value.show("x.pkt").split("\n")
    assert shown[0].startswith("x.pkt:2:7: ")
    assert shown[1:] == ["\t+0 > X 0:0(0)", "\t     ^"]


def test_nesting_has_an_end() -> None:
    with pytest.raises(ScriptError, match="nested too deeply"):
        parse("0 f(" + "[" * 500 + "]" * 500 + ") = 0")


WORDS = st.sampled_from(
    [
        "0", "+0", "+.1", "*", "~", "...", "<", ">", "S", ".", "P.", "1:1(0)", "0:0(0)", "ack", "win", "1", "<mss 1460>", "sack", "TS val 1 ecr 2", "`x`",
        "%{", "}%", "close(3)", "= 0", "=", "-1", "EAGAIN", "(", ")", "[", "]", "{", "}", "|", "icmp", "unreachable", "mtu", "//", "/*", "*/", "--mss=1",
        '"', "\\", "\n", "\t", "\x00", "é", "99999999999999999999999",
    ]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(WORDS, max_size=30).map(" ".join) | st.text(max_size=200))
def test_any_text_is_a_script_or_a_script_error(text: str) -> None:
    try:
        parse(text, macros={"ack": "7"})
    except ScriptError as error:
        assert error.show("any")

"""From text to a `Script`. Any text at all gives a script or a ScriptError with line, column and caret.

    [--option=value ...]
    [`init command`]
    TIME action            system call, < injected packet, > expected packet, `command`, %{ python }%
    [`cleanup command`]

TIME is `0.1` (since the start), `+.1` (since the event before), `*` (whenever), `+.1~+.2` (a window) or `T...E` (a
call that starts at T, blocks, and returns at E).
"""

from __future__ import annotations

import codecs
import re

from .errors import ScriptError
from .scanner import Scanner
from .script import (
    ANY,
    DOTS,
    Action,
    Any_,
    Call,
    Code,
    Command,
    Dots,
    Event,
    Expect,
    Expr,
    IcmpPacket,
    Inject,
    IpInfo,
    ListOf,
    Name,
    Not,
    Opt,
    Or,
    Packet,
    Script,
    Struct,
    Syscall,
    TcpPacket,
    TimeKind,
    When,
)

M32 = 0xFFFFFFFF
MAX_PAYLOAD = 65535
MAX_NESTING = 40
MAX_SCRIPT = 4 << 20  # characters

OPTIONS = {
    # name: takes a value (True), may (None), does not (False)
    "ip_version": True,
    "local_ip": True,
    "remote_ip": True,
    "gateway_ip": True,
    "netmask_ip": True,
    "bind_port": True,
    "connect_port": True,
    "tolerance_usecs": True,
    "tolerance_percent": True,
    "tcp_ts_tick_usecs": True,
    "tcp_ts_ecr_scaled": False,
    "strict_segments": False,
    "mss": True,
    "mtu": True,
    "speed": True,
    "init_scripts": True,
    "non_fatal": True,
    "dry_run": False,
    "verbose": False,
}  # fmt: skip

_OPTION = re.compile(r"--([A-Za-z_]+)(?:=([^\s]*))?")
_FLAGS = re.compile(r"[-FSRPUEWA.0-7]+(?![\w:])")
_FLAG_BITS = {"F": 0x001, "S": 0x002, "R": 0x004, "P": 0x008, ".": 0x010, "U": 0x020, "E": 0x040, "W": 0x080, "A": 0x100}
_HEX = re.compile(r"[0-9a-fA-F]+(?![0-9A-Za-z_])")
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_ERRNO = re.compile(r"E[A-Z0-9]+\b")
_NOTE = re.compile(r"\([^()\n]*\)")
_NEGATIVE = re.compile(r"-(?=\d)")
_PORTS = re.compile(r"(\d+)\s*>\s*(\d+)(?=\s)")
_ECN_WORDS = ("noecn", "ect0", "ect1", "ect01", "ce")
_ICMP_TYPES = ("unreachable", "packet_too_big", "time_exceeded", "parameter_problem", "source_quench", "redirect")


def parse(text: str, name: str = "script", macros: dict[str, str] | None = None) -> Script:
    """Parse a script. `macros`: what -D defines. Raises ScriptError, nothing else."""
    if len(text) > MAX_SCRIPT:
        raise ScriptError(f"a script of {len(text)} characters, {MAX_SCRIPT} are allowed")
    return Parser(text, name, macros).script()


class Parser:
    """One script being read."""

    def __init__(self, text: str, name: str, macros: dict[str, str] | None) -> None:
        self.scan = Scanner(text, macros)
        self.result = Script(name)
        self.depth = 0

    def script(self) -> Script:
        scan = self.scan
        out = self.result
        while scan.looking_at("--"):
            self._option()
        while scan.looking_at("`"):
            where = scan.where()
            text = scan.quoted("`", "`", "a command")
            out.init, out.init_where = Command(text if out.init is None else f"{out.init.text}\n{text}"), out.init_where or where
        while not scan.done():
            if scan.looking_at("`"):
                out.cleanup_where = scan.where()
                out.cleanup = Command(scan.quoted("`", "`", "a command"))
                if not scan.done():
                    scan.fail(f"the cleanup command ends a script, and {scan.next_text()} follows (an event needs a time)")
                break
            out.events.append(self._event(first=not out.events))
        if not out.events:
            scan.fail("a script needs at least one event with a time")
        return out

    def _option(self) -> None:
        scan = self.scan
        where = scan.where()
        found = scan.match(_OPTION)
        if found is None:
            scan.fail(f"expected an option, found {scan.next_text()}")
        name, value = found[1], found[2]
        if name not in OPTIONS:
            raise ScriptError(f"no option --{name}; there are {', '.join(sorted(OPTIONS))}", where)
        if OPTIONS[name] and not value:
            raise ScriptError(f"--{name} needs a value", where)
        if not OPTIONS[name] and value is not None:
            raise ScriptError(f"--{name} takes no value", where)
        self.result.options[name] = value
        self.result.option_places[name] = where

    # --- events ---

    def _event(self, first: bool) -> Event:
        scan = self.scan
        where = scan.where()
        when = self._when(first)
        if when.until_ns is not None and (scan.looking_at("<") or scan.looking_at(">") or scan.looking_at("`") or scan.looking_at("%{")):
            raise ScriptError("only a system call can last (T...E)", where)
        scan.skip()
        start = scan.pos
        action = self._action()
        source = scan.text[start : scan.pos].strip()
        if isinstance(action, Inject | Syscall | Code | Command) and (when.late_ns is not None or when.kind is TimeKind.ANY):
            raise ScriptError("only an expected packet can have a window or `*` as its time", where)
        return Event(when, action, where, source)

    def _when(self, first: bool) -> When:
        scan = self.scan
        start = scan.pos
        if scan.accept("*"):
            if first:
                scan.fail("the first event must be at time 0", start)
            return When(TimeKind.ANY)
        scan.accept("~")
        relative = scan.accept("+")
        at = scan.seconds()
        late = until = None
        until_relative = False
        if scan.accept("..."):
            until_relative = scan.accept("+") or relative
            until = scan.seconds()
            if until < at and until_relative == relative:
                scan.fail("a call cannot end before it starts")
        elif scan.accept("~"):
            if scan.accept("+") is not relative:
                scan.fail("both ends of a window are relative, or none is")
            late = scan.seconds()
            if late < at:
                scan.fail("a window ends before it begins")
        if first and at != 0:
            scan.fail("the first event must be at time 0", start)
        return When(TimeKind.RELATIVE if relative else TimeKind.ABSOLUTE, at, late, until, until_relative)

    def _action(self) -> Action:
        scan = self.scan
        if scan.accept("<"):
            return Inject(self._packet(injected=True))
        if scan.accept(">"):
            return Expect(self._packet(injected=False))
        if scan.looking_at("`"):
            return Command(scan.quoted("`", "`", "a command"))
        if scan.looking_at("%{"):
            where = scan.where()
            source = scan.quoted("%{", "}%", "a code block")
            try:
                compile(_dedent(source), "block", "exec")
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise ScriptError(f"code block: {error.args[0] if error.args else error}", where) from None
            return Code(_dedent(source))
        if scan.peek_word():
            return self._syscall()
        scan.fail(f"expected a system call, <, >, a `command` or a %{{ block }}%, found {scan.next_text()}")

    # --- packets ---

    def _packet(self, injected: bool) -> Packet:
        scan = self.scan
        ip = self._ip_info()
        if scan.accept_word("icmp"):
            if not injected:
                scan.fail("ICMP can only be injected")
            return self._icmp(ip)
        for proto in ("udp", "gre", "mpls", "ipv4", "ipv6", "psp"):
            if scan.peek_word() == proto:
                scan.fail(f"{proto} packets are not part of this tool")
        ports = scan.match(_PORTS)
        pair = None
        if ports is not None:
            pair = int(ports[1][:6]), int(ports[2][:6])
            if max(pair) > 65535 or not min(pair):
                scan.fail("a port is 1..65535", ports.start())
        flags, ace = self._flags()
        seq = scan.bounded("sequence number", M32)
        scan.expect(":")
        scan.skip()
        end_pos = scan.pos
        end = scan.bounded("end of sequence", M32 + MAX_PAYLOAD)
        scan.expect("(")
        length = scan.bounded("payload length", MAX_PAYLOAD)
        scan.expect(")")
        if seq + length & M32 != end & M32:
            scan.fail(f"{seq} + {length} is {seq + length}, not {end}", end_pos)
        ack = scan.bounded("acknowledgement", M32) if scan.accept_word("ack") else None
        window = scan.bounded("window", 65535) if scan.accept_word("win") else None
        urg = scan.bounded("urgent pointer", 65535) if scan.accept_word("urg") else None
        options = self._options() if scan.looking_at("<") else None
        if injected:
            if isinstance(options, Any_):
                scan.fail("an injected packet has its options written out")
            if window is None:
                scan.fail("an injected packet needs a window: win N")
        return TcpPacket(flags, ace, seq, length, ack, window, urg, options, ip, pair)

    def _flags(self) -> tuple[int, int | None]:
        scan = self.scan
        found = scan.match(_FLAGS)
        if found is None:
            scan.fail(f"expected TCP flags (F S R P . U E W A, 0-7, or -), found {scan.next_text()}")
        bits = 0
        ace = None
        for char in found[0]:
            if char.isdigit():
                if ace is not None or bits & 0x1C0:
                    scan.fail("one ACE digit, and without E, W and A", found.start())
                ace = int(char)
            elif char == "-":
                if len(found[0]) > 1:
                    scan.fail("`-` means no flags at all", found.start())
            elif bits & _FLAG_BITS[char] or (ace is not None and char in "EWA"):
                scan.fail(f"flag {char!r} twice, or beside an ACE digit", found.start())
            else:
                bits |= _FLAG_BITS[char]
        return bits, ace

    def _ip_info(self) -> IpInfo:
        scan = self.scan
        if scan.accept("["):
            close = "]"
        elif scan.accept("("):
            close = ")"
        else:
            return IpInfo()
        ecn: str | None = None
        numbers: dict[str, int] = {}
        while True:
            start = scan.pos
            word = scan.word("ect0, ect1, ce, noecn, tos, ttl or flowlabel")
            if word in _ECN_WORDS:
                ecn = word
            elif word in ("tos", "ttl"):
                numbers[word] = scan.bounded(word, 255)
            elif word == "flowlabel":
                numbers[word] = scan.bounded(word, 0xFFFFF)
            else:
                scan.fail(f"{word!r} says nothing about an IP header: ect0, ect1, ect01, ce, noecn, tos, ttl, flowlabel", start)
            if not scan.accept(","):
                break
        scan.expect(close)
        return IpInfo(ecn, numbers.get("tos"), numbers.get("ttl"), numbers.get("flowlabel"))

    def _icmp(self, ip: IpInfo) -> IcmpPacket:
        scan = self.scan
        start = scan.pos
        kind = scan.word("an ICMP type")
        if kind not in _ICMP_TYPES:
            scan.fail(f"no ICMP type {kind!r}; there are {', '.join(_ICMP_TYPES)}", start)
        code: str | int | None = None
        if scan.peek_word() and scan.peek_word() != "mtu":
            code = scan.word()
            if code.isdigit():
                code = int(code[:6])
        else:
            scan.skip()
            if scan.text[scan.pos : scan.pos + 1].isdigit() and not re.compile(r"[\d.]+\s*(?:[<>%`~+.]|[a-z_]+\()").match(scan.text, scan.pos):
                code = scan.bounded("ICMP code", 255)
        mtu = scan.bounded("mtu", M32) if scan.accept_word("mtu") else None
        seq = None
        length = 0
        if scan.accept("["):
            seq = scan.bounded("sequence number", M32)
            scan.expect(":")
            end = scan.bounded("end of sequence", M32 + MAX_PAYLOAD)
            scan.expect("(")
            length = scan.bounded("length", MAX_PAYLOAD)
            scan.expect(")")
            scan.expect("]")
            if seq + length & M32 != end & M32:
                scan.fail(f"{seq} + {length} is not {end}")
        return IcmpPacket(kind, code, mtu, seq, length, ip)

    def _options(self) -> tuple[Opt, ...] | Any_:
        scan = self.scan
        scan.expect("<")
        if scan.accept("..."):
            scan.expect(">")
            return ANY
        found: list[Opt] = []
        if scan.accept(">"):
            return ()
        while True:
            found.append(self._one_option())
            if scan.accept(">"):
                return tuple(found)
            scan.expect(",", "or '>' in a list of options")

    def _number_or_dots(self, what: str, high: int) -> int:
        """A number, or -1 for `...`: whatever it is."""
        return -1 if self.scan.accept("...") else self.scan.bounded(what, high)

    def _one_option(self) -> Opt:
        scan = self.scan
        scan.skip()
        start = scan.pos
        kind = scan.word("a TCP option")
        if kind in ("nop", "eol", "sackOK"):
            return Opt(kind)
        if kind == "mss":
            return Opt(kind, (self._number_or_dots("mss", 65535),))
        if kind == "wscale":
            return Opt(kind, (self._number_or_dots("window scale", 255),))
        if kind == "TS":
            if not scan.accept_word("val"):
                scan.fail(f"expected 'val', found {scan.next_text()}")
            value = self._number_or_dots("timestamp", M32)
            if not scan.accept_word("ecr"):
                scan.fail(f"expected 'ecr', found {scan.next_text()}")
            return Opt(kind, (value, self._number_or_dots("timestamp", M32)))
        if kind == "sack":
            blocks = []
            while scan.text[scan.pos : scan.pos + 1] not in (",", ">", "") and not scan.looking_at(",") and not scan.looking_at(">"):
                left = scan.bounded("left edge", M32)
                scan.expect(":")
                blocks.append((left, scan.bounded("right edge", M32)))
            if not 1 <= len(blocks) <= 4:
                scan.fail("sack takes 1 to 4 blocks", start)
            return Opt(kind, blocks=tuple(blocks))
        if kind in ("FO", "FOEXP"):
            return Opt(kind, data=self._hex(optional=True, most=32))
        if kind == "md5" and scan.looking_at('"'):
            return Opt(kind, key=self._string())
        if kind == "md5":
            return Opt(kind, data=self._hex(optional=True, most=16))
        if kind == "raw":
            return Opt(kind, data=self._hex(optional=False, most=40))
        if kind == "ECN":
            names: list[str] = []
            values: list[int] = []
            while scan.peek_word() in ("e0b", "e1b", "ceb"):
                names.append(scan.word())
                values.append(scan.bounded("byte counter", 0xFFFFFF))
            return Opt(kind, tuple(values), names=tuple(names))
        scan.fail(f"no TCP option {kind!r}: mss, wscale, sackOK, sack, TS, nop, eol, FO, FOEXP, md5, ECN, raw", start)

    def _hex(self, optional: bool, most: int) -> bytes:
        scan = self.scan
        scan.skip()
        start = scan.pos
        word = scan.peek_word()
        if word in scan.macros:
            scan.pos += len(word)
            text = scan.macros[word]
        else:
            found = scan.match(_HEX)
            text = found[0] if found else ""
        if not text and optional:
            return b""
        if len(text) % 2 or len(text) > 2 * most or not re.fullmatch(r"[0-9a-fA-F]*", text):
            scan.fail(f"{text[:80]!r} is not an even number of hex digits, at most {2 * most}", start)
        return bytes.fromhex(text)

    # --- system calls ---

    def _syscall(self) -> Syscall:
        scan = self.scan
        name = scan.word("a system call")
        scan.expect("(", f"behind {name}")
        args: list[Expr] = []
        if not scan.accept(")"):
            while True:
                args.append(self._expr())
                if scan.accept(")"):
                    break
                scan.expect(",", "or ')' between arguments")
        scan.expect("=", "and the result of the call")
        result: Expr | Dots = DOTS if scan.accept("...") else self._expr()
        found = scan.match(_ERRNO)
        scan.match(_NOTE)
        return Syscall(name, tuple(args), result, found[0] if found else None)

    def _expr(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.scan.fail("nested too deeply")
        parts = [self._term()]
        while self.scan.accept("|"):
            parts.append(self._term())
        self.depth -= 1
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _term(self) -> Expr:
        scan = self.scan
        if scan.accept("..."):
            return DOTS
        if scan.match(_NEGATIVE):
            return -scan.integer()
        if scan.accept("["):
            return ListOf(self._list("]"))
        if scan.accept("{"):
            return self._struct()
        if scan.accept("~"):
            return Not(self._deeper())
        if scan.accept("("):
            inner = self._expr()
            scan.expect(")")
            return inner
        if scan.looking_at('"'):
            return self._string()
        where = scan.where()
        written = scan.peek_word()
        if not written:
            return scan.integer("an argument")
        word = scan.word()
        if word == "NULL":
            return None
        if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|\d{1,20}", word):
            return int(word, 0) if not word.startswith("0") or word[1:2] in ("x", "X") else int(word)
        if scan.accept("("):
            return Call(word, self._list(")"), where)
        return Name(word, where)

    def _deeper(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.scan.fail("nested too deeply")
        value = self._term()
        self.depth -= 1
        return value

    def _list(self, close: str) -> tuple[Expr, ...]:
        scan = self.scan
        items: list[Expr] = []
        if scan.accept(close):
            return ()
        while True:
            items.append(self._expr())
            if scan.accept(close):
                return tuple(items)
            scan.expect(",", f"or {close!r}")

    def _struct(self) -> Struct:
        scan = self.scan
        fields: dict[str, Expr] = {}
        if scan.accept("}"):
            return Struct(fields)
        while True:
            start = scan.pos
            word = scan.peek_word()
            key = ""
            if word:
                scan.pos += len(word)
                if scan.accept("("):
                    # msg_iov(2): the count says what the list shows
                    if not scan.accept("..."):
                        scan.integer()
                    scan.expect(")")
                if scan.accept("="):
                    key = word
                else:
                    scan.pos = start
            fields[key or str(len(fields))] = self._expr()
            if scan.accept("}"):
                return Struct(fields)
            scan.expect(",", "or '}'")

    def _string(self) -> bytes:
        scan = self.scan
        start = scan.pos
        found = scan.match(_STRING)
        if found is None:
            scan.fail("a string that does not end", start)
        try:
            return codecs.escape_decode(found[1].encode())[0]
        except ValueError as error:
            scan.fail(f"string: {error}", start)


def _dedent(source: str) -> str:
    """A code block as a program: the first line may follow the opening mark, the rest keeps its indentation."""
    import textwrap

    first, newline, rest = source.partition("\n")
    body = textwrap.dedent(rest) if not first.strip() else first.strip() + newline + textwrap.dedent(rest)
    return body + "\n\n"  # a backslash at the end of a block continues into nothing

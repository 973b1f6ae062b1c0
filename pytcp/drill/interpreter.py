"""Shell commands of scripts, understood instead of run: what they would do to a host they do to the stack.

A script prepares its host with commands: sysctls in half a dozen spellings, qdiscs, routes, counters. In virtual time
there is no host to run them on. This module knows the ones scripts use; a command it does not know, or an argument,
raises Unsupported with the command's text, so that no script passes because something was skipped.

Lists (`;`, newline, `&&`, `||`), pipes into grep, redirections to /dev/null, `$PPID`, `$((...))` and shell files next to
the script are understood. The exit status of the last command counts, as for sh.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import shlex
from collections.abc import Callable, Generator, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pytcp.link.qdisc import Fq, Htb
from pytcp.net import sysctl
from pytcp.net.addr import parse_prefix
from pytcp.tcp.const import LISTEN
from pytcp.tcp.mib import nstat_name
from pytcp.wire.addr import format_ip

from .errors import Mismatch, Unsupported

if TYPE_CHECKING:
    from pytcp.net.stack import Stack
    from pytcp.net.sysctl import Setting

    from .target import Setup

_COMMENT = re.compile(r"""((?:[^#'"\n]|'[^']*'|"[^"]*"|(?<=[^\s])#)*)(#[^\n]*)?""")
_ARITHMETIC = re.compile(r"\$\(\(([^()$]*(?:\([^()]*\)[^()$]*)*)\)\)")
_PARENT = re.compile(r"\$\{?(PPID|PACKETDRILL_PID)\}?")
_STREAM = re.compile(r"(?<!\S)[12](?=>)")  # "2>file" names a stream, "2 >file" does not
_MARK = "\ue000"
_OPERATORS = {";", "\n", "&&", "||", "|", "&", ">", ">>", "<", "&>", ">&", ";;"}
MAX_DEPTH = 8
CUBIC = "/sys/module/tcp_cubic/parameters/"
MAX_FILE = 1 << 20

# Sysctls of features that are not here: without the feature, the value says nothing.
WITHOUT_MEANING = {
    "net.ipv4.tcp_fack": "removed from the kernel in 4.15, accepted and ignored",
    "net.ipv4.tcp_adv_win_scale": "obsolete since 6.6, which measures how much of the buffer is payload",
    "net.ipv4.tcp_ecn_option": "only for AccECN, which tcp_ecn 3 and above turn on",
}


class Exit(Exception):
    """A command's non-zero exit status, with what it complained about."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Shell:
    """The interpreter of one run; `files` are what dd has made."""

    def __init__(self, stack: Stack, setup: Setup) -> None:
        self.stack = stack
        self.setup = setup
        self.files: dict[str, bytes] = {}
        self.qdisc = False  # whether the script has put one in the default's place
        self.restore: dict[str, list[tuple[str, Setting]]] = {}
        self._counters = self._snapshot()
        self._ignored: dict[str, str] = {}
        self.commands: dict[str, Callable[[list[str], str], str | Iterator[int]]] = {
            "sysctl": self._sysctl,
            "echo": self._echo,
            "cat": self._cat,
            "tc": self._tc,
            "ip": self._ip,
            "ethtool": self._ethtool,
            "nstat": self._nstat,
            "grep": self._grep,
            "sleep": self._sleep,
            "rm": self._rm,
            "dd": self._dd,
            "true": lambda args, data: "",
            ":": lambda args, data: "",
            "false": self._false,
        }

    # --- lists and pipes ---

    def run(self, text: str, depth: int = 0) -> Iterator[int]:
        """Run a script's command; yields the ns each `sleep` takes. Raises Unsupported, or Mismatch for a failure."""
        try:
            yield from self._list(text, depth)
        except Exit as failed:
            detail = f": {failed.text}" if failed.text else ""
            raise Mismatch(f"command {' '.join(text.split())[:200]!r} failed with status {failed.status}{detail}") from None

    def _list(self, text: str, depth: int) -> Iterator[int]:
        if depth > MAX_DEPTH:
            raise Unsupported("shell files that call each other without end")
        words = self._split(text)
        failed: Exit | None = None
        joint = ";"
        at = 0
        while at < len(words):
            end = at
            while end < len(words) and words[end] not in (";", "\n", "&&", "||"):
                end += 1
            if end > at:
                if joint in (";", "\n") or (joint == "&&") == (failed is None):
                    failed = None
                    try:
                        yield from self._pipe(words[at:end], depth)
                    except Exit as exit_:
                        failed = exit_
                joint = ";"
            if end < len(words) and words[end] in ("&&", "||"):
                joint = words[end]
            at = end + 1
        if failed is not None:
            raise failed

    def _split(self, text: str) -> list[str]:
        text = text.replace("\\\n", " ")
        text = "\n".join(match[1] if (match := _COMMENT.fullmatch(line)) else line for line in text.split("\n"))
        text = _ARITHMETIC.sub(lambda found: str(_arithmetic(found[1])), text)
        text = _PARENT.sub(str(os.getpid()), text)
        text = _STREAM.sub(lambda found: _MARK + found[0], text)
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|<>\n")
        lexer.whitespace = " \t\r"
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError as error:
            raise Unsupported(f"command {text.strip()[:200]!r}: {error}") from None
        done: list[str] = []
        for word in words:
            # the lexer joins neighbours: ";\n" is two operators
            done += list(word) if set(word) <= {"\n", ";"} else [word]
        return done

    def _pipe(self, words: list[str], depth: int) -> Iterator[int]:
        output = ""
        at = 0
        while at <= len(words):
            end = words.index("|", at) if "|" in words[at:] else len(words)
            output = yield from self._one(words[at:end], output, depth)
            at = end + 1

    def _one(self, words: list[str], data: str, depth: int) -> Generator[int, None, str]:
        plain, target = _redirect(words)
        if not plain:
            return ""
        name = plain[0]
        base = name.rsplit("/", 1)[-1]
        if base == "set_sysctls.py":
            self._set_sysctls(plain[1:])
            return ""
        if name in self.restore:
            for key, value in reversed(self.restore.pop(name)):
                self._write(key, value)
            return ""
        if base in self.commands and (base == name or name.startswith(("/bin/", "/sbin/", "/usr/"))):
            output = self.commands[base](plain[1:], data)
            if not isinstance(output, str):
                yield from output
                output = ""
        elif base.endswith(".sh"):
            yield from self._list(self._read_file(name), depth + 1)
            output = ""
        else:
            raise Unsupported(f"command {' '.join(words)!r}")
        if target is not None:
            if target.startswith(("/proc/sys/", "/sys/module/")):
                self._write_path(target, output.strip())
            else:
                self.files[target] = output.encode()
            return ""
        return output

    def _read_file(self, name: str) -> str:
        path = Path(self.setup.folder, name)
        try:
            if path.stat().st_size > MAX_FILE:
                raise Unsupported(f"command {name!r}: a file of more than {MAX_FILE} bytes")
            return path.read_text(errors="replace")
        except OSError as error:
            raise Exit(127, f"{name}: {error.strerror}") from None

    # --- sysctls ---

    def _write(self, name: str, value: Setting) -> None:
        dotted = name.replace("/", ".")
        if dotted in WITHOUT_MEANING:
            self._ignored[dotted] = str(value)
            return
        if dotted == "net.ipv4.tcp_ecn" and str(value).strip() in ("3", "4", "5"):
            raise Unsupported(f"net.ipv4.tcp_ecn={value}: pytcp does not have AccECN")
        try:
            sysctl.set_(self.stack.sysctl, dotted, value)
        except sysctl.UnknownSysctl:
            if not dotted.startswith("net."):
                raise Unsupported(f"sysctl {name}={value}") from None
            raise Exit(255, f"no sysctl {name}") from None
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise Unsupported(f"sysctl {name}={value}: {error.strerror}") from None
            raise Exit(255, str(error.strerror)) from None

    def _value(self, name: str) -> str:
        dotted = name.replace("/", ".")
        if dotted in WITHOUT_MEANING:
            return self._ignored.get(dotted, "")
        try:
            value = sysctl.get(self.stack.sysctl, dotted)
        except sysctl.UnknownSysctl:
            raise Exit(255, f"no sysctl {name}") from None
        return "\t".join(map(str, value)) if isinstance(value, tuple) else str(value)

    def _write_path(self, path: str, value: str) -> None:
        if path.startswith("/proc/sys/"):
            self._write(path[len("/proc/sys/") :], value)
            return
        if path.startswith(CUBIC):
            self._write(f"pytcp.tcp_cubic.{path[len(CUBIC) :]}", value)
            return
        raise Unsupported(f"command 'echo {value} > {path}'")

    def _sysctl(self, args: list[str], data: str) -> str:
        shown: list[str] = []
        lenient = False
        failed: Exit | None = None
        words = [arg for arg in args if not arg.startswith("-")]
        for flag in (arg for arg in args if arg.startswith("-")):
            if set(flag[1:]) - set("qwen"):
                raise Unsupported(f"command 'sysctl {' '.join(args)}'")
            lenient = lenient or "e" in flag
        for word in words:
            name, equals, value = word.partition("=")
            try:
                if equals:
                    self._write(name.strip(), value.strip())
                else:
                    shown.append(self._value(name) if "-n" in args else f"{name} = {self._value(name)}")
            except Exit as exit_:
                failed = failed or exit_
        if failed is not None and not lenient:
            raise failed
        return "\n".join(shown)

    def _set_sysctls(self, args: list[str]) -> None:
        before: list[tuple[str, Setting]] = []
        for arg in args:
            path, equals, value = arg.partition("=")
            if not equals or not path.startswith("/proc/sys/"):
                raise Unsupported(f"command 'set_sysctls.py {' '.join(args)}'")
            name = path[len("/proc/sys/") :]
            before.append((name, self._value(name)))
            self._write(name, value)
        self.restore[f"/tmp/sysctl_restore_{os.getpid()}.sh"] = before

    def _cat(self, args: list[str], data: str) -> str:
        return "\n".join(self._contents(arg) for arg in args) if args else data

    def _contents(self, path: str) -> str:
        if path.startswith("/proc/sys/"):
            return self._value(path[len("/proc/sys/") :])
        if path.startswith(CUBIC):
            return self._value(f"pytcp.tcp_cubic.{path[len(CUBIC) :]}")
        if path in ("/proc/net/tcp", "/proc/net/tcp6"):
            return self._proc_tcp(path.endswith("6"))
        if path in self.files:
            return self.files[path].decode(errors="replace")
        raise Unsupported(f"reading {path}")

    def _proc_tcp(self, six: bool) -> str:
        """As much of the kernel's table as anybody greps for: local and remote address and port, state."""
        sockets = {id(entry): entry for entry in (*self.stack.table.values(), *self.stack.listeners())}
        lines: list[str] = []
        for entry in sockets.values():
            state = getattr(entry, "state", 0)
            if state and (getattr(entry, "family", 4) == 6) == six:
                size = 16 if six else 4
                local, remote = (_proc_address(getattr(entry, name, b"") or bytes(size)) for name in ("saddr", "daddr"))
                dport = 0 if state == LISTEN else entry.dport
                lines.append(f"{len(lines):4}: {local}:{entry.sport:04X} {remote}:{dport:04X} {state:02X} ")
        return "\n".join(lines)

    # --- the host ---

    def _tc(self, args: list[str], data: str) -> str:
        whole = f"command 'tc {' '.join(args)}'"
        if args[:4] == ["class", "add", "dev", "tun0"]:
            self.stack.interface("tun0").set_qdisc(_htb(args[4:], whole))
            return ""
        if args[:1] != ["qdisc"] or len(args) < 2:
            raise Unsupported(whole)
        verb, rest = args[1], args[2:]
        if rest[:3] != ["dev", "tun0", "root"] or verb not in ("add", "replace", "change", "del", "delete"):
            raise Unsupported(whole)
        dev = self.stack.interface("tun0")
        kind = rest[3:]
        if (verb == "add") == self.qdisc and verb != "replace":
            raise Exit(2, "there is a root qdisc already" if self.qdisc else "there is no root qdisc that was added")
        if verb in ("del", "delete") or kind in (["pfifo"], ["pfifo_fast"], ["noqueue"], ["bfifo"]):
            dev.set_qdisc(None)
        elif len(kind) == 3 and kind[:2] == ["pfifo", "limit"] and kind[2].isdigit():
            dev.set_qdisc(None)
            dev.ring.limit = int(kind[2])
        elif kind[:1] == ["fq"]:
            dev.set_qdisc(_fq(kind[1:], whole))
        elif kind == ["handle", "1:", "htb", "default", "1"]:
            pass  # it is its one class that holds frames back
        else:
            raise Unsupported(f"{whole}: that queueing discipline is not modelled")
        self.qdisc = verb not in ("del", "delete")
        return ""

    def _ethtool(self, args: list[str], data: str) -> str:
        """Offloads of the device: the stack makes super-segments either way, as Linux does since 4.20."""
        switches = args[2:]
        known = args[:2] == ["-K", "tun0"] and len(switches) % 2 == 0
        if not known or any(s not in ("tso", "gso", "gro", "tx", "sg") for s in switches[::2]) or any(s not in ("on", "off") for s in switches[1::2]):
            raise Unsupported(f"command 'ethtool {' '.join(args)}'")
        return ""

    def _ip(self, args: list[str], data: str) -> str:
        whole = f"command 'ip {' '.join(args)}'"
        words = [arg for arg in args if arg not in ("-6", "-4")]
        if words[:2] == ["tcp_metrics", "flush"]:
            self.stack.fastopen.cache.clear()  # of what Linux keeps there, the stack remembers this
            return ""
        if words[:1] == ["route"] and words[1:2] and words[1] in ("change", "replace"):
            self._route(words[2:], whole)
            return ""
        raise Unsupported(whole)

    def _route(self, words: list[str], whole: str) -> None:
        prefix, numbers, lock, via = words[0] if words else "", dict.fromkeys(("mtu", "advmss", "initcwnd", "initrwnd", "quickack"), 0), False, ""
        at = 1
        while at < len(words):
            word = words[at]
            value = words[at + 1] if at + 1 < len(words) else ""
            if word == "mtu" and value == "lock":
                lock, at = True, at + 1
                value = words[at + 1] if at + 1 < len(words) else ""
            if word in numbers and value.isdigit():
                numbers[word] = int(value)
            elif word == "via":
                via = value
            elif (word, value) != ("dev", "tun0"):
                raise Unsupported(whole)
            at += 2
        stack = self.stack
        try:
            target, plen = parse_prefix(prefix if "/" in prefix else f"{prefix}/{128 if ':' in prefix else 32}")
        except ValueError:
            raise Exit(1, f"{prefix!r} is no prefix") from None
        old = (stack.routes4 if len(target) == 4 else stack.routes6).find(target, plen)
        if not old:
            raise Exit(2, f"no route to {prefix}")
        stack.remove_route(old[0])
        try:
            stack.add_route(
                f"{format_ip(target)}/{plen}", via or None, stack.interface("tun0"), metric=old[0].metric, mtu=numbers["mtu"], mtu_lock=lock,
                advmss=numbers["advmss"], initcwnd=numbers["initcwnd"], initrwnd=numbers["initrwnd"],
                quickack=bool(numbers["quickack"]),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise Exit(2, str(error)) from None

    # --- counters ---

    def _snapshot(self) -> dict[str, int]:
        mib = self.stack.mib
        return {nstat_name(name): getattr(mib, name) for name in dir(mib) if name[0].isupper() and isinstance(getattr(mib, name), int)}

    def _nstat(self, args: list[str], data: str) -> str:
        """Counters that changed since the last call, under nstat's names; -a: since the start, -z: unchanged ones, too."""
        flags = "".join(arg[1:] for arg in args if arg.startswith("-"))
        patterns = [arg for arg in args if not arg.startswith("-")] or ["*"]
        if set(flags) - set("nsaz"):
            raise Unsupported(f"command 'nstat {' '.join(args)}'")
        now = self._snapshot()
        before = {} if "a" in flags else self._counters
        grown = [(name, value - before.get(name, 0)) for name, value in sorted(now.items()) if any(fnmatchcase(name, pattern) for pattern in patterns)]
        if "s" not in flags:
            self._counters = now
        return "" if "n" in flags else "\n".join(f"{name:32}{value:<16}0.0" for name, value in grown if value or "z" in flags)

    def _grep(self, args: list[str], data: str) -> str:
        flags = [arg for arg in args if arg.startswith("-")]
        words = [arg for arg in args if not arg.startswith("-")]
        if not words or set("".join(flags)) - set("-qEv"):
            raise Unsupported(f"command 'grep {' '.join(args)}'")
        text = "\n".join(map(self._contents, words[1:])) if words[1:] else data
        try:
            pattern = re.compile(words[0])
        except re.error as error:
            raise Unsupported(f"command 'grep {' '.join(args)}': {error}") from None
        found = [line for line in text.split("\n") if bool(pattern.search(line)) != ("-v" in flags)]
        if not found:
            raise Exit(1, f"grep found no {words[0]!r}")
        return "\n".join(found)

    # --- small ones ---

    def _echo(self, args: list[str], data: str) -> str:
        if args[:1] and re.fullmatch("-[neE]+", args[0]) and args[0] != "-n":
            raise Unsupported(f"command 'echo {' '.join(args)}'")
        return " ".join(args[1:] if args[:1] == ["-n"] else args)

    def _false(self, args: list[str], data: str) -> str:
        raise Exit(1)

    def _sleep(self, args: list[str], data: str) -> Iterator[int]:
        if len(args) != 1 or not re.fullmatch(r"\d{1,6}(\.\d+)?|\.\d+", args[0]):
            raise Unsupported(f"command 'sleep {' '.join(args)}'")
        yield round(float(args[0]) * 1e9)

    def _rm(self, args: list[str], data: str) -> str:
        forced = any(arg.startswith("-") and "f" in arg for arg in args)
        missing = [path for path in args if not path.startswith("-") and self.files.pop(path, None) is None]
        if missing and not forced:
            raise Exit(1, f"cannot remove {missing[0]!r}: No such file or directory")
        return ""

    def _dd(self, args: list[str], data: str) -> str:
        settings = dict(arg.partition("=")[::2] for arg in args)
        size, count = re.fullmatch(r"(\d{1,9})([kKM]?)", settings.get("bs", "512")), settings.get("count", "")
        if settings.get("if") != "/dev/zero" or "of" not in settings or size is None or not count.isdigit():
            raise Unsupported(f"command 'dd {' '.join(args)}'")
        whole = int(size[1]) * {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20}[size[2]] * int(count)
        if whole > MAX_FILE:
            raise Unsupported(f"command 'dd {' '.join(args)}': more than {MAX_FILE} bytes")
        self.files[settings["of"]] = bytes(whole)
        return ""


def _redirect(words: list[str]) -> tuple[list[str], str | None]:
    """A command without its redirections, and the file its output goes to (None: nowhere or here)."""
    plain: list[str] = []
    target: str | None = None
    at = 0
    while at < len(words):
        word = words[at]
        if word in (">", ">>", "&>", "<", ">&"):
            stream = plain.pop()[1:] if plain and plain[-1].startswith(_MARK) and word != "&>" else "1"
            where = words[at + 1] if at + 1 < len(words) else ""
            if word == ">&" or where == "/dev/null" or word == "<":
                target = "" if word == "&>" or (word != "<" and stream == "1" and where == "/dev/null") else target
            elif stream == "1":
                target = where
            at += 2
            continue
        if word in _OPERATORS:
            raise Unsupported(f"command {' '.join(words)!r}: {word!r}")
        plain.append(word)
        at += 1
    return plain, target or None


def _arithmetic(text: str) -> int:
    """$((...)): integers with + - * / % and parentheses."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(int(number)):
                return number
            case ast.UnaryOp(ast.USub(), inner):
                return -value(inner)
            case ast.BinOp(left, op, right):
                a, b = value(left), value(right)
                if isinstance(op, ast.Div | ast.Mod) and not b:
                    raise Unsupported(f"$(({text})): division by zero")
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.Div():
                        return a // b
                    case ast.Mod():
                        return a % b
        raise Unsupported(f"$(({text}))")

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        raise Unsupported(f"$(({text}))") from None


def _htb(words: list[str], whole: str) -> Htb:
    """The one class of an htb: `parent 1: classid 1:1 htb rate RATE burst BYTES cburst BYTES`."""
    if words[:5] != ["parent", "1:", "classid", "1:1", "htb"] or len(words) % 2 == 0:
        raise Unsupported(whole)
    options: dict[str, int] = {}
    for word, value in zip(words[5::2], words[6::2], strict=True):
        rate = re.fullmatch(r"(\d+)([km]?)bit", value)
        if word in ("rate", "ceil") and rate:
            options[word] = int(rate[1]) * {"": 1, "k": 1000, "m": 1_000_000}[rate[2]] // 8
        elif word in ("burst", "cburst") and value.isdigit():
            options[word] = int(value)
        else:
            raise Unsupported(whole)
    if "rate" not in options:
        raise Unsupported(whole)
    return Htb(**options)


def _fq(words: list[str], whole: str) -> Fq:
    """What `tc` would make of fq's options."""
    options: dict[str, int | bool] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("pacing", "nopacing"):
            options["pacing"] = word == "pacing"
        elif word in ("limit", "flow_limit", "quantum", "initial_quantum", "orphan_mask") and rest and rest[0].isdigit():
            options[word] = int(rest.pop(0))
        elif word in ("horizon_drop", "horizon_cap"):
            options["horizon_drop"] = word == "horizon_drop"
        else:
            raise Unsupported(whole)
    return Fq(**options)  # type: ignore[arg-type]


def _proc_address(address: bytes) -> str:
    """An address as /proc/net/tcp shows it: 32-bit words in host order."""
    return "".join(f"{int.from_bytes(address[at : at + 4], 'little'):08X}" for at in range(0, len(address), 4))

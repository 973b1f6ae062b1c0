"""System calls of a script: arguments for the target, and what it answered against what the script says.

Descriptors of a script are numbers of its own; the table here says which socket each one is. `prepare` turns an event
into a call of the target and a check of its outcome: the two are apart because a call may block in between.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytcp.wire.addr import parse_ip

from .constants import NAMES, address, describe, errno_name, number
from .control import check_control
from .errors import Mismatch, ScriptError, Unsupported, Where
from .script import DOTS, Dots, Event, Expr, ListOf, Name, Struct, Syscall
from .target import Addr, Handle, Null, Pending, Setup, Target

Check = Callable[[Any], None]
MAX_SIZE = 1 << 28  # bytes of one call
_LINGER = struct.Struct("=ii")
_TIMEVAL = struct.Struct("=qq")
_STORAGE = 128  # bytes of struct sockaddr_storage
_MD5SIG = struct.Struct("=BBHi80s")  # what stands behind the address in struct tcp_md5sig


@dataclass(slots=True)
class Prepared:
    """A call ready to be begun."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    returned: Callable[[Any], int]  # the call's return value, with the target's answer put away
    check: Check | None = None  # what else the script says about the answer


class Descriptors:
    """Which descriptor of the script is what."""

    def __init__(self) -> None:
        self.live: dict[int, Handle] = {}
        self.closed: set[int] = set()
        self.sockets: list[int] = []  # connected ones, the last is asked for tcp_info

    def get(self, fd: int, where: Where) -> Handle:
        """Raises OSError EBADF for one that was closed, ScriptError for one that never was."""
        if fd in self.live:
            return self.live[fd]
        if fd in self.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        raise ScriptError(f"descriptor {fd} was never opened", where)

    def put(self, fd: int, handle: Handle) -> None:
        """A new descriptor; what had the number before stays open, and is forgotten."""
        self.live[fd] = handle
        self.closed.discard(fd)

    def drop(self, fd: int) -> None:
        self.live.pop(fd, None)
        self.closed.add(fd)
        if fd in self.sockets:
            self.sockets.remove(fd)


class Syscalls:
    """The calls of one run."""

    def __init__(self, target: Target, setup: Setup) -> None:
        self.target = target
        self.setup = setup
        self.fds = Descriptors()
        self.connects = 0  # connections begun whose SYN has not been seen
        self.listens = 0
        self.on_close: Callable[[int], None] = lambda fd: None
        self.on_open: Callable[[int], None] = lambda fd: None

    # --- one call ---

    def prepare(self, event: Event) -> Prepared:
        """The call of an event. Raises ScriptError, Unsupported; OSError when it fails before it is made."""
        call = event.action
        assert isinstance(call, Syscall)
        maker = getattr(self, f"_{call.name}", None)
        if maker is None or call.name not in SUPPORTED:
            raise Unsupported(f"system call {call.name}()", event.where)
        low, high = SUPPORTED[call.name]
        if not low <= len(call.args) <= high:
            raise ScriptError(f"{call.name}() takes {low if low == high else f'{low} to {high}'} arguments, not {len(call.args)}", event.where)
        prepared = maker(call, event.where)
        assert isinstance(prepared, Prepared)
        return prepared

    def verify(self, event: Event, prepared: Prepared | None, pending: Pending) -> None:
        """Compare an outcome with the script. Raises Mismatch."""
        call = event.action
        assert isinstance(call, Syscall)
        if pending.error is not None:
            got, code = -1, pending.error.errno or 0
        else:
            assert prepared is not None
            got, code = prepared.returned(pending.value), 0
        self._compare(event, call, got, code)
        if pending.error is None and prepared is not None and prepared.check is not None:
            prepared.check(pending.value)

    def _compare(self, event: Event, call: Syscall, got: int, code: int) -> None:
        if isinstance(call.result, Dots):
            return
        want = number(call.result, event.where, "the result of a call")
        name = errno_name(code) if code else ""
        shown = f"{got} {name}".strip()
        expected = f"{want} {call.error or ''}".strip()
        if call.error is not None and call.error not in NAMES:
            raise ScriptError(f"no error {call.error}", event.where)
        # compared as numbers: EAGAIN and EWOULDBLOCK are one
        other = call.error is not None and NAMES[call.error] != code
        if want != got or other or (name and want >= 0):
            report = f"  result of {call.name}()\n    expected: {expected}\n    got:      {shown}"
            if code:
                report += f" ({os.strerror(code)})"
            raise Mismatch(f"{call.name}() returned {shown}, expected {expected}", event.where, report)

    # --- arguments ---

    def _fd(self, call: Syscall, where: Where, at: int = 0) -> Handle:
        return self.fds.get(number(call.args[at], where, "a descriptor"), where)

    def _size(self, expr: Expr, where: Where) -> int:
        size = number(expr, where, "a length")
        if not 0 <= size <= MAX_SIZE:
            raise ScriptError(f"a length of {size}, at most {MAX_SIZE} is possible", where)
        return size

    def _address(self, expr: Expr, port: int, host: str, where: Where) -> Addr | None:
        """An address argument; None for AF_UNSPEC."""
        if isinstance(expr, Dots):
            return host, port
        if isinstance(expr, Name) and expr.name == "AF_UNSPEC":
            return None
        if isinstance(expr, Struct):
            fields = expr.fields
            family = fields.get("sa_family", fields.get("sin_family", fields.get("sin6_family")))
            if family is not None and number(family, where) == 0:
                return None
            for key in ("sin_port", "sin6_port"):
                if key in fields:
                    port = number(fields[key], where, "a port")
            for key in ("sin_addr", "sin6_addr"):
                if key in fields:
                    host = address(fields[key], where)
            if not 0 <= port <= 65535:
                raise ScriptError(f"port {port} is outside 0..65535", where)
            return host, port
        raise ScriptError(f"expected an address, and this is {describe(expr)}", where)

    def _mapped(self, host: str) -> str:
        return f"::ffff:{host}" if self.setup.ip == "ipv4-mapped" and ":" not in host else host

    def _buffer(self, expr: Expr, size: int, where: Where) -> list[bytes] | Null:
        if expr is None:
            return Null(size)
        if isinstance(expr, bytes):
            return [expr[:size].ljust(size, b"\0")]
        if isinstance(expr, Dots):
            return [bytes(size)]
        raise ScriptError(f"expected a buffer, and this is {describe(expr)}", where)

    # --- sockets ---

    def _new_fd(self, call: Syscall, where: Where, socket: bool) -> Callable[[Any], int]:
        def put(handle: Any) -> int:
            want = -1 if isinstance(call.result, Dots) else number(call.result, where)
            if want < 0:
                raise Mismatch(f"{call.name}() succeeded, expected {want} {call.error or ''}".rstrip(), where)
            self.fds.put(want, handle)
            if socket:
                self.fds.sockets.append(want)
                self.on_open(want)
            return want

        return put

    def _socket(self, call: Syscall, where: Where) -> Prepared:
        family = number(call.args[0], where) if not isinstance(call.args[0], Dots) else (2 if self.setup.ip == "ipv4" else 10)
        kind, proto = number(call.args[1], where), number(call.args[2], where)
        return Prepared(self.target.calls.socket, (family, kind, proto), self._new_fd(call, where, False))

    def _bind(self, call: Syscall, where: Where) -> Prepared:
        bound = self._address(call.args[1], self.setup.bind_port, self.setup.local, where)
        if bound is None:
            raise ScriptError("bind() needs an address", where)
        return Prepared(self.target.calls.bind, (self._fd(call, where), (self._mapped(bound[0]), bound[1])), int)

    def _listen(self, call: Syscall, where: Where) -> Prepared:
        def returned(value: Any) -> int:
            self.listens += 1
            return int(value)

        return Prepared(self.target.calls.listen, (self._fd(call, where), number(call.args[1], where)), returned)

    def _accept(self, call: Syscall, where: Where) -> Prepared:
        return Prepared(self.target.calls.accept, (self._fd(call, where), 0), self._new_fd(call, where, True))

    def _accept4(self, call: Syscall, where: Where) -> Prepared:
        return Prepared(self.target.calls.accept, (self._fd(call, where), number(call.args[3], where)), self._new_fd(call, where, True))

    def _connecting(self, call: Syscall, where: Where) -> None:
        fd = number(call.args[0], where)
        if fd not in self.fds.sockets:
            self.connects += 1
            self.fds.sockets.append(fd)

    def _connect(self, call: Syscall, where: Where) -> Prepared:
        to = self._address(call.args[1], self.setup.connect_port, self.setup.remote, where)
        handle = self._fd(call, where)
        if to is not None:
            self._connecting(call, where)
            to = self._mapped(to[0]), to[1]
        return Prepared(self.target.calls.connect, (handle, to), int)

    def _shutdown(self, call: Syscall, where: Where) -> Prepared:
        return Prepared(self.target.calls.shutdown, (self._fd(call, where), number(call.args[1], where)), int)

    def _close(self, call: Syscall, where: Where) -> Prepared:
        fd = number(call.args[0], where, "a descriptor")
        handle = self.fds.get(fd, where)
        self.fds.drop(fd)
        self.on_close(fd)
        return Prepared(self.target.calls.close, (handle,), int)

    # --- data ---

    def _out(self, call: Syscall, where: Where, flags: Expr, to: Expr = DOTS) -> Prepared:
        size = self._size(call.args[2], where)
        bits = number(flags, where, "flags")
        where_to: Addr | None = None
        if call.name == "sendto" and bits & NAMES["MSG_FASTOPEN"]:
            where_to = self._address(to, self.setup.connect_port, self.setup.remote, where)
            if where_to is not None:
                self._connecting(call, where)
                where_to = self._mapped(where_to[0]), where_to[1]
        return Prepared(self.target.calls.send, (self._fd(call, where), self._buffer(call.args[1], size, where), bits, call.name, where_to), int)

    def _write(self, call: Syscall, where: Where) -> Prepared:
        return self._out(call, where, 0)

    def _send(self, call: Syscall, where: Where) -> Prepared:
        return self._out(call, where, call.args[3])

    def _sendto(self, call: Syscall, where: Where) -> Prepared:
        return self._out(call, where, call.args[3], call.args[4])

    def _iov(self, expr: Expr, where: Where) -> list[int]:
        if not isinstance(expr, ListOf):
            raise ScriptError("expected a list of buffers: [{..., size}, ...]", where)
        sizes = []
        for item in expr.items:
            if not isinstance(item, Struct) or not item.fields:
                raise ScriptError("expected a buffer: {..., size}", where)
            sizes.append(self._size(item.fields.get("iov_len", list(item.fields.values())[-1]), where))
        return sizes

    def _writev(self, call: Syscall, where: Where) -> Prepared:
        parts = [bytes(size) for size in self._iov(call.args[1], where)]
        return Prepared(self.target.calls.send, (self._fd(call, where), parts, 0, "writev", None), int)

    def _message(self, call: Syscall, where: Where) -> Struct:
        message = call.args[1]
        if not isinstance(message, Struct) or "msg_iov" not in message.fields:
            raise ScriptError("expected a message: {msg_name(...)=..., msg_iov(1)=[{..., size}], msg_flags=0}", where)
        return message

    def _sendmsg(self, call: Syscall, where: Where) -> Prepared:
        message = self._message(call, where)
        parts = [bytes(size) for size in self._iov(message.fields["msg_iov"], where)]
        flags = number(call.args[2], where, "flags")
        to: Addr | None = None
        if flags & NAMES["MSG_FASTOPEN"]:
            self._connecting(call, where)
            to = self._mapped(self.setup.remote), self.setup.connect_port
        return Prepared(self.target.calls.send, (self._fd(call, where), parts, flags, "sendmsg", to), int)

    def _in(self, call: Syscall, where: Where, flags: Expr) -> Prepared:
        size = self._size(call.args[2], where)
        wanted: int | Null = Null(size) if call.args[1] is None else size
        handle = self._fd(call, where)

        def returned(data: Any) -> int:
            if any(data):
                raise Mismatch(f"{call.name}() read {len(data)} bytes that are not all zero", where)
            return len(data)

        return Prepared(self.target.calls.recv, (handle, wanted, number(flags, where, "flags"), call.name), returned)

    def _read(self, call: Syscall, where: Where) -> Prepared:
        return self._in(call, where, 0)

    def _recv(self, call: Syscall, where: Where) -> Prepared:
        return self._in(call, where, call.args[3])

    def _recvfrom(self, call: Syscall, where: Where) -> Prepared:
        return self._in(call, where, call.args[3])

    def _readv(self, call: Syscall, where: Where) -> Prepared:
        size = sum(self._iov(call.args[1], where))
        return Prepared(self.target.calls.recv, (self._fd(call, where), size, 0, "readv"), len)

    def _recvmsg(self, call: Syscall, where: Where) -> Prepared:
        message = self._message(call, where)
        size = sum(self._iov(message.fields["msg_iov"], where))
        flags = number(call.args[2], where, "flags")
        control = message.fields.get("msg_control")

        def check(answer: Any) -> None:
            _, found, got_flags = answer
            want = message.fields.get("msg_flags")
            if want is not None and not isinstance(want, Dots) and number(want, where) != got_flags:
                raise Mismatch(f"recvmsg() set msg_flags {got_flags:#x}, expected {number(want, where):#x}", where)
            if isinstance(control, ListOf):
                check_control(control, found, self.setup, self.target.epoch_ns(), where)

        return Prepared(self.target.calls.recvmsg, (self._fd(call, where), size, 512, flags), lambda answer: len(answer[0]), check)

    def _splice(self, call: Syscall, where: Where) -> Prepared:
        source, sink = self._fd(call, where, 0), self._fd(call, where, 2)
        return Prepared(self.target.calls.splice, (source, sink, self._size(call.args[4], where), number(call.args[5], where)), int)

    def _sendfile(self, call: Syscall, where: Where) -> Prepared:
        sink, source = self._fd(call, where, 0), self._fd(call, where, 1)
        offset = call.args[2]
        start = number(offset.items[0], where) if isinstance(offset, ListOf) and offset.items else None
        return Prepared(self.target.calls.sendfile, (sink, source, start, self._size(call.args[3], where)), int)

    def _pipe(self, call: Syscall, where: Where) -> Prepared:
        pair = call.args[0]
        if not isinstance(pair, ListOf) or len(pair.items) != 2:
            raise ScriptError("pipe() takes a list of two descriptors", where)
        numbers = [number(item, where) for item in pair.items]

        def returned(ends: Any) -> int:
            for fd, end in zip(numbers, ends, strict=True):
                self.fds.put(fd, end)
            return 0

        return Prepared(self.target.calls.pipe, (), returned)

    def _open(self, call: Syscall, where: Where) -> Prepared:
        if not isinstance(call.args[0], bytes):
            raise ScriptError("open() takes a path in quotes", where)
        path = call.args[0].decode(errors="surrogateescape")
        if "\0" in path:
            raise ScriptError("a path without zero bytes, please", where)
        return Prepared(self.target.calls.open, (path, number(call.args[1], where)), self._new_fd(call, where, False))

    # --- options ---

    def _value(self, level: int, name: int, expr: Expr, where: Where) -> int | bytes:
        match expr:
            case bytes():
                return expr
            case ListOf((single,)):
                return number(single, where, "the value of an option")
            case Struct(fields) if "onoff" in fields or "l_onoff" in fields:
                on = number(fields.get("onoff", fields.get("l_onoff", 0)), where)
                return _LINGER.pack(on, number(fields.get("linger", fields.get("l_linger", 0)), where))
            case Struct(fields) if "tv_sec" in fields or "tv_usec" in fields:
                return _TIMEVAL.pack(number(fields.get("tv_sec", 0), where), number(fields.get("tv_usec", 0), where))
            case Struct(fields) if "tcpm_key" in fields or "tcpm_addr" in fields:
                return self._md5sig(fields, where)
            case int() | Name():
                return number(expr, where)
        raise ScriptError(f"expected the value of an option, [N] or a string, and this is {describe(expr)}", where)

    def _md5sig(self, fields: dict[str, Expr], where: Where) -> bytes:
        """struct tcp_md5sig; tcpm_addr is `...` for the remote end or an address in quotes, tcpm_key a string, the rest numbers."""
        key = fields.get("tcpm_key", b"")
        named = fields.get("tcpm_addr", DOTS)
        if not isinstance(key, bytes) or not isinstance(named, bytes | Dots):
            raise ScriptError("tcpm_key is a string, and tcpm_addr an address in quotes or ...", where)
        host = self._mapped(self.setup.remote if isinstance(named, Dots) else named.decode(errors="replace"))
        try:
            packed = parse_ip(host)
        except ValueError as error:
            raise ScriptError(f"tcpm_addr: {error}", where) from None
        family = number(fields.get("tcpm_family", NAMES["AF_INET6" if len(packed) == 16 else "AF_INET"]), where)
        address = family.to_bytes(2, "little") + bytes(2 if len(packed) == 4 else 6) + packed
        small = [number(fields.get(name, preset), where) & mask for name, preset, mask in (
            ("tcpm_flags", 0, 0xFF), ("tcpm_prefixlen", 0, 0xFF), ("tcpm_keylen", len(key), 0xFFFF), ("tcpm_ifindex", 0, 0x7FFFFFFF),
        )]  # fmt: skip
        return address.ljust(_STORAGE, b"\0") + _MD5SIG.pack(*small, key)

    def _setsockopt(self, call: Syscall, where: Where) -> Prepared:
        handle = self._fd(call, where)
        level, name = number(call.args[1], where), number(call.args[2], where)
        value = self._value(level, name, call.args[3], where)
        size = self._size(call.args[4], where)
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 64:
                raise ScriptError("the value does not fit 64 bits", where)
            value = (value & (1 << 64) - 1).to_bytes(8, "little")
            value = value[:size] if size <= 8 else value.ljust(size, b"\0")
        else:
            value = value[:size].ljust(size, b"\0")
        return Prepared(self.target.calls.setsockopt, (handle, level, name, value), int)

    def _getsockopt(self, call: Syscall, where: Where) -> Prepared:
        level, name = number(call.args[1], where), number(call.args[2], where)
        room = call.args[4]
        size = self._size(room.items[0] if isinstance(room, ListOf) and room.items else room, where)
        want = call.args[3]
        args = (self._fd(call, where), level, name, size)
        if isinstance(want, Dots):
            return Prepared(self.target.calls.getsockopt, args, lambda got: 0)
        if isinstance(want, bytes | Struct):
            expected = self._value(level, name, want, where)
            assert isinstance(expected, bytes)

            def check_bytes(got: Any) -> None:
                if got.rstrip(b"\0") != expected.rstrip(b"\0"):
                    raise Mismatch(f"getsockopt() gave {got!r}, expected {expected!r}", where)

            return Prepared(self.target.calls.getsockopt, args, lambda got: 0, check_bytes)
        expected_number = self._value(level, name, want, where)
        assert isinstance(expected_number, int)

        def check(got: Any) -> None:
            mask = (1 << 8 * max(len(got), 1)) - 1
            if int.from_bytes(got, "little") != expected_number & mask:
                shown = int.from_bytes(got, "little", signed=expected_number < 0)
                raise Mismatch(f"getsockopt() gave {shown}, expected {expected_number}", where)

        return Prepared(self.target.calls.getsockopt, args, lambda got: 0, check)

    def _fcntl(self, call: Syscall, where: Where) -> Prepared:
        handle = self._fd(call, where)
        command = number(call.args[1], where)
        if command == NAMES["F_GETFL"]:
            return Prepared(self.target.calls.getfl, (handle,), lambda flags: int(flags) & ~getattr(os, "O_LARGEFILE", 0))
        if command == NAMES["F_SETFL"] and len(call.args) == 3:
            return Prepared(self.target.calls.setfl, (handle, number(call.args[2], where)), int)
        raise Unsupported("fcntl() other than F_GETFL and F_SETFL", where)

    def _ioctl(self, call: Syscall, where: Where) -> Prepared:
        request = number(call.args[1], where)
        want = call.args[2] if len(call.args) > 2 else DOTS

        def check(got: Any) -> None:
            if isinstance(want, ListOf) and want.items and number(want.items[0], where) != got:
                raise Mismatch(f"ioctl() gave {got}, expected {number(want.items[0], where)}", where)

        return Prepared(self.target.calls.ioctl, (self._fd(call, where), request), lambda got: 0, check)

    # --- readiness ---

    def _poll(self, call: Syscall, where: Where) -> Prepared:
        listed = call.args[0]
        if not isinstance(listed, ListOf) or not all(isinstance(item, Struct) and {"fd", "events"} <= item.fields.keys() for item in listed.items):
            raise ScriptError("poll() takes a list of {fd=N, events=..., revents=...}", where)
        entries = [item.fields for item in listed.items if isinstance(item, Struct)]
        handles = [(self.fds.get(number(entry["fd"], where), where), number(entry["events"], where)) for entry in entries]
        timeout = number(call.args[2], where)

        def check(found: Any) -> None:
            for entry, got in zip(entries, found, strict=True):
                if "revents" in entry and not isinstance(entry["revents"], Dots):
                    want = number(entry["revents"], where)
                    if want != got:
                        raise Mismatch(f"poll() reported {_events(got)}, expected {_events(want)}", where)

        return Prepared(self.target.calls.poll, (handles, timeout), lambda found: sum(map(bool, found)), check)

    def _epoll_create(self, call: Syscall, where: Where) -> Prepared:
        return Prepared(self.target.calls.epoll_create, (), self._new_fd(call, where, False))

    def _epoll_create1(self, call: Syscall, where: Where) -> Prepared:
        return self._epoll_create(call, where)

    def _events_of(self, expr: Expr, where: Where) -> tuple[int, int]:
        if not isinstance(expr, Struct) or "events" not in expr.fields:
            raise ScriptError("expected an event: {events=..., fd=N}", where)
        data = expr.fields.get("fd", expr.fields.get("ptr", expr.fields.get("u64", expr.fields.get("u32", 0))))
        return number(expr.fields["events"], where), 0 if data is None else number(data, where)

    def _epoll_ctl(self, call: Syscall, where: Where) -> Prepared:
        events, data = self._events_of(call.args[3], where)
        args = (self._fd(call, where), number(call.args[1], where), self._fd(call, where, 2), events & 0xFFFFFFFF, data)
        return Prepared(self.target.calls.epoll_ctl, args, int)

    def _epoll_wait(self, call: Syscall, where: Where) -> Prepared:
        expr = call.args[1]
        wanted = [self._events_of(item, where) for item in (expr.items if isinstance(expr, ListOf) else (expr,))]
        most = number(call.args[2], where)

        def check(found: Any) -> None:
            want = [(events & 0xFFFFFFFF, data) for events, data in wanted if events]
            if sorted(found) != sorted(want):
                show = [", ".join(f"{_events(events)} on {data}" for events, data in pairs) or "nothing" for pairs in (found, want)]
                raise Mismatch(f"epoll_wait() reported {show[0]}, expected {show[1]}", where)

        return Prepared(self.target.calls.epoll_wait, (self._fd(call, where), most, number(call.args[3], where)), len, check)


def poll_names(mask: int) -> str:
    """Readiness bits as poll() has them, `POLLIN|POLLOUT`."""
    return "|".join(f"POLL{name}" for name in _events(mask).split("|")) if mask and not mask & ~_KNOWN else hex(mask) if mask else "0"


def epoll_names(mask: int) -> str:
    """Readiness bits as epoll has them: the same ones."""
    return poll_names(mask).replace("POLL", "EPOLL")


_NAMED = ("POLLIN", "POLLPRI", "POLLOUT", "POLLERR", "POLLHUP", "POLLRDHUP")
_KNOWN = sum(int(getattr(select, name)) for name in _NAMED)


def _events(mask: int) -> str:
    """Readiness bits by name, for people."""
    names = [name[4:] for name in _NAMED if mask & getattr(select, name)]
    rest = mask & ~_KNOWN
    return "|".join(names + ([hex(rest)] if rest else [])) or "0"


SUPPORTED: dict[str, tuple[int, int]] = {
    # name: how many arguments it takes
    "socket": (3, 3), "bind": (3, 3), "listen": (2, 2), "accept": (3, 3), "accept4": (4, 4), "connect": (3, 3), "shutdown": (2, 2),
    "close": (1, 1), "read": (3, 3), "readv": (3, 3), "recv": (4, 4), "recvfrom": (6, 6), "recvmsg": (3, 3), "write": (3, 3),
    "writev": (3, 3), "send": (4, 4), "sendto": (6, 6), "sendmsg": (3, 3), "fcntl": (2, 3), "ioctl": (2, 3), "setsockopt": (5, 5),
    "getsockopt": (5, 5), "poll": (3, 3), "epoll_create": (1, 1), "epoll_create1": (1, 1), "epoll_ctl": (4, 4), "epoll_wait": (4, 4),
    "pipe": (1, 1), "open": (2, 3), "splice": (6, 6), "sendfile": (4, 4),
}  # fmt: skip

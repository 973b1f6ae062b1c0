"""A file server: GET and HEAD of a folder over HTTP/1.1 on any trio stream.

    await stack.serve_tcp(FileServer("/srv"), 80)

Keep-alive, single ranges (206, 416), conditional requests (304, 412), HEAD, folder listings,
redirects to the trailing slash, content types by name (RFC 9110, RFC 9112). Files are read in 1 MiB
pieces, each handed to the stream as one immutable `bytes`, which our stack sends by reference; what is
not in the page cache is read by a thread, so that a slow disk does not stop the network. No `mmap`: a
file that shrinks while it is being sent would kill the process (SIGBUS) instead of one response.

The client is not trusted: heads are bounded (431), requests time out while they are incomplete,
nothing outside the folder is reachable (neither by `..` nor through a symbolic link), and only
regular files are opened. A connection that ends with an error is closed the lingering way: FIN, then
discarding input for a moment, because a close with unread data sends a RST that could overtake the
response (RFC 9112 §9.6).
"""

from __future__ import annotations

import errno
import html
import mimetypes
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import quote, unquote_to_bytes, urlsplit

import h11
import trio

CHUNK = 1 << 20  # bytes of a file per send_all
INLINE = 1 << 16  # bodies up to this travel in one send_all with their head
HEAD_RECEIVE = 1 << 12  # small, because h11 bounds a head only while it is incomplete
RECEIVE = 1 << 16
DISCARD = 1 << 18  # bytes of unwanted input read before giving up on it
LINGER = 2.0  # seconds a closing connection's input is discarded

Headers = list[tuple[str, str]]


@dataclass(frozen=True)
class Access:
    """One answered request, for logs. `sent` is body bytes; `complete` is False when the client left."""

    method: str
    target: str
    status: int
    sent: int
    complete: bool
    seconds: float


@dataclass(frozen=True)
class _File:
    fd: int
    size: int
    mtime: int
    etag: str


@dataclass(frozen=True)
class _Place:
    path: str  # real path, under the root
    folder: bool  # the target ends like a folder's
    canonical: str  # the URL path without dots and doubled slashes, "" for the root


class _Answer(Exception):
    """Ends the handling of a request with a status and a short page, or none."""

    def __init__(self, status: int, detail: str = "", headers: Headers | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.headers = headers or []


class FileServer:
    """Serves the folder `root`; an instance is a handler for `serve_tcp` and `trio.serve_listeners`.

    root: the folder; what lies outside is not served.
    listing: list folders without an index.html; otherwise 403.
    idle_timeout: seconds a client may take for a request head, and between requests.
    send_timeout: seconds a client may take for 1 MiB of response; None waits for ever.
    max_head: bytes of a request head; more is answered with 431.
    on_request: called with an `Access` after each response.
    wall_clock: seconds since 1970, for the Date header (virtual time: the stack's clock).
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        listing: bool = True,
        idle_timeout: float = 60.0,
        send_timeout: float | None = 300.0,
        max_head: int = 16384,
        on_request: Callable[[Access], None] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = os.path.realpath(root)
        if not os.path.isdir(self.root):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
        self.listing = listing
        self.idle_timeout = idle_timeout
        self.send_timeout = float("inf") if send_timeout is None else send_timeout
        self.max_head = max_head
        self.on_request = on_request
        self.wall_clock = wall_clock

    async def __call__(self, stream: trio.abc.Stream) -> None:
        """Answer the requests of one connection, and close it."""
        async with stream:
            try:
                if not await _Session(self, stream).serve():
                    await _close_lingering(stream)
            except trio.BrokenResourceError:
                pass  # the client went away

    # --- from target to file ---

    def find(self, target: str) -> _Place:
        """Where a request target lies. Raises _Answer: 400, or 404 when it would be outside the root."""
        path = target.partition("?")[0].partition("#")[0]
        if "://" in path:
            path = urlsplit(path).path or "/"
        if not path.startswith("/"):
            raise _Answer(400, "The request target is not a path.")
        decoded = unquote_to_bytes(path)
        if b"\0" in decoded:
            raise _Answer(400, "The request target contains a zero byte.")
        parts: list[str] = []
        names = os.fsdecode(decoded).split("/")
        for part in names:
            if part == "..":
                if not parts:
                    raise _Answer(404)
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return _Place(self.inside(*parts), names[-1] in ("", ".", ".."), "/".join(["", *(quote(os.fsencode(part)) for part in parts)]))

    def inside(self, *parts: str) -> str:
        """The real path of something under the root. Raises _Answer 404 when a link leads out."""
        found = os.path.realpath(os.path.join(self.root, *parts))
        if found != self.root and not found.startswith(self.root.rstrip("/") + "/"):
            raise _Answer(404)
        return found

    def open(self, path: str) -> _File:
        """Open a regular file. Raises _Answer: 404 or 403."""
        try:
            # a FIFO would block the open without O_NONBLOCK
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            raise _Answer(403 if exc.errno in (errno.EACCES, errno.EPERM) else 404) from exc
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            os.close(fd)
            raise _Answer(404)
        return _File(fd, facts.st_size, int(facts.st_mtime), f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"')

    def list_folder(self, place: _Place) -> bytes:
        """The listing of a folder as HTML. Raises _Answer 403."""
        if not self.listing:
            raise _Answer(403, "This server does not list folders.")
        rows = []
        try:
            with os.scandir(place.path) as entries:
                for entry in entries:
                    try:
                        facts = entry.stat()
                    except OSError:
                        continue
                    rows.append((not stat.S_ISDIR(facts.st_mode), entry.name, facts.st_size, facts.st_mtime))
        except OSError as exc:
            raise _Answer(403) from exc
        shown = html.escape(unquote_to_bytes(place.canonical + "/").decode("utf-8", "replace"))
        lines = [f"<!DOCTYPE html>\n<html><head><meta charset=utf-8><title>Index of {shown}</title></head>\n<body><h1>Index of {shown}</h1><table>"]
        if place.canonical:
            lines.append('<tr><td><a href="../">../</a></td><td></td><td></td></tr>')
        for plain, name, size, mtime in sorted(rows):
            slash = "" if plain else "/"
            text = html.escape(os.fsencode(name).decode("utf-8", "replace")) + slash
            # "./" keeps a name with a colon from being read as a URL with a scheme
            link = "./" + quote(os.fsencode(name)) + slash
            lines.append(f'<tr><td><a href="{link}">{text}</a></td><td align=right>{size if plain else ""}</td><td>{formatdate(mtime, usegmt=True)}</td></tr>')
        lines.append("</table></body></html>\n")
        return "\n".join(lines).encode()


class _Session:
    """One connection."""

    def __init__(self, server: FileServer, stream: trio.abc.Stream) -> None:
        self.server = server
        self.stream = stream
        self.conn = h11.Connection(h11.SERVER, max_incomplete_event_size=server.max_head)
        self.status = 0
        self.sent = 0
        self.complete = False

    async def serve(self) -> bool:
        """Answer requests until the client or an error ends it; False when the client may still be sending."""
        while True:
            try:
                with trio.move_on_after(self.server.idle_timeout) as idle:
                    request = await self.next_request()
                if idle.cancelled_caught:
                    if self.conn.trailing_data[0]:
                        await self.refuse(408)
                    return False
                if request is None:
                    return True
                if not await self.answer(request):
                    return False
                self.conn.start_next_cycle()
            except h11.RemoteProtocolError as bad:
                await self.refuse(bad.error_status_hint, str(bad))
                return False

    async def next_request(self) -> h11.Request | None:
        """The next request's head; None when the client closed between requests."""
        while True:
            event = self.conn.next_event()
            if event is h11.NEED_DATA:
                self.conn.receive_data(bytes(await self.stream.receive_some(HEAD_RECEIVE)))
            elif isinstance(event, h11.Request):
                return event
            elif isinstance(event, h11.ConnectionClosed):
                return None

    async def refuse(self, status: int, detail: str = "") -> None:
        """Answer something that is not a request, if the protocol still allows an answer."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.sent = 0
            started = trio.current_time()
            try:
                await self.page(status, detail, [("Connection", "close")], head_only=False)
            finally:
                self.report("", "", started)

    async def answer(self, request: h11.Request) -> bool:
        """Answer one request; whether the connection can be used again."""
        method = request.method.decode("ascii")
        target = request.target.decode("latin-1")
        started = trio.current_time()
        self.status = self.sent = 0
        self.complete = False
        try:
            try:
                await self.dispatch(method, target, request)
            except _Answer as answer:
                await self.page(answer.status, answer.detail, answer.headers, head_only=method == "HEAD")
        finally:
            self.report(method, target, started)
        return await self.skip_body()

    def report(self, method: str, target: str, started: float) -> None:
        if self.server.on_request is not None:
            self.server.on_request(Access(method, target, self.status, self.sent, self.complete, trio.current_time() - started))

    async def skip_body(self) -> bool:
        """Read over a request body, if it is short; whether the connection is at the next request."""
        if self.conn.they_are_waiting_for_100_continue:
            return False
        skipped = 0
        with trio.move_on_after(LINGER):
            while self.conn.their_state is h11.SEND_BODY:
                event = self.conn.next_event()
                if event is h11.NEED_DATA:
                    data = bytes(await self.stream.receive_some(RECEIVE))
                    self.conn.receive_data(data)
                    skipped += len(data)
                    if skipped > DISCARD:
                        return False
        return self.conn.their_state is h11.DONE and self.conn.our_state is h11.DONE

    async def dispatch(self, method: str, target: str, request: h11.Request) -> None:
        if method not in ("GET", "HEAD"):
            known = method in ("POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
            raise _Answer(405 if known else 501, headers=[("Allow", "GET, HEAD")])
        server = self.server
        place = server.find(target)
        path = place.path
        if os.path.isdir(path):
            if not place.folder:
                _, mark, query = target.partition("?")
                raise _Answer(301, headers=[("Location", place.canonical + "/" + mark + query)])
            if not os.path.isfile(os.path.join(path, "index.html")):
                await self.whole(200, [("Content-Type", "text/html; charset=utf-8")], server.list_folder(place), head_only=method == "HEAD")
                return
            path = server.inside(path, "index.html")
        elif place.folder:
            raise _Answer(404)
        file = server.open(path)
        try:
            await self.file(file, path, method, _Conditions(request, file))
        finally:
            os.close(file.fd)

    async def file(self, file: _File, path: str, method: str, conditions: _Conditions) -> None:
        headers: Headers = [("ETag", file.etag), ("Last-Modified", formatdate(file.mtime, usegmt=True)), ("Accept-Ranges", "bytes")]
        status = conditions.status()
        if status == 304:
            await self.head(304, headers)
            await self.end()
            return
        if status == 412:
            raise _Answer(412)
        start, end = 0, file.size
        status = 200
        if method == "GET" and (wanted := conditions.range()) is not None:
            start, end = wanted
            if start >= end:
                raise _Answer(416, headers=[("Content-Range", f"bytes */{file.size}")])
            status = 206
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{file.size}"))
        headers += [("Content-Type", _content_type(path)), ("Content-Length", str(end - start))]
        if method == "HEAD":
            await self.head(status, headers)
            await self.end()
        elif end - start <= INLINE:
            await self.whole(status, headers, await _read(file.fd, start, end - start))
        else:
            await self.head(status, headers)
            while start < end:
                chunk = await _read(file.fd, start, min(CHUNK, end - start))
                await self.body(chunk)
                start += len(chunk)
            await self.end()

    # --- writing ---

    async def page(self, status: int, detail: str, headers: Headers, *, head_only: bool) -> None:
        """A short page that says what the status means."""
        phrase = HTTPStatus(status).phrase
        title = f"{status} {phrase}"
        text = f"<!DOCTYPE html>\n<html><head><title>{title}</title></head>\n<body><h1>{title}</h1><p>{html.escape(detail)}</p></body></html>\n"
        await self.whole(status, [*headers, ("Content-Type", "text/html; charset=utf-8")], text.encode(), head_only=head_only)

    async def whole(self, status: int, headers: Headers, body: bytes, *, head_only: bool = False) -> None:
        """A response whose body is at hand, in one piece."""
        if not any(name == "Content-Length" for name, _ in headers):
            headers = [*headers, ("Content-Length", str(len(body)))]
        pieces = [self.start(status, headers)]
        if not head_only:
            pieces += self.conn.send_with_data_passthrough(h11.Data(data=body)) or []
            self.sent += len(body)
        pieces.append(self.conn.send(h11.EndOfMessage()) or b"")
        await self.write(b"".join(pieces))
        self.complete = True

    def start(self, status: int, headers: Headers) -> bytes:
        self.status = status
        date = ("Date", formatdate(self.server.wall_clock(), usegmt=True))
        head = self.conn.send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=[date, ("Server", "pytcp"), *headers]))
        assert head is not None
        return head

    async def head(self, status: int, headers: Headers) -> None:
        await self.write(self.start(status, headers))

    async def body(self, chunk: bytes) -> None:
        for piece in self.conn.send_with_data_passthrough(h11.Data(data=chunk)) or []:
            await self.write(piece)
        self.sent += len(chunk)

    async def end(self) -> None:
        tail = self.conn.send(h11.EndOfMessage())
        if tail:
            await self.write(tail)
        self.complete = True

    async def write(self, data: bytes) -> None:
        with trio.move_on_after(self.server.send_timeout) as stalled:
            await self.stream.send_all(data)
        if stalled.cancelled_caught:
            raise trio.BrokenResourceError("the client takes nothing")


class _Conditions:
    """The preconditions and the range of a request, against one file (RFC 9110 §13.2.2, §14.2)."""

    def __init__(self, request: h11.Request, file: _File) -> None:
        self.file = file
        self.headers: dict[str, str] = {}
        for name, value in request.headers:
            key = name.decode("ascii")
            text = value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def status(self) -> int:
        """200, 304 or 412."""
        headers = self.headers
        if "if-match" in headers:
            if not self._listed(headers["if-match"], weak=False):
                return 412
        elif "if-unmodified-since" in headers:
            since = _seconds(headers["if-unmodified-since"])
            if since is not None and self.file.mtime > since:
                return 412
        if "if-none-match" in headers:
            return 304 if self._listed(headers["if-none-match"], weak=True) else 200
        if "if-modified-since" in headers:
            since = _seconds(headers["if-modified-since"])
            if since is not None and self.file.mtime <= since:
                return 304
        return 200

    def _listed(self, tags: str, *, weak: bool) -> bool:
        if tags.strip() == "*":
            return True
        listed = [tag.strip() for tag in tags.split(",")]
        return self.file.etag in listed or (weak and "W/" + self.file.etag in listed)

    def range(self) -> tuple[int, int] | None:
        """(first, behind the last) byte, empty when it cannot be satisfied; None: send everything.

        Several ranges, other units and bad syntax are ignored, as RFC 9110 §14.2 permits."""
        unit, equals, spec = self.headers.get("range", "").partition("=")
        if not equals or unit.strip().lower() != "bytes" or not self._still_same():
            return None
        first, dash, last = spec.strip().partition("-")
        if not dash or any(part and not (part.isascii() and part.isdigit() and len(part) <= 19) for part in (first, last)):
            return None
        size = self.file.size
        if first:
            if last and int(last) < int(first):
                return None
            return int(first), min(int(last) + 1 if last else size, size)
        if not last:
            return None
        return max(size - int(last), 0), size

    def _still_same(self) -> bool:
        """If-Range: the range is wanted only of the file the client has a part of."""
        validator = self.headers.get("if-range")
        if validator is None:
            return True
        if '"' in validator:
            return validator.strip() == self.file.etag
        return _seconds(validator) == self.file.mtime


def _seconds(date: str) -> int | None:
    """An HTTP date as seconds since 1970; None when it is none."""
    try:
        return int(parsedate_to_datetime(date).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def _content_type(path: str) -> str:
    kind, encoding = mimetypes.guess_type(path)
    if encoding is not None or kind is None:
        return "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


async def _read(fd: int, offset: int, size: int) -> bytes:
    """`size` bytes of a file. Raises BrokenResourceError when it has become shorter: the length is promised."""
    data = os.pread(fd, size, offset) if _cached(fd, offset, size) else await trio.to_thread.run_sync(os.pread, fd, size, offset)
    if not data and size:
        raise trio.BrokenResourceError("the file became shorter while it was being sent")
    return data


def _cached(fd: int, offset: int, size: int) -> bool:
    """Whether a read would not wait for the disk, as far as the first and last byte tell."""
    probe = bytearray(1)
    for where in (offset, offset + size - 1):
        try:
            os.preadv(fd, (probe,), where, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True  # a file system without RWF_NOWAIT
    return True


async def _close_lingering(stream: trio.abc.Stream) -> None:
    if isinstance(stream, trio.abc.HalfCloseableStream):
        left = DISCARD
        with trio.move_on_after(LINGER):
            await stream.send_eof()
            while left > 0 and (data := await stream.receive_some(RECEIVE)):
                left -= len(data)

"""An HTTP/1.1 client on any trio stream: one request after the other, bodies as they come.

    response = await get(stack.open_tcp_stream, "http://10.99.0.1/big", sink=file.write, progress=show)

h11 writes requests and parses response heads. A body of known length, or one that ends with the
connection, is then taken from the stream directly and passed on without a further copy; only chunked
bodies go through h11. The server is not trusted: heads are bounded, and a body that is shorter than
promised is an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urljoin, urlsplit

import h11
import trio

RECEIVE = 1 << 18  # bytes asked of the stream at a time
MAX_HEAD = 1 << 16
MAX_BODY = 1 << 28  # bytes `read` gathers in memory, unless told otherwise
CREDENTIALS = ("authorization", "cookie", "proxy-authorization")

Opener = Callable[[str, int], Awaitable[trio.abc.Stream]]
Sink = Callable[[bytes | bytearray], object]
Progress = Callable[[int, int | None], object]


class HttpError(Exception):
    """The server does not speak HTTP/1.1, or broke a promise it made in a head."""


@dataclass
class Response:
    """A response's head, and its body to be iterated over once, or gathered by `read`.

    length: body bytes as announced, None when only their end tells. body: filled in by `read` and `get`.
    """

    status: int
    reason: str
    headers: list[tuple[str, str]]
    length: int | None
    body: bytes = b""
    received: int = 0
    url: str = ""
    _pieces: AsyncIterator[bytes | bytearray] | None = field(default=None, repr=False)

    def header(self, name: str, default: str | None = None) -> str | None:
        """The first header field of that name, in any case."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key == wanted), default)

    async def pieces(self) -> AsyncIterator[bytes | bytearray]:
        """The body in pieces of the sizes it arrived in. Raises HttpError when it ends too early."""
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            raise RuntimeError("the body of this response was consumed already")
        async for piece in pieces:
            self.received += len(piece)
            yield piece

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body, at most `limit` bytes. Raises HttpError when there are more."""
        gathered = []
        async for piece in self.pieces():
            if self.received > limit:
                raise HttpError(f"the body is longer than {limit} bytes")
            gathered.append(piece)
        self.body = b"".join(gathered)
        return self.body


class Connection:
    """A client's connection: `request` after `request` while the server keeps it open.

    stream: connected, any trio stream; closed with the connection. host: for the Host header.
    """

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self.stream = stream
        self.host = host
        self.reusable = True
        self._left = b""  # bytes received behind the last response
        self._body_pending = False

    async def request(self, method: str, target: str, *, headers: Iterable[tuple[str, str]] = (), body: bytes = b"") -> Response:
        """Send a request and return the response's head.

        The body must be consumed before the next request. Raises HttpError, and the stream's errors.
        """
        if not self.reusable or self._body_pending:
            raise RuntimeError("the connection was closed by the server, or the last response was not consumed")
        conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        fields = [("Host", self.host), *headers]
        if body:
            fields.append(("Content-Length", str(len(body))))
        try:
            pieces = [conn.send(h11.Request(method=method, target=target, headers=fields)) or b""]
            if body:
                pieces += conn.send_with_data_passthrough(h11.Data(data=body)) or []
            conn.send(h11.EndOfMessage())
        except h11.LocalProtocolError as exc:
            raise ValueError(f"not a valid request: {exc}") from exc
        self.reusable = False  # until the response is complete
        await self.stream.send_all(b"".join(pieces))
        head = await self._head(conn)
        length, chunked = _framing(method, head)
        response = Response(
            head.status_code,
            head.reason.decode("latin-1"),
            [(name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers],
            length,
        )
        keep = _keeps_alive(head)
        self._body_pending = True
        if chunked:
            response._pieces = self._chunked(conn, keep)
        else:
            self._left = conn.trailing_data[0]
            response._pieces = self._counted(length, keep) if length is not None else self._until_eof()
        if length == 0:
            self._done(keep)
        return response

    def _done(self, keep: bool) -> None:
        self._body_pending = False
        self.reusable = keep

    async def _head(self, conn: h11.Connection) -> h11.Response:
        if self._left:
            conn.receive_data(self._left)
            self._left = b""
        try:
            while True:
                event = conn.next_event()
                if event is h11.NEED_DATA:
                    data = bytes(await self.stream.receive_some(RECEIVE))
                    if not data:
                        where = "within the head of its response" if conn.trailing_data[0] else "without a response"
                        raise HttpError(f"the server closed the connection {where}")
                    conn.receive_data(data)
                elif isinstance(event, h11.Response):
                    return event
        except h11.RemoteProtocolError as exc:
            raise HttpError(f"not a valid response: {exc}") from exc

    async def _counted(self, length: int, keep: bool) -> AsyncIterator[bytes | bytearray]:
        left = length
        if left and self._left:
            piece: bytes | bytearray = self._left[:left]
            self._left = self._left[left:]
            left -= len(piece)
            yield piece
        receive = self.stream.receive_some
        while left:
            piece = await receive(min(left, RECEIVE))
            if not piece:
                raise HttpError(f"the server closed the connection {left} bytes before the end of the body")
            left -= len(piece)
            if not left:
                self._done(keep)
            yield piece
        self._done(keep)

    async def _until_eof(self) -> AsyncIterator[bytes | bytearray]:
        if self._left:
            yield self._left
            self._left = b""
        while piece := await self.stream.receive_some(RECEIVE):
            yield piece
        self._done(False)

    async def _chunked(self, conn: h11.Connection, keep: bool) -> AsyncIterator[bytes | bytearray]:
        try:
            while True:
                event = conn.next_event()
                if event is h11.NEED_DATA:
                    conn.receive_data(bytes(await self.stream.receive_some(RECEIVE)))
                elif isinstance(event, h11.Data):
                    yield event.data
                elif isinstance(event, h11.EndOfMessage):
                    break
        except h11.RemoteProtocolError as exc:
            raise HttpError(f"not a valid chunked body: {exc}") from exc
        self._left = conn.trailing_data[0]
        self._done(keep)

    async def aclose(self) -> None:
        self.reusable = False
        await self.stream.aclose()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        await self.aclose()


def _framing(method: str, head: h11.Response) -> tuple[int | None, bool]:
    """(body length or None, chunked) by RFC 9112 §6.3; h11 has checked the fields themselves."""
    fields = dict(head.headers)
    if method == "HEAD" or head.status_code in (204, 304):
        return 0, False
    if b"transfer-encoding" in fields:
        return None, True
    if b"content-length" in fields:
        return int(fields[b"content-length"]), False
    return None, False


def _keeps_alive(head: h11.Response) -> bool:
    options = {option.strip().lower() for name, value in head.headers if name == b"connection" for option in value.split(b",")}
    return head.http_version >= b"1.1" and b"close" not in options


def split_url(url: str) -> tuple[str, int, str, str]:
    """(host, port, authority, request target) of an http URL. Raises ValueError for anything else."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"not an http URL: {url!r}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not target.isascii() or any(c <= " " or c == "\x7f" for c in target + parts.netloc):
        raise ValueError(f"not an http URL, which has neither spaces nor unescaped letters beyond ASCII: {url!r}")
    return parts.hostname, 80 if parts.port is None else parts.port, parts.netloc.rpartition("@")[2], target


async def get(
    open_stream: Opener,
    url: str,
    *,
    method: str = "GET",
    headers: Iterable[tuple[str, str]] = (),
    sink: Sink | None = None,
    progress: Progress | None = None,
    on_response: Callable[[Response], object] | None = None,
    redirects: int = 5,
    max_body: int = MAX_BODY,
) -> Response:
    """Fetch `http://host[:port]/path` over one new connection and close it.

    open_stream: `stack.open_tcp_stream`, or `trio.open_tcp_stream`.
    sink: gets each piece of a 2xx body; without it, and for other statuses, the body is gathered in `response.body`.
    progress: called with the body bytes so far and the total (None when unknown), after each piece.
    on_response: called with the head of the answer that is not followed, before its body; it may raise to have no more of it.
    redirects: how many 301, 302, 303, 307 or 308 answers are followed.
    Credentials in `headers` (Authorization, Cookie) go to the first host only, not to another one redirected to.
    Raises HttpError (also for a redirect to what is no http URL), ValueError for a `url` that is none, and
    what the stream raises.
    """
    sent = [*headers]
    host, port, authority, target = split_url(url)
    while True:
        stream = await open_stream(host, port)
        async with Connection(stream, authority) as connection:
            response = await connection.request(method, target, headers=[*sent, ("Connection", "close")])
            response.url = url
            location = response.header("location")
            if response.status in (301, 302, 303, 307, 308) and location is not None and redirects > 0:
                redirects -= 1
                before = (host, port)
                try:
                    url = urljoin(url, location)
                    host, port, authority, target = split_url(url)
                except ValueError as exc:
                    raise HttpError(f"redirected to {location!r}: {exc}") from exc
                if (host, port) != before:
                    sent = [(name, value) for name, value in sent if name.lower() not in CREDENTIALS]
                continue
            if on_response is not None:
                on_response(response)
            if sink is None or not 200 <= response.status < 300:
                sink, gathered = None, list[bytes | bytearray]()
            async for piece in response.pieces():
                if sink is not None:
                    sink(piece)
                elif response.received > max_body:
                    raise HttpError(f"the body is longer than {max_body} bytes")
                else:
                    gathered.append(piece)
                if progress is not None:
                    progress(response.received, response.length)
            if sink is None:
                response.body = b"".join(gathered)
            return response

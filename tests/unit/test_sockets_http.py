"""The HTTP file server and client, over trio's in-memory streams: no network below.

Expected statuses and fields are those of RFC 9110 and RFC 9112; request and response bytes that matter
are written out by hand.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pytcp.sockets.http import Access, Connection, FileServer, HttpError, get

BIG = os.urandom(1 << 20) * 3 + b"tail"
MTIME = 1_700_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    top = tmp_path / "www"
    (top / "sub").mkdir(parents=True)
    (top / "indexed").mkdir()
    (top / "hello.txt").write_bytes(b"0123456789")
    (top / "big.bin").write_bytes(BIG)
    (top / "empty").write_bytes(b"")
    (top / "a&b <c>.html").write_text("odd")
    (top / "sub" / "deep.txt").write_text("deep")
    (top / "indexed" / "index.html").write_text("<p>index")
    (tmp_path / "secret").write_text("secret")
    (top / "leak").symlink_to(tmp_path / "secret")
    (top / "good-link").symlink_to(top / "hello.txt")
    os.mkfifo(top / "fifo")
    os.utime(top / "hello.txt", (MTIME, MTIME))
    return top


def serve(root: Path, client: Callable[[trio.abc.HalfCloseableStream], Awaitable[None]], **options: Any) -> list[Access]:
    """Run `client` against a server for `root`; returns what the server logged."""
    log: list[Access] = []

    async def main() -> None:
        theirs, ours = trio.testing.memory_stream_pair()
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(FileServer(root, on_request=log.append, wall_clock=lambda: MTIME, **options), ours)
                await client(theirs)
                await theirs.aclose()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return log


def fetch(root: Path, target: str, method: str = "GET", headers: dict[str, str] | None = None, **options: Any) -> tuple[int, dict[str, str], bytes]:
    """(status, fields, body) of one request."""
    result: list[tuple[int, dict[str, str], bytes]] = []

    async def client(stream: trio.abc.HalfCloseableStream) -> None:
        response = await Connection(stream, "test").request(method, target, headers=list((headers or {}).items()))
        result.append((response.status, dict(response.headers), await response.read()))

    serve(root, client, **options)
    return result[0]


def raw(root: Path, request: bytes, **options: Any) -> bytes:
    """Everything the server answers to exactly these bytes, until it closes."""
    answer = bytearray()

    async def client(stream: trio.abc.HalfCloseableStream) -> None:
        try:
            await stream.send_all(request)
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass
        while data := await stream.receive_some(65536):
            answer.extend(data)

    serve(root, client, **options)
    return bytes(answer)


# --- what is served ---


def test_a_file_comes_whole_with_its_length_type_and_date(root: Path) -> None:
    status, fields, body = fetch(root, "/hello.txt")
    assert (status, body) == (200, b"0123456789")
    assert fields["content-length"] == "10"
    assert fields["content-type"] == "text/plain; charset=utf-8"
    assert fields["last-modified"] == fields["date"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert fields["accept-ranges"] == "bytes"


def test_a_file_of_several_chunks_arrives_byte_for_byte(root: Path) -> None:
    status, fields, body = fetch(root, "/big.bin")
    assert status == 200
    assert fields["content-length"] == str(len(BIG))
    assert body == BIG


def test_an_empty_file_has_an_empty_body(root: Path) -> None:
    status, fields, body = fetch(root, "/empty")
    assert (status, fields["content-length"], body) == (200, "0", b"")


def test_head_tells_the_length_and_sends_no_body(root: Path) -> None:
    status, fields, body = fetch(root, "/big.bin", "HEAD")
    assert (status, fields["content-length"], body) == (200, str(len(BIG)), b"")


def test_a_query_does_not_change_which_file_is_meant(root: Path) -> None:
    assert fetch(root, "/hello.txt?version=2")[2] == b"0123456789"


def test_the_absolute_form_of_a_target_is_understood(root: Path) -> None:
    assert fetch(root, "http://test/sub/deep.txt")[2] == b"deep"
    assert fetch(root, "http://test")[0] == 200


def test_percent_encoded_names_are_decoded(root: Path) -> None:
    assert fetch(root, "/a%26b%20%3Cc%3E.html")[2] == b"odd"


def test_a_folder_without_its_slash_is_redirected(root: Path) -> None:
    status, fields, _ = fetch(root, "/sub?x=1")
    assert (status, fields["location"]) == (301, "/sub/?x=1")


def test_a_redirect_never_names_another_server(root: Path) -> None:
    assert fetch(root, "//sub")[1]["location"] == "/sub/"
    assert fetch(root, "/\\evil/../sub")[1]["location"] == "/sub/"


def test_a_folder_is_listed_with_escaped_names_and_working_links(root: Path) -> None:
    status, _, body = fetch(root, "/")
    assert status == 200
    assert b'<a href="./a%26b%20%3Cc%3E.html">a&amp;b &lt;c&gt;.html</a>' in body
    assert b'<a href="./sub/">sub/</a>' in body
    assert b"../" not in body
    assert b'<a href="../">' in fetch(root, "/sub/")[2]


def test_an_index_page_takes_the_place_of_the_listing(root: Path) -> None:
    assert fetch(root, "/indexed/")[2] == b"<p>index"


def test_a_server_that_does_not_list_says_forbidden(root: Path) -> None:
    assert fetch(root, "/sub/", listing=False)[0] == 403
    assert fetch(root, "/indexed/", listing=False)[0] == 200


# --- what is not ---


@pytest.mark.parametrize(
    "target",
    ["/missing", "/hello.txt/", "/../secret", "/sub/../../secret", "/%2e%2e/secret", "/..%2fsecret", "/leak", "/fifo", "/sub/" + "x" * 300],
)
def test_what_is_missing_outside_or_no_file_is_not_found(root: Path, target: str) -> None:
    assert fetch(root, target)[0] == 404


def test_dots_inside_the_folder_and_links_inside_it_work(root: Path) -> None:
    assert fetch(root, "/sub/../hello.txt")[2] == b"0123456789"
    assert fetch(root, "/good-link")[2] == b"0123456789"


def test_a_zero_byte_in_a_name_is_a_bad_request(root: Path) -> None:
    assert fetch(root, "/a%00b")[0] == 400


def test_other_methods_are_refused_and_the_allowed_ones_named(root: Path) -> None:
    status, fields, _ = fetch(root, "/hello.txt", "DELETE")
    assert (status, fields["allow"]) == (405, "GET, HEAD")
    assert fetch(root, "/hello.txt", "BREW")[0] == 501


# --- ranges (RFC 9110 §14) ---


@pytest.mark.parametrize(
    ("wanted", "shown", "body"),
    [
        ("bytes=0-0", "bytes 0-0/10", b"0"),
        ("bytes=2-4", "bytes 2-4/10", b"234"),
        ("bytes=7-", "bytes 7-9/10", b"789"),
        ("bytes=7-99", "bytes 7-9/10", b"789"),
        ("bytes=-3", "bytes 7-9/10", b"789"),
        ("bytes=-99", "bytes 0-9/10", b"0123456789"),
    ],
)
def test_a_range_is_answered_with_that_part(root: Path, wanted: str, shown: str, body: bytes) -> None:
    status, fields, got = fetch(root, "/hello.txt", headers={"Range": wanted})
    assert (status, fields["content-range"], fields["content-length"], got) == (206, shown, str(len(body)), body)


def test_a_range_beyond_the_end_cannot_be_satisfied(root: Path) -> None:
    for wanted in ("bytes=10-", "bytes=-0"):
        status, fields, _ = fetch(root, "/hello.txt", headers={"Range": wanted})
        assert (status, fields["content-range"]) == (416, "bytes */10")


@pytest.mark.parametrize("wanted", ["bytes=4-2", "bytes=a-b", "bytes=1", "lines=1-2", "bytes=0-1,3-4", "bytes=-", "bytes=+1-2"])
def test_a_range_that_is_not_understood_is_ignored(root: Path, wanted: str) -> None:
    assert fetch(root, "/hello.txt", headers={"Range": wanted})[::2] == (200, b"0123456789")


def test_if_range_with_another_version_gets_everything(root: Path) -> None:
    etag = fetch(root, "/hello.txt")[1]["etag"]
    assert fetch(root, "/hello.txt", headers={"Range": "bytes=0-0", "If-Range": etag})[0] == 206
    assert fetch(root, "/hello.txt", headers={"Range": "bytes=0-0", "If-Range": '"other"'})[0] == 200
    assert fetch(root, "/hello.txt", headers={"Range": "bytes=0-0", "If-Range": formatdate(MTIME, usegmt=True)})[0] == 206
    assert fetch(root, "/hello.txt", headers={"Range": "bytes=0-0", "If-Range": formatdate(MTIME - 1, usegmt=True)})[0] == 200


# --- conditions (RFC 9110 §13) ---


def test_an_unchanged_file_is_not_sent_again(root: Path) -> None:
    etag = fetch(root, "/hello.txt")[1]["etag"]
    for headers in (
        {"If-None-Match": etag},
        {"If-None-Match": f'"x", W/{etag}'},
        {"If-None-Match": "*"},
        {"If-Modified-Since": formatdate(MTIME, usegmt=True)},
    ):
        status, fields, body = fetch(root, "/hello.txt", headers=headers)
        assert (status, fields["etag"], body) == (304, etag, b"")


def test_a_changed_file_is_sent(root: Path) -> None:
    assert fetch(root, "/hello.txt", headers={"If-None-Match": '"x"'})[0] == 200
    assert fetch(root, "/hello.txt", headers={"If-Modified-Since": formatdate(MTIME - 1, usegmt=True)})[0] == 200
    assert fetch(root, "/hello.txt", headers={"If-Modified-Since": "yesterday"})[0] == 200
    # an entity tag overrules a date
    assert fetch(root, "/hello.txt", headers={"If-None-Match": '"x"', "If-Modified-Since": formatdate(MTIME, usegmt=True)})[0] == 200


def test_a_failed_precondition_is_412(root: Path) -> None:
    etag = fetch(root, "/hello.txt")[1]["etag"]
    assert fetch(root, "/hello.txt", headers={"If-Match": '"x"'})[0] == 412
    assert fetch(root, "/hello.txt", headers={"If-Match": "W/" + etag})[0] == 412
    assert fetch(root, "/hello.txt", headers={"If-Match": etag})[0] == 200
    assert fetch(root, "/hello.txt", headers={"If-Unmodified-Since": formatdate(MTIME - 1, usegmt=True)})[0] == 412


# --- connections ---


def test_one_connection_serves_many_requests(root: Path) -> None:
    bodies: list[bytes] = []

    async def client(stream: trio.abc.HalfCloseableStream) -> None:
        connection = Connection(stream, "test")
        for target in ("/hello.txt", "/missing", "/big.bin", "/sub/deep.txt"):
            response = await connection.request("GET", target)
            bodies.append(await response.read())
        assert connection.reusable
        head = await connection.request("HEAD", "/big.bin")
        assert head.header("Content-Length") == str(len(BIG))
        assert (await (await connection.request("GET", "/hello.txt")).read()) == b"0123456789"

    log = serve(root, client)
    assert bodies[0] == b"0123456789"
    assert bodies[2] == BIG
    assert bodies[3] == b"deep"
    assert [(access.status, access.sent) for access in log[2:]] == [(200, len(BIG)), (200, 4), (200, 0), (200, 10)]


def test_pipelined_requests_are_answered_in_order(root: Path) -> None:
    answer = raw(root, b"GET /hello.txt HTTP/1.1\r\nHost: t\r\n\r\nGET /sub/deep.txt HTTP/1.1\r\nHost: t\r\n\r\n")
    assert answer.index(b"0123456789") < answer.index(b"deep")
    assert answer.count(b"HTTP/1.1 200") == 2


def test_http_1_0_and_connection_close_end_the_connection(root: Path) -> None:
    assert raw(root, b"GET /hello.txt HTTP/1.0\r\n\r\nGET /hello.txt HTTP/1.0\r\n\r\n").count(b"HTTP/1.1 200") == 1
    assert raw(root, b"GET /hello.txt HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n").count(b"HTTP/1.1 200") == 1


def test_a_request_body_is_read_over(root: Path) -> None:
    answer = raw(root, b"POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\nGET GET /hello.txt HTTP/1.1\r\nHost: t\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405")
    assert answer.endswith(b"0123456789")


def test_a_request_body_that_waits_for_100_continue_is_never_asked_for(root: Path) -> None:
    answer = raw(root, b"PUT /x HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405")
    assert b"100" not in answer.split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET /hello.txt HTTP/1.1\r\n\r\n", b"400"),  # no Host: RFC 9112 §3.2
        (b"GET /hello.txt HTTP/1.1\r\nHost: t\r\nBad Header: x\r\n\r\n", b"400"),
        (b"GET /hello.txt HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"GET /hello.txt HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", b"501"),
        (b"GET /" + b"x" * 30000 + b" HTTP/1.1\r\nHost: t\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: t\r\n" + b"a: b\r\n" * 4000 + b"\r\n", b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),  # a TLS hello
        (b"GET / HTTP/1.1\r\nHost:", b"400"),  # ends in the middle
    ],
)
def test_bad_requests_get_an_error_and_a_close(root: Path, request_bytes: bytes, status: bytes) -> None:
    answer = raw(root, request_bytes)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"connection: close" in answer.lower()


def test_a_client_that_sends_nothing_is_dropped_and_one_that_stalls_in_a_head_is_told(root: Path) -> None:
    answers: list[bytes] = []

    async def client(stream: trio.abc.HalfCloseableStream) -> None:
        await stream.send_all(part)
        start = trio.current_time()
        answers.append(bytes(await stream.receive_some(1000)))
        assert trio.current_time() - start == pytest.approx(60, abs=1e-3)

    for unfinished in (b"", b"GET / HT"):
        part = unfinished
        serve(root, client)
    assert answers[0] == b""
    assert answers[1].startswith(b"HTTP/1.1 408")


def test_a_client_that_leaves_in_the_middle_is_logged_as_incomplete(root: Path) -> None:
    async def client(stream: trio.abc.HalfCloseableStream) -> None:
        response = await Connection(stream, "test").request("GET", "/big.bin")
        assert response.length == len(BIG)

    [access] = serve(root, client)
    assert not access.complete
    assert access.sent < len(BIG)


def test_a_file_that_shrinks_while_it_is_sent_breaks_the_response_and_nothing_else(root: Path) -> None:
    async def client(stream: trio.abc.HalfCloseableStream) -> None:
        response = await Connection(stream, "test").request("GET", "/big.bin")
        os.truncate(root / "big.bin", 10)
        with pytest.raises(HttpError, match="before the end of the body"):
            await response.read()

    [access] = serve(root, client)
    assert not access.complete


def test_a_root_that_is_no_folder_is_refused(root: Path) -> None:
    with pytest.raises(NotADirectoryError):
        FileServer(root / "hello.txt")


# --- the client against hand-written servers ---


def against(answer: bytes, use: Callable[[Connection], Awaitable[None]], *, pieces: int = 0) -> bytes:
    """Run `use` against a server that sends `answer` (in pieces of that size) and closes; returns the request."""
    request = bytearray()

    async def server(stream: trio.abc.HalfCloseableStream) -> None:
        while b"\r\n\r\n" not in request:
            request.extend(await stream.receive_some(1000))
        for start in range(0, len(answer), pieces or len(answer) or 1):
            await stream.send_all(answer[start : start + (pieces or len(answer))])
        await stream.send_eof()

    async def main() -> None:
        theirs, ours = trio.testing.memory_stream_pair()
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server, ours)
                await use(Connection(theirs, "host.example"))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return bytes(request)


@pytest.mark.parametrize("pieces", [0, 1, 3])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nTrailer: z\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_every_way_to_delimit_a_body_is_understood(answer: bytes, pieces: int) -> None:
    async def use(connection: Connection) -> None:
        response = await connection.request("GET", "/")
        assert (response.status, await response.read(), response.received) == (200, b"hello", 5)

    request = against(answer, use, pieces=pieces)
    assert request.startswith(b"GET / HTTP/1.1\r\nHost: host.example\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_body_that_ends_early_is_an_error(answer: bytes) -> None:
    async def use(connection: Connection) -> None:
        response = await connection.request("GET", "/")
        with pytest.raises(HttpError):
            await response.read()
        assert not connection.reusable

    against(answer, use)


@pytest.mark.parametrize(("answer", "where"), [(b"", "without a response"), (b"HTTP/1.1 200 OK\r\nContent-", "within the head of its response")])
def test_a_server_that_closes_too_early_is_named(answer: bytes, where: str) -> None:
    async def use(connection: Connection) -> None:
        with pytest.raises(HttpError, match=f"the server closed the connection {where}"):
            await connection.request("GET", "/")

    against(answer, use)


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20000]
)
def test_a_response_that_is_none_is_an_error(answer: bytes) -> None:
    async def use(connection: Connection) -> None:
        with pytest.raises(HttpError):
            await connection.request("GET", "/")

    against(answer, use)


def test_a_second_request_needs_the_first_body_consumed_and_an_open_connection() -> None:
    async def use(connection: Connection) -> None:
        response = await connection.request("GET", "/")
        with pytest.raises(RuntimeError, match="not consumed"):
            await connection.request("GET", "/")
        await response.read()
        with pytest.raises(RuntimeError, match="consumed already"):
            await response.read()
        assert not connection.reusable

    against(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", use)


def test_read_stops_at_its_limit() -> None:
    async def use(connection: Connection) -> None:
        response = await connection.request("GET", "/")
        with pytest.raises(HttpError, match="longer than 4"):
            await response.read(limit=4)

    against(b"HTTP/1.1 200 OK\r\n\r\nhello", use)


def test_a_request_that_would_smuggle_a_line_is_refused() -> None:
    async def use(connection: Connection) -> None:
        with pytest.raises(ValueError, match="not a valid request"):
            await connection.request("GET", "/", headers=[("X", "a\r\nY: b")])
        await connection.request("GET", "/")

    against(b"HTTP/1.1 204 No Content\r\n\r\n", use)


def test_get_follows_redirects_reports_progress_and_feeds_the_sink(root: Path) -> None:
    opened: list[tuple[str, int]] = []
    progress: list[tuple[int, int | None]] = []
    sink = bytearray()

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def open_stream(host: str, port: int) -> trio.abc.Stream:
                opened.append((host, port))
                theirs, ours = trio.testing.memory_stream_pair()
                nursery.start_soon(FileServer(root), ours)
                return theirs

            response = await get(open_stream, "http://[fd00::1]:8080/indexed", sink=sink.extend, progress=lambda done, total: progress.append((done, total)))
            assert (response.status, response.url, response.body) == (200, "http://[fd00::1]:8080/indexed/", b"")
            assert (await get(open_stream, "http://10.0.0.1/hello.txt")).body == b"0123456789"
            assert (await get(open_stream, "http://10.0.0.1/missing", sink=sink.extend)).status == 404
            assert (await get(open_stream, "http://10.0.0.1/indexed", redirects=0)).status == 301
            with pytest.raises(ValueError, match="not an http URL"):
                await get(open_stream, "https://10.0.0.1/")
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert opened[:3] == [("fd00::1", 8080), ("fd00::1", 8080), ("10.0.0.1", 80)]
    assert sink == b"<p>index"
    assert progress == [(8, 8)]


@pytest.mark.parametrize("location", ["http://[::1/", "http://h:99999/", "ftp://h/", "/é", "/a b", "http://h/\x7f"])
def test_a_redirect_to_what_is_no_http_url_is_the_servers_error(location: str) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def open_stream(host: str, port: int) -> trio.abc.Stream:
                theirs, ours = trio.testing.memory_stream_pair()
                answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")
                nursery.start_soon(ours.send_all, answer)
                return theirs

            with pytest.raises(HttpError):
                await get(open_stream, "http://10.0.0.1/")

    trio.run(main)


def test_credentials_do_not_follow_a_redirect_to_another_host() -> None:
    heads: list[bytes] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def answer(stream: trio.abc.Stream, text: bytes) -> None:
                heads.append(await stream.receive_some())
                await stream.send_all(text)

            async def open_stream(host: str, port: int) -> trio.abc.Stream:
                theirs, ours = trio.testing.memory_stream_pair()
                where = {"a": b"http://a/2", "b": b""}[host] if len(heads) == 0 else b"http://b/"
                text = b"HTTP/1.1 204 No Content\r\n\r\n" if host == "b" else b"HTTP/1.1 302 Found\r\nLocation: " + where + b"\r\nContent-Length: 0\r\n\r\n"
                nursery.start_soon(answer, ours, text)
                return theirs

            await get(open_stream, "http://a/1", headers=[("Authorization", "secret"), ("X-Mine", "1")])

    trio.run(main)
    assert [b"secret" in head for head in heads] == [True, True, False]
    assert all(b"X-Mine: 1" in head or b"x-mine: 1" in head.lower() for head in heads)

"""trio streams and listeners over the non-blocking socket.

`TcpStream` is a `trio.abc.HalfCloseableStream`, `TcpListener` a `trio.abc.Listener`; programs written
for `trio.SocketStream` run on them. As there, TCP_NODELAY is on unless asked otherwise; unlike there
TCP_NOTSENT_LOWAT keeps the stack's default, so that a large send fills the send buffer in one go.

Back-pressure is the engine's: `send_all` sleeps when the send buffer is full and goes on when a third
of it is free again (Linux's sk_stream_is_writeable). `bytes` are sent by reference, not copied.
Closing is Linux's, too: `aclose` lets queued data and a FIN go out behind the program's back, answers
unread data with a RST, and does not wait unless SO_LINGER says so. A cancelled `aclose` closes just the
same; RST is what `abort` is for. (So does a kernel socket under trio; and `serve_tcp` closes the
streams of handlers that return without closing in this way, too: a RST would lose their last answer.)

Every method is a checkpoint. Where nothing has to be waited for, that is one turn of trio's loop,
taken after the work was done, in which the devices are looked at: so an answer that came meanwhile is there.

Errors: BrokenResourceError when the connection failed, ClosedResourceError when the program closed it,
BusyResourceError when two tasks want the same direction; the OSError is the `__cause__`. A connection
that broke once stays broken: where Linux reports a reset once and EOF from then on, the stream
repeats the error, so that a truncated transfer cannot look complete.
"""

from __future__ import annotations

import errno
import operator
import os
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint, checkpoint_if_cancelled, wait_task_rescheduled

from .socket import IPPROTO_TCP, SHUT_WR, SO_ACCEPTCONN, SOL_SOCKET, TCP_NODELAY, Socket
from .waiting import Waiter

if TYPE_CHECKING:
    from pytcp.tcp.info import TcpInfo
    from pytcp.tcp.skb import Buffer

AFTERWARDS = (errno.EPIPE, errno.ENOTCONN)  # say only that the connection is gone: the reason was told before, or reading tells it
DEFAULT_RECEIVE_SIZE = 1 << 18  # several super-segments: one turn of trio's loop for all of them


class TcpStream(trio.abc.HalfCloseableStream):
    """One connection. Takes ownership of `socket`, which must be connected.

    nodelay: switch Nagle's algorithm off, as trio's streams do; None leaves the socket as it is.
    """

    __slots__ = ("__weakref__", "_eof_sent", "_failure", "_sending", "_waiter", "socket")

    def __init__(self, socket: Socket, *, nodelay: bool | None = True) -> None:
        self.socket = socket
        self._waiter = Waiter()
        self._sending = False
        self._eof_sent = False
        self._failure: OSError | None = None
        socket.notify = self._waiter
        if nodelay is not None:
            socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, int(nodelay))

    def _error(self, exc: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        """What to raise for `exc`, remembering why the connection broke."""
        if exc.errno == errno.EBADF:
            return trio.ClosedResourceError("this stream was already closed")
        if self._failure is None or exc.errno not in AFTERWARDS:
            self._failure = exc
        failure = self._failure
        # what the stack failed of has a text of its own
        reason = failure.strerror if failure.__cause__ is not None else os.strerror(failure.errno or 0)
        return trio.BrokenResourceError(f"connection broken: {reason}")

    async def send_all(self, data: Buffer) -> None:
        """Send all of `data`, sleeping while the send buffer is full.

        Raises BrokenResourceError, ClosedResourceError (also after `send_eof`), BusyResourceError when
        another task is sending. After a cancellation an unknown part of `data` is on its way.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this stream")
        self._sending = True
        try:
            if self._eof_sent:
                raise trio.ClosedResourceError("can't send data after sending EOF")
            if type(data) is not bytes:
                view = memoryview(data)
                data = view if view.itemsize == 1 and view.ndim == 1 else view.cast("B")
            size = len(data)
            await checkpoint_if_cancelled()
            slept = False
            if not size:
                self.socket.check_open()
            done = 0
            while done < size:
                try:
                    done += self.socket.send(memoryview(data)[done:] if done else data)
                except BlockingIOError:
                    await wait_task_rescheduled(self._waiter.writing())
                    slept = True
            if not slept:
                await cancel_shielded_checkpoint()
        except OSError as exc:
            raise self._error(exc) from exc
        finally:
            self._sending = False

    def _start_sending(self) -> None:
        if self._sending:
            raise trio.BusyResourceError("another task is already sending on this stream")
        self._sending = True

    async def wait_send_all_might_not_block(self) -> None:
        """Sleep until there is room in the send buffer, or the connection broke."""
        self._start_sending()
        try:
            await self._waiter.until_writable(self.socket.poll)
        except OSError as exc:
            raise self._error(exc) from exc
        finally:
            self._sending = False

    async def send_eof(self) -> None:
        """Send a FIN behind what was sent; receiving goes on. A second time it does nothing."""
        self._start_sending()
        try:
            await checkpoint()
            if not self._eof_sent:
                self.socket.shutdown(SHUT_WR)
                self._eof_sent = True
        except OSError as exc:
            raise self._error(exc) from exc
        finally:
            self._sending = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Up to `max_bytes` (256 KiB) of what has arrived, sleeping until something has; b"" at EOF.

        Raises BrokenResourceError, ClosedResourceError, BusyResourceError when another task is receiving.
        """
        if max_bytes is None:
            max_bytes = DEFAULT_RECEIVE_SIZE
        elif operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be >= 1")
        socket = self.socket
        data = None
        try:
            if not socket.would_block():  # (parking is a checkpoint by itself)
                await checkpoint_if_cancelled()
                try:
                    data = socket.recv(max_bytes)
                except BlockingIOError:
                    pass
                else:
                    await cancel_shielded_checkpoint()
            while data is None:
                await wait_task_rescheduled(self._waiter.reading())
                try:
                    data = socket.recv(max_bytes)
                except BlockingIOError:
                    continue
        except OSError as exc:
            raise self._error(exc) from exc
        if not data and self._failure is not None and self._failure.errno not in AFTERWARDS:
            # a reset behind the peer's FIN is EPIPE: then all its data has come
            raise self._error(self._failure) from self._failure
        return data

    async def aclose(self) -> None:
        """Close as Linux does (see above), waiting only as long as SO_LINGER says."""
        linger_ns = self.socket.begin_close()
        if not linger_ns:
            await checkpoint()
            return
        try:
            with trio.move_on_after(linger_ns / 1e9):
                while self.socket.lingering():
                    await self._waiter.park_writer()
        finally:
            self.socket.end_close()

    def abort(self) -> None:
        """Close at once with a RST; queued data is dropped."""
        self.socket.abort()

    def setsockopt(self, level: int, option: int, value: int | Buffer) -> None:
        """As `Socket.setsockopt`."""
        self.socket.setsockopt(level, option, value)

    def getsockopt(self, level: int, option: int, buffersize: int = 0) -> int | bytes:
        """As `Socket.getsockopt`."""
        return self.socket.getsockopt(level, option, buffersize)

    def info(self) -> TcpInfo:
        """The connection's tcp_info."""
        return self.socket.info()


class TcpListener(trio.abc.Listener[TcpStream]):
    """A listening socket. Takes ownership of `socket`.

    Back-pressure is the accept queue's: who does not accept lets it fill to the backlog, and then
    Linux's overflow rules apply. A cancelled `accept` takes no connection out of it.
    nodelay: for the streams it makes, see `TcpStream`. It is set on the listening socket, from which connections inherit it.
    """

    __slots__ = ("__weakref__", "_waiter", "socket")

    def __init__(self, socket: Socket, *, nodelay: bool | None = True) -> None:
        if not socket.getsockopt(SOL_SOCKET, SO_ACCEPTCONN):
            raise ValueError("TcpListener requires a listening socket")
        self.socket = socket
        if nodelay is not None:
            socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, int(nodelay))
        self._waiter = Waiter()
        socket.notify = self._waiter

    async def accept(self) -> TcpStream:
        """The next connection, sleeping until there is one.

        Raises ClosedResourceError when the listener was closed, BusyResourceError when another task
        accepts, OSError when the stack has failed.
        """
        socket = self.socket
        if slept := socket.would_block():
            await wait_task_rescheduled(self._waiter.reading())
        else:
            await checkpoint_if_cancelled()
        while True:
            try:
                connection = socket.accept_socket()
            except BlockingIOError:
                await wait_task_rescheduled(self._waiter.reading())
                slept = True
            except OSError as exc:
                if exc.errno == errno.EBADF:
                    raise trio.ClosedResourceError("this listener was already closed") from exc
                raise
            else:
                if not slept:
                    await cancel_shielded_checkpoint()
                return TcpStream(connection, nodelay=None)

    async def aclose(self) -> None:
        """Stop listening; connections nobody accepted are reset."""
        self.socket.close()
        await checkpoint()

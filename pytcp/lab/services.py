"""The benchmark's services as trio programs: what any program on a pytcp stream would look like.

5001 discard, 5002 source (1 MiB a send), 5003 echo, 5004 rpc (81,920 bytes in, then as many out). Written against trio's
`HalfCloseableStream`, so that they run on a stream of pytcp, of the kernel (`trio.SocketStream`) or of trio's memory alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

DISCARD, SOURCE, ECHO, RPC = 5001, 5002, 5003, 5004
SOURCE_CHUNK = 1 << 20
RPC_SIZE = 81920
READ = 1 << 20

Handler = Callable[[trio.abc.HalfCloseableStream], Awaitable[None]]


async def discard(stream: trio.abc.HalfCloseableStream) -> None:
    """Read and drop until the end of file."""
    while await stream.receive_some(READ):
        pass


async def source(stream: trio.abc.HalfCloseableStream) -> None:
    """Send until the peer goes away."""
    data = bytes(SOURCE_CHUNK)
    try:
        while True:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        return


async def echo(stream: trio.abc.HalfCloseableStream) -> None:
    """Send back what comes, then the end of file."""
    while data := await stream.receive_some(READ):
        await stream.send_all(data)
    await stream.send_eof()


async def rpc(stream: trio.abc.HalfCloseableStream) -> None:
    """Answer each whole request of RPC_SIZE bytes with as many."""
    answer = bytes(RPC_SIZE)
    missing = RPC_SIZE
    while data := await stream.receive_some(missing):
        missing -= len(data)
        if missing == 0:
            missing = RPC_SIZE
            await stream.send_all(answer)


SERVICES: dict[int, Handler] = {DISCARD: discard, SOURCE: source, ECHO: echo, RPC: rpc}

"""Kernel-socket programs for the far end of a testbed: run as `python peer.py MODE ...` inside a namespace.

A process of its own, so that it neither shares our interpreter's lock nor our event loop; standard library only, so that it
starts quickly. Each mode prints one JSON object.

    tx ADDRESS PORT SECONDS      send to a discard service, then shut down and wait for its end of file
    rx ADDRESS PORT SECONDS      read from a source service
    many ADDRESS PORT COUNT SIZE COUNT connections to an echo service at once, SIZE bytes each, every byte compared
    web DIRECTORY ADDRESS PORT   serve a folder by HTTP/1.1; prints {"ready": true} and stays
"""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = 128 * 1024
TCPI_TOTAL_RETRANS = 100  # offset of a 32-bit counter in struct tcp_info


def dial(address: str, port: int) -> socket.socket:
    sock = socket.create_connection((address, port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def retransmits(sock: socket.socket) -> int:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    total: int = struct.unpack_from("I", info, TCPI_TOTAL_RETRANS)[0]
    return total


def tx(address: str, port: str, seconds: str) -> dict[str, Any]:
    sock = dial(address, int(port))
    data = memoryview(bytes(CHUNK))
    total = 0
    start = time.monotonic()
    while time.monotonic() - start < float(seconds):
        total += sock.send(data)
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(CHUNK):
        pass
    return {"bytes": total, "seconds": time.monotonic() - start, "retransmits": retransmits(sock)}


def rx(address: str, port: str, seconds: str) -> dict[str, Any]:
    sock = dial(address, int(port))
    buffer = bytearray(CHUNK)
    total = sock.recv_into(buffer)
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < float(seconds):
        got = sock.recv_into(buffer)
        if not got:
            raise ConnectionError("the source ended")
        total += got
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return {"bytes": total, "seconds": elapsed}


class Echo:
    """One of many connections: what it still has to send, and to see again."""

    def __init__(self, address: str, port: int, data: bytes) -> None:
        self.sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.connect_ex((address, port))
        self.data = memoryview(data)
        self.sent = 0
        self.seen = 0
        self.good = True

    def step(self, events: int) -> bool:
        """Move what can move; True when the last byte came back, or the connection failed."""
        try:
            if events & selectors.EVENT_WRITE and self.sent < len(self.data):
                self.sent += self.sock.send(self.data[self.sent : self.sent + CHUNK])
                if self.sent == len(self.data):
                    self.sock.shutdown(socket.SHUT_WR)
            if events & selectors.EVENT_READ:
                got = self.sock.recv(CHUNK)
                self.good = self.good and got == self.data[self.seen : self.seen + len(got)]
                self.seen += len(got)
                if not got:
                    self.good = self.good and self.seen == len(self.data)
                    return True
        except BlockingIOError:
            return False
        except OSError:
            self.good = False
            return True
        return False


def many(address: str, port: str, count: str, size: str) -> dict[str, Any]:
    start = time.monotonic()
    selector = selectors.DefaultSelector()
    wanted = selectors.EVENT_READ | selectors.EVENT_WRITE
    for number in range(int(count)):
        echo = Echo(address, int(port), random.Random(number).randbytes(int(size)))
        selector.register(echo.sock, wanted, echo)
    finished: list[Echo] = []
    while selector.get_map() and time.monotonic() - start < 60:
        for key, events in selector.select(1.0):
            echo = key.data
            if echo.step(events):
                selector.unregister(echo.sock)
                echo.sock.close()
                finished.append(echo)
            elif echo.sent == len(echo.data):
                selector.modify(echo.sock, selectors.EVENT_READ, echo)
    good = [echo for echo in finished if echo.good]
    return {"bytes": sum(echo.seen for echo in good), "seconds": time.monotonic() - start, "good": len(good)}


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def copyfile(self, source: Any, outputfile: Any) -> None:
        self.wfile.flush()
        with contextlib.suppress(ConnectionError):
            self.connection.sendfile(source)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def web(directory: str, address: str, port: str) -> dict[str, Any]:
    Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with Server((address, int(port)), partial(Handler, directory=directory)) as server:
        print(json.dumps({"ready": True}), flush=True)
        server.serve_forever()
    return {}


def main(mode: str, *arguments: str) -> None:
    modes: dict[str, Callable[..., dict[str, Any]]] = {"tx": tx, "rx": rx, "many": many, "web": web}
    print(json.dumps(modes[mode](*arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])

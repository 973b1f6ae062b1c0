"""iperf3's control connection: cookie, states of one byte, JSON behind a 32-bit length.

The client opens a connection and sends a cookie of 37 bytes, the last of them zero. From then on single bytes name the
state, most of them said by the server: PARAM_EXCHANGE (the client answers with the test's parameters), CREATE_STREAMS (it opens
the data connections, each beginning with the same cookie), TEST_START, TEST_RUNNING. The client says TEST_END. The server
says EXCHANGE_RESULTS, and the client sends its results and then gets the server's; DISPLAY_RESULTS; the client says
IPERF_DONE. Who gives up says CLIENT_TERMINATE or SERVER_TERMINATE. A server that cannot do what is asked says
SERVER_ERROR and two 32-bit numbers: what failed, and errno; one that is busy says ACCESS_DENIED.

Nothing the other side says is believed: lengths, types and ranges are checked, and what is wrong is an Iperf3Error.
"""

from __future__ import annotations

import enum
import json
import os
import random
import string
import struct
from dataclasses import dataclass
from typing import Any

import trio

import pytcp

PORT = 5201
COOKIE_SIZE = 37
JSON_MAX = 1 << 20
MAX_STREAMS = 128
MAX_LENGTH = 1 << 20
DEFAULT_LENGTH = 128 << 10
UNKNOWN = (1 << 64) - 1  # how iperf3 writes a -1: no such figure on this side

# numbers in a SERVER_ERROR, as the client spells them out
E_NOT_IMPLEMENTED = 13
E_PARAMETERS = 114
E_CONGESTION = 134
SERVER_ERRORS = {
    6: "number of parallel streams too large",
    E_NOT_IMPLEMENTED: "an option you are trying to set is not implemented yet",
    27: "total required bandwidth is larger than server limit",
    E_PARAMETERS: "unable to receive parameters from client",
    E_CONGESTION: "unable to set TCP_CONGESTION",
    142: "test authorization failed",
}


class State(enum.IntEnum):
    """The byte that moves a test on."""

    TEST_START = 1
    TEST_RUNNING = 2
    TEST_END = 4
    PARAM_EXCHANGE = 9
    CREATE_STREAMS = 10
    SERVER_TERMINATE = 11
    CLIENT_TERMINATE = 12
    EXCHANGE_RESULTS = 13
    DISPLAY_RESULTS = 14
    IPERF_DONE = 16
    SERVER_ERROR = 254
    ACCESS_DENIED = 255


class Iperf3Error(Exception):
    """The other side does not speak iperf3, refuses, or went away in the middle.

    tree: of a client's test, what `-J` shows of it as far as it went."""

    tree: dict[str, Any] | None = None


@dataclass
class Settings:
    """What a test is to be. `duration` or `amount` or `blocks` ends it.

    duration, omit: seconds. amount: bytes over all streams of a direction. length: bytes of one write or read.
    bitrate: bits/s of each sending stream, 0 for as fast as it goes. window: of both socket buffers, bytes.
    """

    duration: int = 10
    amount: int = 0
    blocks: int = 0
    omit: int = 0
    parallel: int = 1
    reverse: bool = False
    bidirectional: bool = False
    length: int = DEFAULT_LENGTH
    bitrate: int = 0
    window: int = 0
    mss: int = 0
    nodelay: bool = False
    congestion: str = ""
    tos: int = 0
    title: str = ""
    extra_data: str = ""
    server_output: bool = False
    udp: bool = False
    counters64: bool = False  # UDP: numbers of 64 bits

    @property
    def limit(self) -> int:
        """Bytes after which the senders stop; 0 when time does."""
        return self.amount or self.blocks * self.length

    @property
    def streams(self) -> int:
        return self.parallel * (2 if self.bidirectional else 1)

    def encode(self) -> dict[str, Any]:
        """As the client sends them; what has its default is left out where iperf3 leaves it out."""
        found: dict[str, Any] = {
            "udp" if self.udp else "tcp": True,
            "omit": self.omit,
            "time": 0 if self.limit else self.duration,
            "num": self.amount,
            "blockcount": self.blocks,
            "parallel": self.parallel,
            "len": self.length,
            "pacing_timer": 1000,
            "client_version": f"pytcp {pytcp.__version__}",
        }
        optional = {
            "reverse": self.reverse,
            "bidirectional": self.bidirectional,
            "window": self.window,
            "MSS": self.mss,
            "nodelay": self.nodelay,
            "bandwidth": self.bitrate,
            "TOS": self.tos,
            "title": self.title,
            "extra_data": self.extra_data,
            "congestion": self.congestion,
            "get_server_output": int(self.server_output),
            "udp_counters_64bit": int(self.counters64),
        }
        return found | {key: value for key, value in optional.items() if value}

    @classmethod
    def decode(cls, found: dict[str, Any]) -> Settings:
        """What a client asks for. Raises Iperf3Error for what cannot be."""
        udp = not found.get("tcp") and bool(found.get("udp"))
        return cls(
            udp=udp,
            counters64=udp and bool(found.get("udp_counters_64bit")),
            duration=number(found, "time", 0, 86_400),
            amount=number(found, "num", 0, 1 << 63),
            blocks=number(found, "blockcount", 0, 1 << 43),
            omit=number(found, "omit", 0, 600),
            parallel=number(found, "parallel", 1, MAX_STREAMS, least=1),
            reverse=bool(found.get("reverse")),
            bidirectional=bool(found.get("bidirectional")),
            length=number(found, "len", 1460 if udp else DEFAULT_LENGTH, 65507 if udp else MAX_LENGTH, least=16 if udp else 1),
            bitrate=number(found, "bandwidth", 0, 1 << 63),
            window=number(found, "window", 0, 512 << 20),
            mss=number(found, "MSS", 0, 9216),
            nodelay=bool(found.get("nodelay")),
            congestion=words(found, "congestion"),
            tos=number(found, "TOS", 0, 255),
            title=words(found, "title"),
            extra_data=words(found, "extra_data"),
            server_output=bool(found.get("get_server_output")),
        )


def number(found: dict[str, Any], key: str, default: int, most: int, *, least: int = 0) -> int:
    """A whole number of the peer's, or the default. Raises Iperf3Error when it is none, or out of range."""
    value = found.get(key, default)
    if not isinstance(value, int | float) or not least <= value <= most:
        raise Iperf3Error(f"{key}: {str(value)[:40]!r} is not between {least} and {most}")
    return int(value)


def words(found: dict[str, Any], key: str) -> str:
    """A text of the peer's, or "". Raises Iperf3Error when it is none."""
    value = found.get(key, "")
    if not isinstance(value, str):
        raise Iperf3Error(f"{key} is not a text")
    return value


@dataclass
class Result:
    """What one side says about one stream. retransmits: None where that side did not send.

    jitter: seconds; lost, packets: of UDP."""

    bytes: int
    retransmits: int | None
    end: float
    jitter: float = 0.0
    lost: int = 0
    packets: int = 0

    def encode(self, ident: int) -> dict[str, Any]:
        return {
            "id": ident,
            "bytes": self.bytes,
            "retransmits": UNKNOWN if self.retransmits is None else self.retransmits,
            "jitter": self.jitter,
            "errors": self.lost,
            "omitted_errors": 0,
            "packets": self.packets,
            "omitted_packets": 0,
            "start_time": 0,
            "end_time": self.end,
        }

    @classmethod
    def decode(cls, found: object) -> Result:
        if not isinstance(found, dict):
            raise Iperf3Error("a stream's results are not an object")
        end = found.get("end_time", 0)
        if not isinstance(end, int | float) or not 0 <= end < 1e9:
            raise Iperf3Error("end_time is not a time")
        retransmits = found.get("retransmits", UNKNOWN)
        known = isinstance(retransmits, int) and 0 <= retransmits < 1 << 63
        jitter = found.get("jitter", 0)
        if not isinstance(jitter, int | float) or not 0 <= jitter < 1e9:
            raise Iperf3Error("jitter is not a time")
        lost, packets = (number(found, key, 0, 1 << 63) for key in ("errors", "packets"))
        return cls(number(found, "bytes", 0, UNKNOWN), retransmits if known else None, float(end), float(jitter), lost, packets)


@dataclass
class Results:
    """What one side says at the end; `streams` by their number on the wire."""

    streams: dict[int, Result]
    cpu: tuple[float, float, float]  # per cent of one processor: total, user, system
    has_retransmits: bool
    congestion: str
    output: str = ""
    output_tree: dict[str, Any] | None = None  # from a server that prints JSON

    def encode(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "cpu_util_total": self.cpu[0],
            "cpu_util_user": self.cpu[1],
            "cpu_util_system": self.cpu[2],
            "sender_has_retransmits": 1 if self.has_retransmits else UNKNOWN,
            "congestion_used": self.congestion,
        }
        if self.output:
            found["server_output_text"] = self.output
        found["streams"] = [result.encode(ident) for ident, result in self.streams.items()]
        return found

    @classmethod
    def decode(cls, found: dict[str, Any]) -> Results:
        streams = found.get("streams", [])
        if not isinstance(streams, list) or len(streams) > 2 * MAX_STREAMS:
            raise Iperf3Error("the results have no list of streams")
        cpu = [value if isinstance(value := found.get(f"cpu_util_{key}"), int | float) else 0.0 for key in ("total", "user", "system")]
        return cls(
            {number(entry, "id", 0, 1 << 31): Result.decode(entry) for entry in streams if isinstance(entry, dict)},
            (float(cpu[0]), float(cpu[1]), float(cpu[2])),
            found.get("sender_has_retransmits") == 1,
            words(found, "congestion_used"),
            words(found, "server_output_text"),
            tree if isinstance(tree := found.get("server_output_json"), dict) else None,
        )


def stream_number(index: int) -> int:
    """iperf3 numbers the streams of a test 1, 3, 4, 5, ..."""
    return index + 1 + (index > 0)


def new_cookie() -> bytes:
    """36 letters and digits, and the zero that ends them."""
    alphabet = string.ascii_lowercase + string.digits[2:8]
    return "".join(random.choices(alphabet, k=COOKIE_SIZE - 1)).encode() + b"\0"


class Control:
    """A control connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream

    async def exactly(self, size: int) -> bytes:
        """So many bytes. Raises Iperf3Error when the other side went away before."""
        data = b""
        while len(data) < size:
            piece = await self.stream.receive_some(size - len(data))
            if not piece:
                raise Iperf3Error("control socket has closed unexpectedly")
            data += piece
        return data

    async def say(self, state: State) -> None:
        await self.stream.send_all(bytes((state,)))

    async def heard(self) -> State:
        """The next state. Raises Iperf3Error for the bad news there are, and for what is no state."""
        (byte,) = await self.exactly(1)
        try:
            state = State(byte)
        except ValueError:
            raise Iperf3Error(f"received an unknown control message ({byte})") from None
        if state is State.ACCESS_DENIED:
            raise Iperf3Error("the server is busy running a test. try again later")
        if state is State.SERVER_TERMINATE:
            raise Iperf3Error("the server has terminated")
        if state is State.CLIENT_TERMINATE:
            raise Iperf3Error("the client has terminated")
        if state is State.SERVER_ERROR:
            what, number = struct.unpack("!ii", await self.exactly(8))
            text = SERVER_ERRORS.get(what, f"server error {what}")
            raise Iperf3Error(f"{text}: {os.strerror(number)}" if number > 0 else text)
        return state

    async def expect(self, wanted: State) -> None:
        """Wait for one state. Raises Iperf3Error when another comes."""
        state = await self.heard()
        if state is not wanted:
            raise Iperf3Error(f"{state.name} where {wanted.name} was due")

    async def fail(self, what: int, number: int = 0) -> None:
        """As the server: say that it cannot be."""
        await self.stream.send_all(bytes((State.SERVER_ERROR,)) + struct.pack("!ii", what, number))

    async def send_json(self, value: object) -> None:
        text = json.dumps(value).encode()
        await self.stream.send_all(struct.pack("!I", len(text)) + text)

    async def receive_json(self) -> dict[str, Any]:
        (size,) = struct.unpack("!I", await self.exactly(4))
        if size > JSON_MAX:
            raise Iperf3Error(f"{size} bytes of JSON are too many")
        try:
            found = json.loads(await self.exactly(size))
        except (ValueError, RecursionError) as exc:
            raise Iperf3Error("not JSON") from exc
        if not isinstance(found, dict):
            raise Iperf3Error("not a JSON object")
        return found

"""Nothing that arrives on the wire makes the host raise, or grow without bound."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import RxFrame
from pytcp.link.pipe import pipe_pair
from pytcp.net.interface import Interface
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.wire.addr import parse_mac
from pytcp.wire.checksum import checksum

RECORDED = Path(__file__).parent.parent / "data" / "host"


def _host() -> tuple[VirtualRuntime, Stack, Interface]:
    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=1)
    link, _ = pipe_pair(runtime.heap, macs=(parse_mac("02:00:00:00:00:11"), parse_mac("02:00:00:00:00:12")))
    dev = stack.add_interface(link, ["10.78.0.1/24", "fd78::1/64"])
    stack.udp.socket(4).bind(b"", 5000)
    stack.udp.socket(6).bind(b"", 5001)
    for family in (4, 6):
        listener = stack.new_sock(family)
        listener.v6only = True
        api.bind(listener, b"", 80)
        api.listen(listener, 4)
    return runtime, stack, dev


def _frames() -> list[bytes]:
    found = []
    for path in sorted(RECORDED.glob("*.json")):
        for case in json.loads(path.read_text()):
            for step in case["steps"]:
                text = step.get("peer", {}).get("hex")
                if isinstance(text, str):
                    found.append(bytes.fromhex(text))
    return found


FRAMES = _frames()


def _repair(frame: bytearray) -> bytes:
    """A correct IPv4 header checksum, so that the damage gets further."""
    if len(frame) >= 34 and frame[12:14] == b"\x08\0":
        size = (frame[14] & 15) * 4
        frame[24:26] = b"\0\0"
        frame[24:26] = checksum(bytes(frame[14 : 14 + size])).to_bytes(2, "big")
    return bytes(frame)


def _give(frames: list[bytes], gso: int) -> Stack:
    runtime, stack, dev = _host()
    for data in frames:
        dev.link.rx(RxFrame(memoryview(data), gso, 100 if gso else 0))
        dev.link.rx_end()
        runtime.run_for(0)
    runtime.run_for(1_000_000_000)
    stack.close()
    return stack


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=120), max_size=8), st.sampled_from((0, 1, 4, 5)))
def test_any_bytes_are_counted_or_answered_but_never_raise(frames: list[bytes], gso: int) -> None:
    stack = _give(frames, gso)
    assert stack.interfaces[1].rx_packets >= len(frames)


@settings(max_examples=120)
@given(
    st.lists(st.tuples(st.sampled_from(FRAMES), st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=4), st.integers(0, 60)), max_size=6),
    st.sampled_from((0, 0, 1, 4, 5)),
    st.booleans(),
)
def test_damaged_real_frames_never_raise(damaged: list[tuple[bytes, list[tuple[int, int]], int]], gso: int, repair: bool) -> None:
    frames = []
    for whole, hits, cut in damaged:
        frame = bytearray(whole[: len(whole) - cut] if cut < 20 else whole)
        for at, value in hits:
            if frame:
                frame[at % len(frame)] = value
        frames.append(_repair(frame) if repair else bytes(frame))
    stack = _give(frames, gso)
    assert stack.mib.IpInReceives + stack.mib.Ip6InReceives + len(frames) >= len(frames)


def test_a_flood_of_strangers_leaves_only_bounded_memory() -> None:
    runtime, stack, dev = _host()
    ask = bytes.fromhex("ffffffffffff0200000000120806000108000604000102000000001200000000000000000000") + bytes.fromhex("0a4e0001")
    for i in range(3000):
        data = bytearray(ask)
        data[28:32] = bytes((10, 78, 0, i % 250 + 2)) if i % 2 else bytes((10, 78, i >> 8 & 0xFF, i & 0xFF))
        dev.link.rx(RxFrame(memoryview(bytes(data))))
    echo = next(frame for frame in FRAMES if frame[12:14] == b"\x08\0" and frame[23] == 1 and frame[34] == 8)
    for i in range(9000):
        frame = bytearray(echo)
        frame[26:30] = (0x0B000000 + i).to_bytes(4, "big")
        dev.link.rx(RxFrame(memoryview(_repair(frame))))
    assert len(dev.neigh4.entries) <= 1024
    assert len(stack._dsts) <= 8192
    assert len(stack.idents._last) <= 4096
    runtime.run_for(0)

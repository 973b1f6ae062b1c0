"""Byte-exact transfers with a real kernel, both ways at once, over each way Linux can be set up to disagree.

What was negotiated is read from the *kernel's* tcp_info: a test of "SACK off" in which SACK was on would say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from pytcp.lab.testbed import Testbed

from .exchange import ECN, SACK, TIMESTAMPS, WSCALE, duplex, pair

pytestmark = pytest.mark.tap

SIZE = 3 << 20
USUAL = TIMESTAMPS | SACK | WSCALE

VARIANTS: Mapping[str, tuple[Mapping[str, int], int]] = {
    "as it comes": ({}, USUAL),
    "SACK off": ({"net.ipv4.tcp_sack": 0}, USUAL & ~SACK),
    "timestamps off": ({"net.ipv4.tcp_timestamps": 0}, USUAL & ~TIMESTAMPS),
    "window scaling off": ({"net.ipv4.tcp_window_scaling": 0}, USUAL & ~WSCALE),
    "all three off": ({"net.ipv4.tcp_sack": 0, "net.ipv4.tcp_timestamps": 0, "net.ipv4.tcp_window_scaling": 0}, 0),
    "SYN cookies always": ({"net.ipv4.tcp_syncookies": 2}, USUAL),
}


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_directions_are_byte_exact_whoever_opened(variant: str, family: int) -> None:
    sysctls, expected = VARIANTS[variant]

    async def main() -> None:
        async with pair(tb) as p:
            async with p.kernel_connects(family) as (kernel, ours):
                assert kernel.options & USUAL == expected
                await duplex(kernel.stream, ours, SIZE)
            async with p.pytcp_connects(family) as (kernel, ours):
                assert kernel.options & USUAL == expected
                await duplex(kernel.stream, ours, SIZE)

    with Testbed(sysctls=sysctls) as tb:
        trio.run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_ecn_is_agreed_on_when_the_peer_asks_and_when_we_ask(family: int) -> None:
    async def main() -> None:
        async with pair(tb, sysctls={"net.ipv4.tcp_ecn": 1}) as p:
            async with p.kernel_connects(family) as (kernel, ours):
                assert kernel.options & ECN
                await duplex(kernel.stream, ours, SIZE)
            async with p.pytcp_connects(family) as (kernel, ours):
                assert kernel.options & ECN
                await duplex(kernel.stream, ours, SIZE)

    with Testbed(sysctls={"net.ipv4.tcp_ecn": 1}) as tb:
        trio.run(main)


# What the kernel's TCP_MAXSEG says with timestamps: MTU - IP header - 20 of TCP - 12 of timestamps.
@pytest.mark.parametrize(("mtu", "family", "mss"), [(576, 4, 524), (1280, 4, 1228), (1280, 6, 1208), (9000, 4, 8948), (9000, 6, 8928)])
@pytest.mark.parametrize("offload", [True, False], ids=["super-frames", "single frames"])
def test_mtus(mtu: int, family: int, mss: int, offload: bool) -> None:
    async def main() -> None:
        async with pair(tb) as p, p.kernel_connects(family) as (kernel, ours):
            assert kernel.mss == mss
            await duplex(kernel.stream, ours, SIZE if offload else SIZE // 4)

    with Testbed(mtu=mtu, offload=offload) as tb:
        trio.run(main)


@pytest.mark.parametrize("family", [4, 6])
def test_a_plain_tap_without_virtio_headers(family: int) -> None:
    async def main() -> None:
        async with pair(tb) as p:
            async with p.kernel_connects(family) as (kernel, ours):
                await duplex(kernel.stream, ours, SIZE)
            async with p.pytcp_connects(family) as (kernel, ours):
                await duplex(kernel.stream, ours, SIZE)

    with Testbed(vnet_hdr=False, txqueuelen=10_000) as tb:
        trio.run(main)


@pytest.mark.parametrize("congestion", ["reno", "cubic", "bbr"])
def test_whatever_the_peers_congestion_control(congestion: str) -> None:
    async def main() -> None:
        async with pair(tb) as p, p.kernel_connects(4) as (kernel, ours):
            assert kernel.congestion == congestion
            await duplex(kernel.stream, ours, SIZE)

    with Testbed(congestion=congestion) as tb:
        trio.run(main)


def test_a_kernel_that_was_shut_for_reading_first_still_gets_its_end_of_file() -> None:
    async def main() -> None:
        async with pair(tb) as p, p.pytcp_connects(4) as (kernel, ours):
            await ours.send_eof()
            assert await kernel.stream.receive_some(100) == b""
            await kernel.stream.send_all(b"late answer")
            await kernel.stream.send_eof()
            assert await ours.receive_some(100) == b"late answer"
            assert await ours.receive_some(100) == b""

    with Testbed() as tb:
        trio.run(main)


def test_a_port_nobody_listens_on_refuses_in_both_directions() -> None:
    async def main() -> None:
        async with pair(tb) as p:
            for family in (4, 6):
                with pytest.raises(ConnectionRefusedError):
                    await p.stack.open_tcp_stream(p.peer(family), 9)
                sock = p.kernel_socket(family)
                with sock, pytest.raises(ConnectionRefusedError):
                    await sock.connect((p.address(family), 9))

    with Testbed() as tb:
        trio.run(main)


def test_a_reset_of_the_kernel_breaks_our_stream() -> None:
    async def main() -> None:
        async with pair(tb) as p, p.kernel_connects(4) as (kernel, ours):
            await ours.send_all(b"never read")
            await trio.sleep(0.05)
            kernel.sock.close()  # with unread data: Linux sends RST
            with pytest.raises(trio.BrokenResourceError):
                await ours.receive_some(1)

    with Testbed() as tb:
        trio.run(main)


def test_a_reader_that_stops_closes_the_window_and_the_transfer_goes_on_when_it_reads_again() -> None:
    async def main() -> None:
        async with pair(tb) as p, p.kernel_connects(4) as (kernel, ours):
            data = bytes(range(256)) * (SIZE // 256) * 8
            received = bytearray()

            async def read_late() -> None:
                await trio.sleep(0.7)  # longer than the sender's first zero-window probes
                while chunk := await ours.receive_some(1 << 18):
                    received.extend(chunk)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_late)
                await kernel.stream.send_all(data)
                await kernel.stream.send_eof()
            assert received == data
            assert tb.nstat()["TcpExtTCPToZeroWindowAdv"] == 0  # the kernel's own window was never the one to close

    with Testbed() as tb:
        trio.run(main)


def test_a_hundred_connections_at_once_in_each_direction() -> None:
    async def one(p: object, opened: str, family: int) -> None:
        async with getattr(p, opened)(family) as (kernel, ours):
            await duplex(kernel.stream, ours, 20_000)

    async def main() -> None:
        async with pair(tb) as p, trio.open_nursery() as nursery:
            for number in range(100):
                for opened in ("kernel_connects", "pytcp_connects"):
                    nursery.start_soon(one, p, opened, 4 if number % 2 else 6)

    with Testbed() as tb:
        trio.run(main)

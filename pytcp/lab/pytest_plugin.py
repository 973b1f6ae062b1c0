"""pytest fixtures for programs that use the network: over a wire of the test's choosing, in virtual time or against a Linux kernel.

    def test_upload_over_a_bad_line(pytcp_virtual):
        async def main(client, server):
            ...client.open_tcp_stream("10.0.0.2", 80)...

        pytcp_virtual(main, there=Impairment(rate=1_000_000, loss=0.01), delay_ns=50_000_000)

    def test_download_from_nginx(pytcp_kernel):
        async def main(stack, testbed):
            testbed.popen(["nginx", ...])
            ...

        pytcp_kernel(main, rx=Impairment(loss=0.01))

`pytcp_virtual` joins two hosts in virtual time: no privileges, nothing sleeps, the same seed gives the same packets. `pytcp_kernel` opens a
testbed, whose kernel is the peer, for one test; `@pytest.mark.pytcp_testbed(mtu=9000, sysctls={...})` says how. Where the machine does not
let us, the test is skipped with the reason, or fails with `pytcp_require_kernel = true` in the project's settings.

Nothing of pytcp is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from pytcp.lab.testbed import Testbed
    from pytcp.link.emulator import Impairment
    from pytcp.sockets.open import TrioStack

T = TypeVar("T")

CLIENT, SERVER = ("10.0.0.1/24", "fd00::1/64"), ("10.0.0.2/24", "fd00::2/64")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The project's setting."""
    parser.addini("pytcp_require_kernel", "tests with pytcp_kernel fail where the machine has no testbed, instead of being skipped", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Our marker."""
    config.addinivalue_line("markers", "pytcp_testbed(**options): how pytcp.lab.testbed.Testbed is made for the fixture pytcp_kernel")


class VirtualHosts:
    """What `pytcp_virtual` gives: call it with an async function of two stacks."""

    client4, server4 = "10.0.0.1", "10.0.0.2"
    client6, server6 = "fd00::1", "fd00::2"

    def __call__(
        self,
        main: Callable[[TrioStack, TrioStack], Awaitable[T]],
        *,
        there: Impairment | None = None,
        back: Impairment | None = None,
        delay_ns: int = 0,
        mtu: int = 1500,
        seed: int = 0,
        timeout: float = 3600,
        client_sysctls: Mapping[str, int | str] | None = None,
        server_sysctls: Mapping[str, int | str] | None = None,
    ) -> T:
        """Run `await main(client, server)` and return what it returns.

        there, back: what happens to packets from and to the client. delay_ns: one way, besides. mtu: bytes of IP.
        seed: of accidents on the wire, of the hosts, and of the order of tasks. timeout: virtual seconds.
        Raises what `main` raises, TimeoutError, and VirtualDeadlock when nothing can happen any more."""
        from pytcp.sockets.open import run_virtual

        async def run() -> T:
            import trio

            from pytcp.clock.virtual import VirtualClock
            from pytcp.link.emulator import Emulator
            from pytcp.link.frame import Link
            from pytcp.link.pipe import pipe_pair
            from pytcp.sockets.open import open_stack

            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, VirtualClock)
            heap = clock.runtime.heap
            near, far = pipe_pair(heap, mtu=mtu, delay_ns=delay_ns, names=("client", "server"))
            link: Link = near if there is None and back is None else Emulator(near, heap, seed, tx=there, rx=back)
            async with (
                open_stack(link=link, addresses=CLIENT, sysctls=client_sysctls, seed=2 * seed) as client,
                open_stack(link=far, addresses=SERVER, sysctls=server_sysctls, seed=2 * seed + 1, gro=link is not near) as server,
            ):
                return await _timed(main(client, server), timeout, "virtual ")

        return run_virtual(run, seed=seed)


class KernelPeer:
    """What `pytcp_kernel` gives: call it with an async function of a stack and the testbed it stands in."""

    def __init__(self, testbed: Testbed) -> None:
        self.testbed = testbed

    def __call__(
        self,
        main: Callable[[TrioStack, Testbed], Awaitable[T]],
        *,
        tx: Impairment | None = None,
        rx: Impairment | None = None,
        seed: int = 0,
        timeout: float = 60,
        **options: Any,
    ) -> T:
        """Run `await main(stack, testbed)` in real time and return what it returns. Once in a test: the stack closes the device.

        tx, rx: what happens to packets from and to the stack, by `seed`. timeout: seconds. options: of `open_stack`.
        Raises what `main` raises, and TimeoutError."""
        import trio

        from pytcp.lab.wired import open_wired

        async def run() -> T:
            testbed = self.testbed
            async with open_wired(testbed.link, testbed.addresses, tx=tx, rx=rx, seed=seed, **options) as wired:
                return await _timed(main(wired.stack, testbed), timeout, "")

        return trio.run(run)


async def _timed(result: Awaitable[T], timeout: float, kind: str) -> T:
    import trio

    with trio.move_on_after(timeout):
        return await result
    raise TimeoutError(f"not done after {timeout:g} {kind}seconds")


@pytest.fixture
def pytcp_virtual() -> VirtualHosts:
    """Two hosts on a wire in virtual time: `pytcp_virtual(main, there=Impairment(...), delay_ns=...)` runs `main(client, server)`."""
    return VirtualHosts()


@pytest.fixture
def pytcp_kernel(request: pytest.FixtureRequest) -> Iterator[KernelPeer]:
    """A stack with a Linux kernel as its peer: `pytcp_kernel(main, tx=Impairment(...))` runs `main(stack, testbed)`."""
    from pytcp.lab.testbed import Testbed, TestbedError

    marker = request.node.get_closest_marker("pytcp_testbed")
    testbed = Testbed(**(marker.kwargs if marker is not None else {}))
    try:
        testbed.open()
    except TestbedError as error:
        reason = f"no testbed: {error.strerror}"
        if request.config.getini("pytcp_require_kernel"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    try:
        yield KernelPeer(testbed)
    finally:
        testbed.close()

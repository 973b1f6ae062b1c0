"""A program that knows nothing of pytcp, run on it: trio opens a stack first, and sockets are the stack's.

    launcher = Launcher(open_one, nameservers=())
    with launcher.installed(), secluded(addresses):
        runpy.run_path("program.py", run_name="__main__")

For the length of the `with`, in this process:

- `trio.run` and `trio.lowlevel.start_guest_run` run the program's main function inside a stack that `open_one` makes, with `use_stack` in
  force.
- `anyio.run` uses trio where the program leaves the choice to anyio, and refuses asyncio, which would
  not be on the stack.
- `trio.socket.from_stdlib_socket` adopts listeners made of the standard library's sockets.

`secluded` moves the thread into a network namespace of its own whose loopback has the stack's addresses:
a program that binds a kernel socket before it hands it to trio finds every port free and its address
there, and what goes past trio reaches nobody instead of leaving the stack unnoticed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import trio

from pytcp.lab.netns import Namespace
from pytcp.sockets.factory import patched_stdlib, use_stack
from pytcp.sockets.open import TrioStack
from pytcp.sockets.resolver import Resolver

if TYPE_CHECKING:
    from outcome import Outcome

IFA_F_NODAD = 2


class Launcher:
    """Puts the trio runs of this process on stacks.

    open_one: makes the stack of one run. nameservers: to ask instead of resolv.conf's.
    runs: how many there have been.
    """

    def __init__(self, open_one: Callable[[], AbstractAsyncContextManager[TrioStack]], nameservers: Iterable[str] = ()) -> None:
        self.open_one = open_one
        self.nameservers = tuple(nameservers)
        self.runs = 0
        self._running = False
        self._run = trio.run
        self._start_guest_run = trio.lowlevel.start_guest_run

    def run(self, async_fn: Callable[..., Awaitable[Any]], *args: Any, **options: Any) -> Any:
        """What `trio.run` is meanwhile. Raises RuntimeError for a second one at the same time: the device has one stack."""
        self._begin()
        try:
            return self._run(self._on_a_stack(async_fn), *args, **options)
        finally:
            self._running = False

    def start_guest_run(
        self, async_fn: Callable[..., Awaitable[Any]], *args: Any, done_callback: Callable[[Outcome[Any]], object], **options: Any
    ) -> None:
        """What `trio.lowlevel.start_guest_run` is meanwhile. Raises RuntimeError as `run`: another may begin when `done_callback` is called."""

        def done(outcome: Outcome[Any]) -> None:
            self._running = False
            done_callback(outcome)

        self._begin()
        try:
            self._start_guest_run(self._on_a_stack(async_fn), *args, done_callback=done, **options)
        except BaseException:
            self._running = False
            raise

    def _begin(self) -> None:
        if self._running:
            raise RuntimeError("a trio run of this process is on the stack already, and its device cannot have two")
        self._running = True
        self.runs += 1

    def _on_a_stack(self, async_fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(async_fn)
        async def main(*args: Any) -> Any:
            result: Any = None
            raised: BaseException | None = None
            async with self.open_one() as stack:
                resolver = Resolver(stack, nameservers=self.nameservers)
                with use_stack(stack, resolver=resolver) as factory, patched_stdlib(factory):
                    try:
                        result = await async_fn(*args)
                    except BaseException as exc:
                        raised = exc  # raised outside the nurseries, which would make a group of it
            if raised is not None:
                raise raised
            return result

        return main

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be `trio.run`, `trio.lowlevel.start_guest_run` and `anyio.run` until the block ends."""
        module: Any = trio
        module.run = self.run
        module.lowlevel.start_guest_run = self.start_guest_run
        try:
            with _anyio_on_trio():
                yield
        finally:
            module.run = self._run
            module.lowlevel.start_guest_run = self._start_guest_run


@contextlib.contextmanager
def _anyio_on_trio() -> Iterator[None]:
    if importlib.util.find_spec("anyio") is None:
        yield
        return
    module: Any = importlib.import_module("anyio")
    original = module.run

    @functools.wraps(original)
    def run(func: Callable[..., Awaitable[Any]], *args: Any, backend: str = "trio", **options: Any) -> Any:
        if backend != "trio":
            raise RuntimeError(f"this program asks for anyio's {backend} backend; on pytcp it has to be trio")
        return original(func, *args, backend=backend, **options)

    module.run = run
    try:
        yield
    finally:
        module.run = original


@contextlib.contextmanager
def secluded(addresses: Iterable[str]) -> Iterator[None]:
    """Put the calling thread, and threads it starts, where no kernel network is but a loopback with `addresses`.

    addresses: "address/prefix" strings. Raises TestbedError where the machine does not let us."""
    with Namespace() as space:
        with space.netlink() as ip:
            for address in addresses:
                host = address.partition("/")[0]
                six = ":" in host
                ip.addr("add", index=1, address=host, prefixlen=128 if six else 32, **({"flags": IFA_F_NODAD} if six else {}))
        with space.entered():
            yield

"""Many scripts on the running kernel at once, each in a network namespace of its own, in one thread.

A script mostly waits. One loop performs the actions of all when they are due, and reads the devices meanwhile. Ticks of the
kernel are multiples of their length on the monotonic clock; where the timer wheel stood at a script's time 0 is noted.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import shlex
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytcp.drill.errors import DrillError
from pytcp.drill.run import Settings, setup_for
from pytcp.drill.script import Script
from pytcp.drill.target import Pending
from pytcp.drill.target_kernel import KernelTarget
from pytcp.lab.oracle.kernel_side import jiffies_at, tick_ns

from .player import READY, Notes, Player

PARALLEL = 8  # of one process: events of many disturb each other
LINGER_NS = 8_000_000  # behind the last action
EARLY_NS = 60_000  # waiting ends so early, and the rest is spent looking at the clock


class ManyTarget(KernelTarget):
    """A kernel target whose calls do not block, and which leaves the thread where it is."""

    def open(self) -> None:
        self._build()

    def fileno(self) -> int:
        """The device."""
        return self._tun

    def take(self) -> None:
        """Note packets that wait at the device."""
        self._read()

    def begin(self, function: Callable[..., Any], *args: Any) -> Pending:
        pending = Pending(began_ns=self.now())
        with self.space.entered() if function == self.calls.socket else contextlib.nullcontext():
            try:
                pending.value = function(*args)
            except OSError as error:
                pending.error = error
        pending.done, pending.ended_ns = True, self.now()
        self._read()
        return pending

    def shell(self, text: str, cleanup: bool) -> None:
        """Only `sysctl -q name=value ...`, without a program."""
        for word in shlex.split(text)[2:]:
            name, _, value = word.partition("=")
            self.space.set_sysctl(name, value)

    def abort(self) -> None:
        """Close what is open so that it says no more."""
        for handle in self.calls._open:
            with contextlib.suppress(OSError):
                handle.sock.setsockopt(1, 13, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                handle.sock.close()
        self.calls._open.clear()


class KernelPlayer(Player):
    """A player on the kernel."""

    target: ManyTarget

    def __init__(self, script: Script, ip: str) -> None:
        super().__init__(script, ManyTarget(setup_for(script, ip, Settings())), ip)

    def ready(self, handle: Any) -> int:
        poll = select.poll()
        poll.register(handle.fileno(), READY)
        return dict(poll.poll(0)).get(handle.fileno(), 0)

    def prepare(self) -> None:
        """What takes long: a namespace with the script's settings."""
        self.target.open()
        if self.script.init is not None:
            self.target.shell(self.script.init.text, False)
        self._before = self.target.space.nstat()

    def play(self) -> Iterator[int]:
        """Yields the time, ns of the monotonic clock, at which it wants to go on."""
        target = self.target
        target.start()
        self.notes.boot_ns = wheel_ns(time.monotonic_ns() - target.now())
        start_ns = time.monotonic_ns() - target.now()
        for event in self.script.events:
            yield start_ns + event.when.at_ns
            self.perform(event)
        yield start_ns + target.now() + LINGER_NS
        before, after = self._before, target.space.nstat()
        self.finish({name: value - before.get(name, 0) for name, value in after.items() if value != before.get(name, 0)})


_jiffies: list[int] = []


def wheel_ns(now_ns: int) -> int:
    """Time since boot, modulo something long, of a machine whose ticks and timer wheel stand as the kernel's at `now_ns`."""
    if not _jiffies:
        _jiffies[:] = [now_ns, jiffies_at(now_ns)]
    jiffies = _jiffies[1] + now_ns // tick_ns() - _jiffies[0] // tick_ns()
    return (1 << 20 | jiffies & 0xFFFFF) * tick_ns() + now_ns % tick_ns()


def run_many(scripts: Mapping[Any, tuple[Script, str]], parallel: int = PARALLEL) -> Iterable[tuple[Any, Notes | str]]:
    """Run scripts (with their IP modes), and yield the key of each with what was noted, or why it could not be run, as they end.

    Raises CannotRun where the machine does not let us."""
    waiting = list(scripts.items())[::-1]
    heap: list[tuple[int, int, Any, KernelPlayer, Iterator[int]]] = []
    # the processor that keeps the time: timers armed on others may fire a tick late
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    live: dict[int, ManyTarget] = {}
    count = 0
    over: list[ManyTarget] = []
    try:
        while waiting or heap:
            # building one takes 20 ms, which would disturb others: a batch begins and ends together
            if waiting and not heap:
                while waiting and len(heap) < parallel:
                    key, (script, ip) = waiting.pop()
                    player = KernelPlayer(script, ip)
                    player.prepare()
                    live[player.target.fileno()] = player.target
                    count += 1
                    heapq.heappush(heap, (0, count, key, player, player.play()))
            due, number, key, player, going = heap[0]
            left = due - time.monotonic_ns()
            if left > EARLY_NS:
                ready = select.select(list(live), [], [], (left - EARLY_NS) / 1e9)[0]
                for fd in ready:
                    live[fd].take()
                continue
            heapq.heappop(heap)
            while time.monotonic_ns() < due:
                pass
            answer: Notes | str
            try:
                heapq.heappush(heap, (next(going), number, key, player, going))
                continue
            except StopIteration:
                answer = player.notes
            except (DrillError, OSError) as error:
                answer = str(error)
            del live[player.target.fileno()]
            player.target.abort()
            over.append(player.target)
            yield key, answer
            if not heap:
                while over:
                    over.pop().close()
    finally:
        os.sched_setaffinity(0, before)
        for target in (*live.values(), *over):
            target.close()

"""pytcp in virtual time, given a script's stimuli at the instants the kernel was given them (or at the script's own).

The tick and the timer wheel stand as the kernel's stood (`Notes.boot_ns`).
"""

from __future__ import annotations

from typing import Any

from pytcp.drill.run import Settings, setup_for
from pytcp.drill.script import Event, Script
from pytcp.drill.target_pytcp import BOOT_NS, STEP_NS, PytcpTarget

from .player import READY, Notes, Player

LINGER_NS = 8_000_000  # behind the last action


class TwinPlayer(Player):
    """A player on pytcp. `begin` and `end` around it."""

    target: PytcpTarget

    def __init__(self, script: Script, ip: str = "ipv4", boot_ns: int = BOOT_NS) -> None:
        super().__init__(script, PytcpTarget(setup_for(script, ip, Settings()), boot_ns), ip)
        self.notes.boot_ns = boot_ns

    def begin(self) -> None:
        """Build the stack; time is 0."""
        self.target.open()
        if self.script.init is not None:
            self.target.shell(self.script.init.text, False)
        self._before = self.target.stack.mib.snapshot()
        self.target.start()

    def at(self, when_ns: int, event: Event) -> None:
        """Perform an action at that time, or now if it has passed."""
        self.target.wait(when_ns - STEP_NS, lambda: False)
        self.perform(event)

    def end(self, when_ns: int) -> Notes:
        """Let time pass until then; what was noted."""
        self.target.wait(when_ns, lambda: False)
        before = self._before
        counters = {name: value - before.get(name, 0) for name, value in self.target.stack.mib.snapshot().items()}
        return self.finish({name: value for name, value in counters.items() if value})

    def ready(self, handle: Any) -> int:
        return int(handle.sock.poll()) & (READY | 0x18)


def play(script: Script, ip: str, kernel: Notes | None = None) -> Notes:
    """A run of a script on pytcp: at its own times, or at those of a run on the kernel."""
    player = TwinPlayer(script, ip, kernel.boot_ns) if kernel is not None else TwinPlayer(script, ip)
    try:
        player.begin()
        for at, event in enumerate(script.events):
            player.at(event.when.at_ns if kernel is None else kernel.times_ns[at], event)
        return player.end(player.target.now() + LINGER_NS if kernel is None else kernel.end_ns)
    finally:
        player.target.close()

"""One connection of a script: whose numbers are whose.

A script counts from its own initial sequence numbers; the stack chooses others. `Flow` translates, both ways: sequence
numbers, acknowledgements, SACK edges and timestamps. In a segment with SYN the script's numbers are as they stand, its
initial numbers included; in all others they count from the initial number, whatever that was: 1 is the first byte.
The remote end is the tool, so on the wire it has the initial number the script gives it.
"""

from __future__ import annotations

from .script import ANY, Opt, TcpPacket

M32 = 0xFFFFFFFF
SYN = 0x002
ACK = 0x010


class Flow:
    """A connection between the stack (local) and the tool (remote)."""

    def __init__(self, local_port: int, remote_port: int) -> None:
        self.local_port = local_port
        self.remote_port = remote_port
        self.local_isn: int | None = None  # the stack's, on the wire
        self.script_local_isn = 0
        self.remote_isn: int | None = None
        self.last_seq = 0  # of what the stack sent last, on the wire: what an ICMP error quotes
        self.closed = False  # the program closed its socket
        self.listens = 0  # listen() calls before it
        self._stamps: dict[int, int] = {}  # script's TS val of the stack -> what it was on the wire
        self._first: tuple[int, int] | None = None

    # --- sequence numbers ---

    def learn(self, wire_isn: int, script_isn: int) -> None:
        """The stack's SYN has been seen."""
        if self.local_isn is None:
            self.local_isn = wire_isn
            self.script_local_isn = script_isn

    def local_base(self, syn: bool) -> int:
        """What the wire has more than the script, of the stack's numbers, in a segment with or without SYN."""
        if self.local_isn is None:
            return 0
        return self.local_isn - self.script_local_isn if syn else self.local_isn

    def remote_base(self, syn: bool) -> int:
        """The same for the tool's numbers."""
        return 0 if syn or self.remote_isn is None else self.remote_isn

    # --- its timestamps ---

    def saw_stamp(self, script: int, wire: int) -> None:
        """The stack sent TS val `wire` where the script says `script`."""
        if self._first is None:
            self._first = (script, wire)
        self._stamps[script] = wire

    def stamp_to_wire(self, script: int) -> int:
        """The TS ecr to send for one of the script: what the stack sent then, else by distance from the first."""
        known = self._stamps.get(script)
        if known is not None:
            return known
        if self._first is None or script == 0:
            return script
        return self._first[1] + script - self._first[0] & M32

    @property
    def first_stamp(self) -> tuple[int, int] | None:
        """(script, wire) of the first one."""
        return self._first

    # --- a whole packet ---

    def options_to_wire(self, packet: TcpPacket) -> tuple[Opt, ...]:
        """An injected packet's options with the numbers of the stack translated."""
        if packet.options is None or packet.options is ANY:
            return ()
        done: list[Opt] = []
        for option in packet.options:  # type: ignore[union-attr]
            if option.kind == "sack":
                base = self.local_base(bool(packet.flags & SYN))
                option = Opt("sack", blocks=tuple((a + base & M32, b + base & M32) for a, b in option.blocks))
            elif option.kind == "TS" and packet.flags & ACK:
                option = Opt("TS", (option.value[0], self.stamp_to_wire(option.value[1])))
            done.append(option)
        return tuple(done)

"""Neighbour unreachability detection: who has which MAC, and for how long we believe it.

One machine for ARP and NDP, as in Linux (RFC 4861 §7.3; net/core/neighbour.c). An entry is made by
the first packet for an address (INCOMPLETE: packets wait while requests go out at 0, 1, 2 s), is
REACHABLE for a random time after a confirmation, then STALE; the next packet is sent at once but
starts a 5 s DELAY, after which three unicast PROBEs decide. FAILED drops what waits and tells the
senders (ICMP host unreachable from ourselves).

`hh`, the ready link-layer header, is there only while packets may go out without a thought; in every
other state `output` decides. Times are on the modelled kernel's timer wheel.
Sysctls: net.ipv4.neigh.default.*, net.ipv6.neigh.default.*.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from pytcp.tcp import gates

from .truesize import tx_truesize

if TYPE_CHECKING:
    from pytcp.clock.heap import Timer
    from pytcp.link.frame import TxFrame
    from pytcp.tcp.sock import Sock

    from .interface import Interface
    from .stack import Stack

NONE = 0
INCOMPLETE = 0x01
REACHABLE = 0x02
STALE = 0x04
DELAY = 0x08
PROBE = 0x10
FAILED = 0x20
NOARP = 0x40
PERMANENT = 0x80

CONNECTED = REACHABLE | NOARP | PERMANENT
VALID = CONNECTED | STALE | DELAY | PROBE

STATE_NAMES = {
    NONE: "NONE",
    INCOMPLETE: "INCOMPLETE",
    REACHABLE: "REACHABLE",
    STALE: "STALE",
    DELAY: "DELAY",
    PROBE: "PROBE",
    FAILED: "FAILED",
    NOARP: "NOARP",
    PERMANENT: "PERMANENT",
}

_MS = 1_000_000
_S = 1_000_000_000


class Solicitor(Protocol):
    """What ARP or NDP does for the machine."""

    def __call__(self, neigh: Neighbour, waiting: TxFrame | None, unicast: bool) -> None:
        """Send one request for `neigh.addr`; `waiting` is the first packet held back."""


class Neighbour:
    """One address on one link."""

    __slots__ = (
        "table", "addr", "mac", "state", "hh", "header", "queue", "queue_bytes", "probes", "confirmed_ns", "updated_ns", "used_ns", "prover",
        "timer", "is_router",
    )  # fmt: skip

    def __init__(self, table: NeighTable, addr: bytes, state: int = NONE, mac: bytes = b"") -> None:
        self.table = table
        self.addr = addr
        self.mac = mac
        self.state = state
        self.header = table.header(mac) if mac else table.dev.room  # link-layer header, or room for it while `mac` is unknown
        self.hh: bytes | None = self.header if state & CONNECTED else None
        self.queue: deque[TxFrame] | None = None
        self.queue_bytes = 0
        self.probes = 0
        now = table.stack.heap.now_ns
        self.confirmed_ns = now
        self.updated_ns = now
        self.used_ns = now
        self.prover: Sock | None = None  # a connection whose progress proves that packets reach it
        self.timer: Timer | None = None
        self.is_router = False

    def __repr__(self) -> str:
        return f"<Neighbour {self.addr.hex()} {STATE_NAMES[self.state]} {self.mac.hex(':')}>"

    # --- sending ---

    def output(self, frame: TxFrame) -> None:
        """Send a frame to this neighbour, or keep it until the address is known.

        `frame.head` begins with room for the link-layer header.
        """
        state = self.state
        if not state & CONNECTED:
            self.used_ns = self.table.stack.heap.now_ns
            if state == STALE:
                self._set(DELAY)
                self._arm(self.table.delay_first_probe_ns)
            elif not state & VALID:
                self._hold(frame)
                return
        room = len(self.header)
        head = frame.head
        frame.head = self.header + head[room:] if isinstance(head, bytes) else b"".join((self.header, memoryview(head)[room:]))
        self.table.dev.xmit(frame)

    def _hold(self, frame: TxFrame) -> None:
        """Queue a frame behind the unresolved address, dropping the oldest beyond the memory limit."""
        self._queue(frame)
        self.resolve()

    def resolve(self) -> None:
        """Begin to ask for an address that is not known, unless that is under way."""
        if not self.state & (INCOMPLETE | VALID):
            self._set(INCOMPLETE)
            self.updated_ns = self.table.stack.heap.now_ns
            self.probes = 0
            self._solicit(False)
            self._arm(self.table.retrans_ns)

    def _queue(self, frame: TxFrame) -> None:
        queue = self.queue
        if queue is None:
            queue = self.queue = deque()
        size = self._charge(frame)
        limit = self.table.unres_qlen_bytes
        while queue and self.queue_bytes + size > limit:
            old = queue.popleft()
            self.queue_bytes -= self._charge(old)
            self.table.stack.dropped(old)
        queue.append(frame)
        self.queue_bytes += size

    def _charge(self, frame: TxFrame) -> int:
        return frame.truesize or tx_truesize(frame.length - len(self.header))

    def _solicit(self, unicast: bool) -> None:
        self.probes += 1
        self.table.solicit(self, self.queue[0] if self.queue else None, unicast)

    # --- hearing ---

    def confirm(self) -> None:
        """Something above proves that packets reach it (progress of a connection, MSG_CONFIRM)."""
        self.confirmed_ns = self.table.stack.heap.now_ns

    def update(self, mac: bytes | None, new: int, *, override: bool, weak: bool = False) -> None:
        """News about the address: state `new` (REACHABLE or STALE) with `mac` (None: the known one).

        Without `override` another MAC than the known one is refused; `weak` then at least casts doubt
        on a REACHABLE entry (RFC 4861 §7.2.5).
        """
        old = self.state
        if old & (PERMANENT | NOARP):
            return
        if old & VALID:
            if mac is None:
                mac = self.mac
            if mac != self.mac:
                if not override:
                    if not (weak and old == REACHABLE):
                        return
                    mac = self.mac
                    new = STALE
            elif new == STALE:
                new = old
        elif mac is None:
            return
        now = self.table.stack.heap.now_ns
        if new == REACHABLE:
            self.confirmed_ns = now
        if new != old or mac != self.mac:
            self.updated_ns = now
        if mac != self.mac or not old & VALID:
            self.mac = mac
            self.header = self.table.header(mac)
            if new != REACHABLE:
                self.confirmed_ns = now - 2 * self.table.base_reachable_ns
        if new != old:
            self._set(new)
            if new == REACHABLE:
                self._arm(self.table.reachable_ns)
            elif self.timer is not None:
                self.timer.cancel()
                self.timer = None
        elif new & (CONNECTED | DELAY):
            self.hh = self.header
        if not old & VALID and self.queue:
            queue, self.queue, self.queue_bytes = self.queue, None, 0
            for frame in queue:
                self.output(frame)
                if frame.owner is not None:
                    gates.release(frame.owner)

    # --- time ---

    def _set(self, state: int) -> None:
        self.state = state
        # in DELAY nothing is asked yet, so packets need no thought either
        self.hh = self.header if state & (CONNECTED | DELAY) else None

    def _arm(self, delay_ns: int) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.table.stack.call_later(delay_ns, self._on_timer)

    def _on_timer(self) -> None:
        self.timer = None
        table = self.table
        now = table.stack.heap.now_ns
        state = self.state
        if state == REACHABLE:
            if now < self.confirmed_ns + table.reachable_ns:
                self._arm(self.confirmed_ns + table.reachable_ns - now)
            elif now <= self.used_ns + table.delay_first_probe_ns:
                self._set(DELAY)
                self.updated_ns = now
                self._arm(table.delay_first_probe_ns)
            else:
                self._set(STALE)
                self.updated_ns = now
        elif state == DELAY:
            self.updated_ns = now
            if self.prover is not None and self.prover.rcv_tstamp_ns > self.confirmed_ns:
                self.confirmed_ns = self.prover.rcv_tstamp_ns
            self.prover = None
            if now <= self.confirmed_ns + table.delay_first_probe_ns:
                self._set(REACHABLE)
                self._arm(max(self.confirmed_ns + table.reachable_ns - now, 0))
            else:
                self._set(PROBE)
                self.probes = 0
                self._solicit(True)
                self._arm(table.retrans_ns)
        elif state == PROBE:
            if self.probes < table.ucast_solicit + table.mcast_resolicit:
                self._solicit(self.probes < table.ucast_solicit)
                self._arm(table.retrans_ns)
            else:
                self._fail()
        elif state == INCOMPLETE:
            if self.probes < table.mcast_solicit:
                self._solicit(False)
                self._arm(table.retrans_ns)
            else:
                self._fail()

    def _fail(self) -> None:
        """Nobody answered: drop what waits, telling each sender."""
        self._set(FAILED)
        self.updated_ns = self.table.stack.heap.now_ns
        queue, self.queue, self.queue_bytes = self.queue, None, 0
        for frame in queue or ():
            if frame.owner is not None:
                gates.release(frame.owner)
            self.table.stack.unreachable(self, frame)

    def drop(self) -> None:
        """Forget the entry: its timer and the packets that wait."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._set(FAILED)
        queue, self.queue, self.queue_bytes = self.queue, None, 0
        for frame in queue or ():
            if frame.owner is not None:
                gates.release(frame.owner)
            self.table.stack.dropped(frame)


class NeighTable:
    """The neighbours of one interface in one address family, with the family's parameters."""

    def __init__(self, stack: Stack, dev: Interface, family: int, solicit: Solicitor) -> None:
        self.stack = stack
        self.dev = dev
        self.family = family
        self.solicit = solicit
        self.entries: dict[bytes, Neighbour] = {}
        self.base_reachable_ns = 0
        self.reachable_ns = 0
        self.retrans_ns = 0
        self.set_times(self._param("base_reachable_time_ms"), self._param("retrans_time_ms"))

    def _param(self, name: str) -> int:
        value: int = getattr(self.stack.sysctl, f"neigh{self.family}_{name}")
        return value

    def set_times(self, base_reachable_ms: int, retrans_ms: int) -> None:
        """Adopt new times (a router may advertise them); the reachable time is drawn anew when it changes."""
        if base_reachable_ms * _MS != self.base_reachable_ns:
            self.base_reachable_ns = base_reachable_ms * _MS
            # RFC 4861 §6.3.2: uniform between 0.5 and 1.5 times the base
            self.reachable_ns = self.base_reachable_ns // 2 + self.stack.random.randrange(self.base_reachable_ns + 1)
        self.retrans_ns = max(retrans_ms * _MS, 10 * _MS)

    @property
    def delay_first_probe_ns(self) -> int:
        return self._param("delay_first_probe_time") * _S

    @property
    def mcast_solicit(self) -> int:
        return self._param("mcast_solicit")

    @property
    def ucast_solicit(self) -> int:
        return self._param("ucast_solicit")

    @property
    def mcast_resolicit(self) -> int:
        return self._param("mcast_resolicit")

    @property
    def unres_qlen_bytes(self) -> int:
        return self._param("unres_qlen_bytes")

    @property
    def locktime_ns(self) -> int:
        return self._param("locktime") * 10 * _MS

    def header(self, mac: bytes) -> bytes:
        """The link-layer header of a packet of this family to `mac`."""
        return self.dev.ll_header(mac, self.family)

    def get(self, addr: bytes) -> Neighbour:
        """The entry of an address, made if there is none."""
        neigh = self.entries.get(addr)
        if neigh is None:
            if len(self.entries) >= self._param("gc_thresh3"):
                self._collect()
            neigh = self.entries[addr] = Neighbour(self, addr)
        return neigh

    def _collect(self) -> None:
        """Make room: the least recently updated entry goes, permanent ones and such with waiting packets last."""
        victim = min(self.entries.values(), key=lambda n: (bool(n.state & (PERMANENT | NOARP)), n.queue is not None, n.updated_ns))
        self.remove(victim.addr)

    def add_permanent(self, addr: bytes, mac: bytes) -> Neighbour:
        """Enter an address by hand; it never expires."""
        self.remove(addr)
        neigh = self.entries[addr] = Neighbour(self, addr, PERMANENT, mac)
        return neigh

    def remove(self, addr: bytes) -> None:
        """Forget an address, if it is there; cached routes through it are looked up again."""
        neigh = self.entries.pop(addr, None)
        if neigh is not None:
            neigh.drop()
            self.stack.routes_changed()

    def flush(self) -> None:
        """Forget everything but what was entered by hand: the link went down."""
        for addr in [addr for addr, neigh in self.entries.items() if not neigh.state & (PERMANENT | NOARP)]:
            self.remove(addr)

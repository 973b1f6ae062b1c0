"""pytcp with one connection over a real TAP, in real time, before the same scripted peer as the kernel's.

The TAP's descriptor is the stack's device; the peer writes to and reads from the interface with a packet
socket. Peer, program and stack share one thread: a frame of the peer's is processed inside the call that
injects it, as the kernel does, only a hundred times more slowly. Where the kernel has an HTB class the stack has its own.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Any

from pytcp.clock.heap import TimerHeap
from pytcp.clock.runtime import Runtime
from pytcp.lab.netns import Namespace
from pytcp.link.qdisc import Htb
from pytcp.link.tap import Tap

from .frames import HOST_MAC, PEER_MAC, VNET, HostFrame, parse
from .kernel_side import DEVICE, ETH_P_ALL, PACKET_OUTGOING, PACKET_VNET_HDR, SNAP, SO_TIMESTAMPNS, SOL_PACKET, SPIN_US, stamp_ns
from .stack_side import StackSide

LONGEST = 65521  # the largest MTU of a TAP


class SpinRuntime(Runtime):
    """Real time, passes on demand."""

    def now(self) -> int:
        self.heap.now_ns = time.monotonic_ns()
        return self.heap.now_ns

    def realtime_ns(self) -> int:
        return time.time_ns()

    def kick(self) -> None:
        self.kicked = True


class TapSide(StackSide):
    """See the module."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._exit = contextlib.ExitStack()
        self._space = Namespace()
        self._given = config
        self._seen: list[HostFrame] = []

    def __enter__(self) -> TapSide:
        try:
            self._exit.enter_context(self._space)
            self._exit.enter_context(self._space.entered())
            self._open()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stack.close()
        self.tap.close()
        self.watch.close()
        self._exit.close()

    def _open(self) -> None:
        config = self._given
        mtu = config.get("mtu") or 1500
        self.tap = Tap(DEVICE, vnet_hdr=True, offload=bool(config.get("offload", True)), mtu=mtu, mac=HOST_MAC)
        self._space.set_sysctl("net.ipv6.conf.all.disable_ipv6", 1)
        self._space.set_sysctl(f"net.ipv6.conf.{DEVICE}.disable_ipv6", 1)
        with self._space.netlink() as ip:
            # the MTU is the stack's; the peer sends what it likes
            ip.link("set", index=ip.link_lookup(ifname=DEVICE)[0], address=PEER_MAC.hex(":"), mtu=LONGEST, state="up")
        self.watch = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.watch.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.watch.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.watch.setblocking(False)
        self.watch.bind((DEVICE, ETH_P_ALL))
        self._wall_ns = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
        runtime = SpinRuntime(TimerHeap(time.monotonic_ns()))
        super().__init__(config, runtime, self.tap)
        self._poll = select.poll()
        self._poll.register(self.tap.fileno(), select.POLLIN)
        self._poll.register(self.watch, select.POLLIN)

    # --- time and frames ---

    def now_us(self) -> int:
        return time.monotonic_ns() // 1000

    def _step(self) -> None:
        """Do what is due: received frames, timers, the device's completions."""
        while self.runtime.one_pass():
            pass
        while True:
            try:
                data, control, _, address = self.watch.recvmsg(SNAP, 64)
            except BlockingIOError:
                return
            if address[2] == PACKET_OUTGOING:
                continue
            gso_type, gso_size = data[1], VNET.unpack_from(data)[3]
            frame = parse(data[VNET.size :], gso_size if gso_type else 0, (stamp_ns(control) - self._wall_ns) // 1000)
            if frame is not None:
                self._seen.append(frame)

    def frames(self) -> list[HostFrame]:
        self._step()
        seen, self._seen = self._seen, []
        return seen

    def wait_until(self, until_us: int) -> None:
        while self.now_us() < until_us:
            self._pause(until_us)

    def wait(self, until_us: int) -> None:
        self._step()
        while not self._seen and self.now_us() < until_us:
            self._pause(until_us)

    def _pause(self, until_us: int) -> None:
        deadline = self.runtime.heap.next_deadline()
        until = until_us if deadline is None else min(until_us, deadline // 1000)
        left = until - self.now_us()
        if left > 1000 + SPIN_US:
            self._poll.poll((left - SPIN_US) // 1000)
        self._step()

    def inject(self, vnet: bytes, frame: bytes) -> None:
        self.watch.send(vnet + frame)
        self._step()

    def limit(self, rate: int, burst: int) -> None:
        self.dev.set_qdisc(Htb(rate // 8, burst=burst, cburst=burst))

"""The transmit ring with a thread: order, charges, who is called, full and lost devices, and how it ends."""

from __future__ import annotations

import gc
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.callback import CallbackLink
from pytcp.link.descriptor import DescriptorLink
from pytcp.link.frame import F_CSUM, F_TSO4, GSO_TCPV4, TxFrame
from pytcp.link.txthread import IDLE_FLAGGED, ThreadRing
from pytcp.native import HAVE_C, reason
from pytcp.net.stack import Stack

pytestmark = pytest.mark.skipif(not HAVE_C, reason=f"no C helpers: {reason}")

PATIENCE = 20.0  # seconds until a thread is taken to be stuck


class Device(DescriptorLink):
    """A device that is one end of a socket pair; `peer` is the other."""

    def __init__(self, *, vnet: bool = False, buffer: int = 1 << 20) -> None:
        ours, self.peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.fd = ours.detach()
        self.name, self.mac, self.mtu = "pair0", b"\x02\x00\x00\x00\x00\x01", 1500
        self.features = F_CSUM | F_TSO4 if vnet else 0
        self._start(10 if vnet else 0, gso=False, gro=False)

    def arrived(self, count: int) -> list[bytes]:
        self.peer.settimeout(PATIENCE)
        return [self.peer.recv(1 << 17) for _ in range(count)]


class Rig:
    """A ring over a device; what its hooks were told."""

    def __init__(self, **device: Any) -> None:
        self.heap = VirtualRuntime().heap
        self.device = Device(**device)
        self.completed: list[Any] = []
        self.uncharged: list[Any] = []
        self.called: list[Any] = []
        self.ring = ThreadRing(
            self.device,
            self.heap,
            lambda owner, skb, truesize: self.completed.append(skb),
            lambda owner, skb, truesize: self.uncharged.append(skb),
            self.called.append,
        )

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *failed: object) -> None:
        self.ring.close()
        self.device.close()
        self.device.peer.close()

    def send(self, *datas: bytes, owner: Any = "sk", truesize: int = 1000) -> None:
        for data in datas:
            assert self.ring.put(TxFrame(data[:3], (data[3:],), len(data), owner=owner, skb=data, truesize=truesize))
        self.ring.flush()

    def reap_until(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.uncharged) < count:
            assert time.monotonic() < deadline, f"{len(self.uncharged)} of {count} frames completed"
            self.ring.reap()
            time.sleep(0)

    def signalled(self, seconds: float) -> bool:
        return bool(select.select([self.ring.completions.fileno()], [], [], seconds)[0])


def test_frames_are_written_whole_and_in_order_and_completed_in_order() -> None:
    with Rig() as rig:
        datas = [bytes([n]) * (n + 4) for n in range(200)]
        for at in range(0, 200, 5):
            rig.send(*datas[at : at + 5])
        assert rig.device.arrived(200) == datas
        rig.reap_until(200)
        assert rig.uncharged == datas
        assert (rig.device.tx_packets, rig.device.tx_bytes) == (200, sum(map(len, datas)))
        assert (len(rig.ring), rig.ring.completed) == (0, 200)


def test_a_virtio_net_header_goes_before_each_frame_and_does_not_count() -> None:
    with Rig(vnet=True) as rig:
        head = bytes(54)
        rig.ring.put(TxFrame(head, (bytes(3000),), 3054, GSO_TCPV4, 1448, 34, 16, "sk", "skb", 4000))
        rig.send(b"plain")
        whole, plain = rig.device.arrived(2)
        # NEEDS_CSUM, TCPv4, hdr_len 54, gso_size 1448, csum at 34 + 16, in the machine's byte order
        assert whole[:10] == bytes((1, 1)) + b"".join(n.to_bytes(2, sys.byteorder) for n in (54, 1448, 34, 16))
        assert (len(whole), plain) == (10 + 3054, bytes(10) + b"plain")
        rig.reap_until(2)
        assert rig.device.tx_bytes == 3054 + 5


def test_a_frame_of_very_many_buffers_is_written_whole() -> None:
    with Rig() as rig:
        rig.ring.put(TxFrame(b"head", tuple(bytes([n]) for n in range(100)), 104, owner="sk", skb=1, truesize=1))
        rig.ring.flush()
        assert rig.device.arrived(1) == [b"head" + bytes(range(100))]


def test_completions_nobody_waits_for_are_silent() -> None:
    with Rig() as rig:
        rig.send(b"first", b"second")
        rig.device.arrived(2)
        assert not rig.signalled(0.05)
        rig.reap_until(2)
        assert rig.called == []


def test_a_completion_that_finds_throttled_signals_and_calls_once() -> None:
    with Rig(buffer=4608) as rig:  # the device is full: nothing completes before we say so
        rig.send(*[bytes(4000)] * 6)
        rig.device.arrived(1)
        assert rig.ring.throttle("sk", 1)
        rig.device.arrived(5)
        assert rig.signalled(PATIENCE)
        rig.ring.completions.poll(64)
        rig.reap_until(6)
        assert rig.called == ["sk"]
        assert not rig.signalled(0)


def test_bare_acknowledgements_take_no_flag_down() -> None:
    with Rig(buffer=4608) as rig:
        rig.send(*[bytes(4000)] * 4)
        assert rig.ring.throttle("sk", 1)
        rig.ring.put(TxFrame(b"ack", owner="other", skb=None, truesize=2))
        assert rig.ring.throttle("other", 1)
        rig.device.arrived(5)
        rig.reap_until(5)
        assert rig.called == ["sk"]


def test_throttling_debits_what_is_completed_by_then() -> None:
    with Rig() as rig:
        rig.send(b"first")
        rig.device.arrived(1)
        deadline = time.monotonic() + PATIENCE
        while not rig.uncharged:
            assert time.monotonic() < deadline
            rig.ring.throttle("sk", 1)
        assert rig.uncharged == [b"first"]


def test_a_flag_set_while_nothing_is_in_the_ring_is_found_by_the_next_completion() -> None:
    with Rig() as rig:
        assert not rig.ring.throttle("sk", 1), "nobody here will call it"
        rig.send(b"later")
        rig.device.arrived(1)
        assert rig.signalled(PATIENCE)
        rig.reap_until(1)
        assert rig.called == ["sk"]


def test_sockets_that_left_their_flag_up_are_not_remembered_for_ever() -> None:
    with Rig() as rig:
        for n in range(IDLE_FLAGGED + 3):
            rig.ring.throttle(f"socket {n}", 1)
        assert rig.called == []
        rig.heap.run_due()
        assert rig.called == ["socket 0", "socket 1", "socket 2"]


def test_a_full_device_is_waited_for() -> None:
    with Rig(buffer=4608) as rig:
        datas = [bytes([n]) * 4000 for n in range(30)]
        rig.send(*datas)
        time.sleep(0.01)
        rig.ring.reap()
        assert len(rig.uncharged) < 30
        assert rig.device.arrived(30) == datas
        rig.reap_until(30)


def test_buffers_live_until_their_frame_is_written() -> None:
    with Rig(buffer=4608) as rig:
        rig.send(*[bytes(4000)] * 5)
        for n in range(50):
            rig.ring.put(TxFrame(bytes(14), [memoryview(bytearray([n]) * 4000)], 4014))
        rig.ring.flush()
        gc.collect()
        _ = [bytearray(b"\xff") * 4000 for _ in range(200)]  # whatever was freed is written over
        got = rig.device.arrived(55)[5:]
        assert got == [bytes(14) + bytes([n]) * 4000 for n in range(50)]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_each_frame_is_debited_once_in_order_and_who_is_held_is_called(seed: int) -> None:
    draw = random.Random(seed)
    with Rig(buffer=4608 if seed % 2 else 1 << 20) as rig:
        rig.device.peer.setblocking(False)
        sent: list[tuple[str, int]] = []
        waiting: set[str] = set()
        debited: list[tuple[str, int]] = []
        rig.ring.on_uncharge = lambda owner, skb, truesize: debited.append(skb)
        rig.ring.on_called = waiting.discard

        def read(most: int) -> None:
            for _ in range(most):
                try:
                    rig.device.peer.recv(1 << 17)
                except BlockingIOError:
                    return

        for _ in range(400):
            owner = draw.choice("abc")
            action = draw.randrange(5)
            if action < 2 and len(rig.ring) < 900:
                for _ in range(draw.randrange(1, 6)):
                    sent.append((owner, len(sent)))
                    assert rig.ring.put(TxFrame(bytes(draw.randrange(1, 3000)), owner=owner, skb=sent[-1], truesize=draw.randrange(1, 5000)))
                rig.ring.flush()
            elif action == 2 and owner not in waiting:
                waiting.add(owner)
                rig.ring.throttle(owner, 1)
                rig.heap.run_due()  # calls owed for what was debited inside
                if not any(who == owner for who, _ in sent[len(debited) :]):
                    waiting.discard(owner)  # the second look saw that nothing is left: it goes on
            elif action == 3:
                read(draw.randrange(20))
            else:
                rig.ring.reap()
        deadline = time.monotonic() + PATIENCE
        while len(debited) < len(sent):
            assert time.monotonic() < deadline
            read(100)
            rig.ring.reap()
        rig.heap.run_due()
        assert debited == sent
        assert waiting == set()


def test_what_a_lost_peer_refuses_is_counted_and_completed() -> None:
    with Rig() as rig:
        rig.device.peer.close()
        rig.send(b"one", b"two")
        rig.reap_until(2)
        assert (rig.device.tx_packets, rig.device.tx_errors) == (0, 2)


def test_closing_ends_a_thread_that_waits_for_a_full_device_and_completes_the_rest() -> None:
    with Rig(buffer=4608) as rig:
        datas = [bytes([n]) * 4000 for n in range(30)]
        rig.send(*datas)
        rig.ring.put(TxFrame(b"unsent", owner="sk", skb=b"unsent", truesize=1))
        rig.ring.close()
        assert rig.uncharged + rig.completed == [*datas, b"unsent"]
        rig.ring.close()
        assert rig.ring.put(TxFrame(b"x"))
        rig.ring.flush()


SURVIVES = """
import os, socket, sys
sys.path.insert(0, {root!r})
from tests.unit.test_link_txthread import Rig
rig = Rig(buffer=4608)
rig.send(*[bytes(4000)] * 30)
{end}
"""


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(0)", "del rig", "pid = os.fork()\nif pid == 0: rig.ring.close(); sys.exit(0)\nsys.exit(os.waitpid(pid, 0)[1])"],
    ids=["end", "exit", "forgotten", "fork"],
)
def test_a_ring_nobody_closed_does_not_harm_the_end_of_the_program(end: str) -> None:
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    program = SURVIVES.format(root=root, end=end)
    # Python 3.12 and later warn of a fork beside threads
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_devices_that_cannot_have_a_thread_say_why() -> None:
    heap = VirtualRuntime().heap

    def ring(link: Any) -> ThreadRing:
        return ThreadRing(link, heap, print, print, print)

    with pytest.raises(ValueError, match="needs a device of the kernel's, not CallbackLink"):
        ring(CallbackLink(lambda packet: None))
    device = Device()
    device.cuts = True
    with pytest.raises(ValueError, match="takes no super-frames: open it with vnet_hdr=True or gso=False"):
        ring(device)
    device.cuts = False
    device.close()
    with pytest.raises(OSError, match="transmit thread of pair0"):
        ring(device)
    device.peer.close()


def test_in_virtual_time_there_is_no_thread() -> None:
    stack = Stack(VirtualRuntime())
    device = Device()
    with pytest.raises(ValueError, match="virtual time"):
        stack.add_interface(device, tx_mode="thread")
    stack.close()
    device.close()
    device.peer.close()


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_thread_alone_under_a_sanitizer(sanitizer: str, tmp_path: Path) -> None:
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("no C compiler")
    program = tmp_path / "harness"
    root = Path(__file__).parents[2]
    command = [cc, "-g", "-O1", f"-fsanitize={sanitizer}", "-pthread", f"-I{root}/csrc", f"{root}/csrc/txthread.c"]
    trial = tmp_path / "trial.c"
    trial.write_text("int main(void) { return 0; }\n")
    able = subprocess.run([cc, f"-fsanitize={sanitizer}", str(trial), "-o", str(program)], capture_output=True, check=False)
    if able.returncode or subprocess.run([str(program)], capture_output=True, check=False).returncode:
        pytest.skip(f"this compiler or kernel cannot do -fsanitize={sanitizer}")
    subprocess.run([*command, str(Path(__file__).with_name("txthread_harness.c")), "-o", str(program)], check=True, capture_output=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "20000 frames, held and called\n"

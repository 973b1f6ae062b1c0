"""What a server's reply in two writes waits for: the completion of the first, or, where that is missed, the client's ACK.

The second write is autocorked behind the first (linux-tcp §2.2: payload 3091 ≥ 5), with TCP_NODELAY set, and the client is in ping-pong, so that it
delays its ACK of the first: 40 ms at HZ 1000.
"""

from __future__ import annotations

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.delayed import Delayed
from pytcp.link.pipe import pipe_pair
from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.tcp.const import NAGLE_OFF

from .net_world import MS, PEER4, dial, serve

US = 1000
ONE_WAY = 400 * US


def reply_times(delayed: Delayed, requests: int = 10, autocork: int = 1, variant: str = "mainline", barrier: int = 1) -> tuple[list[int], Stack]:
    """How long each reply takes from the server's writes to the client's last byte, ns; and the server."""
    runtime = VirtualRuntime()
    ends = pipe_pair(runtime.heap, delay_ns=ONE_WAY, mtu=9001)
    client, server = Stack(runtime, seed=1), Stack(runtime, seed=2)
    for stack in (client, server):
        sysctl.set_(stack.sysctl, "pytcp.hz", 1000)
    sysctl.set_(server.sysctl, "net.ipv4.tcp_autocorking", autocork)
    sysctl.set_(server.sysctl, "pytcp.autocork_nodelay", variant)
    sysctl.set_(server.sysctl, "pytcp.push_barrier", barrier)
    client.add_interface(ends[0], ["10.0.0.1/24"])
    server.add_interface(ends[1], ["10.0.0.2/24"], tx_mode=delayed)
    listener = serve(server, 4, 80)
    asker = dial(client, PEER4, 80)
    runtime.run_for(20 * MS)
    answerer = api.accept(listener)
    answerer.nonagle |= NAGLE_OFF
    times = []
    for n in range(requests + 20):
        api.sendmsg(asker, bytes(100), 0)
        client.flush()
        runtime.run_for(2 * ONE_WAY)
        server.now()
        api.recv(answerer, 1000, 0)
        began = runtime.now()
        api.sendmsg(answerer, bytes(3091), 0)
        api.sendmsg(answerer, bytes(5), 0)
        server.flush()
        got = 0
        while got < 3096:
            runtime.run_for(US)
            try:
                got += len(api.recv(asker, 4096, 0))
            except BlockingIOError:
                assert runtime.now() < began + 300 * MS
        if n >= 20:  # quick ACKs are over
            times.append(runtime.now() - began)
        runtime.run_for(12 * MS)
    return times, server


def test_the_second_write_leaves_when_the_first_is_completed() -> None:
    times, server = reply_times(Delayed((20 * US, 50 * US)))
    assert all(ONE_WAY + 20 * US <= time <= ONE_WAY + 51 * US for time in times)
    assert server.mib.TCPAutoCorking >= 10


def test_without_autocork_it_does_not_wait() -> None:
    times, _ = reply_times(Delayed((20 * US, 50 * US)), autocork=0)
    assert all(time <= ONE_WAY + US for time in times)


@pytest.mark.parametrize("variant", ["any_nonagle", "nodelay_only"])
def test_both_variants_keep_autocork_from_a_nodelay_socket(variant: str) -> None:
    times, server = reply_times(Delayed((20 * US, 50 * US), missed=1.0), variant=variant, barrier=0)
    assert all(time <= ONE_WAY + US for time in times)
    assert server.mib.TCPAutoCorking == 0


def test_a_missed_completion_leaves_it_to_the_clients_delayed_ack() -> None:
    times, server = reply_times(Delayed((20 * US, 50 * US), missed=1.0), barrier=0)
    stalled = [time for time in times if time > 10 * MS]
    # right after a delayed ACK the next reply is acknowledged at once; then the client is in ping-pong again
    assert len(stalled) >= 4
    assert all(40 * MS <= time <= 45 * MS for time in stalled)
    ring = server.interface("pipe1").ring
    assert ring.missed >= len(stalled)  # type: ignore[attr-defined]


def test_with_the_fence_of_6_8_no_completion_is_missed() -> None:
    times, server = reply_times(Delayed((20 * US, 50 * US), missed=1.0), barrier=1)
    assert all(ONE_WAY + 20 * US <= time <= ONE_WAY + 51 * US for time in times)
    assert server.interface("pipe1").ring.missed == 0  # type: ignore[attr-defined]


def test_a_late_completion_costs_what_it_is_late() -> None:
    times, _ = reply_times(Delayed((20 * US, 50 * US), late=1.0, late_ns=2 * MS))
    assert all(ONE_WAY + 2 * MS + 20 * US <= time <= ONE_WAY + 2 * MS + 51 * US for time in times)

"""The memory barrier that tcp_push lacked (netdev, January 2024; 7267e8dcad6b, 6.8).

tcp_push holds a small write while earlier data is in the host's queue: it sets THROTTLED and looks once more. The completion takes
its charge back and looks at THROTTLED. On a processor with weak memory order the second look may come before the flag is seen by
others: the push holds its data, the completion calls nobody, and only the peer's delayed ACK frees it, 40 ms later.

Three views of it: every interleaving of the two under two memory models; the ring's own C functions on two real processors;
and what it does to the latency of a server (the same load as autocork-nodelay).
"""

from __future__ import annotations

from pytcp.lab import litmus
from pytcp.lab.distribution import PERCENTILES, percentiles, sampler
from pytcp.lab.experiment import Figure, Figures, experiment
from pytcp.lab.transactions import OpenLoop
from pytcp.lab.units import MS, US, Share, Some, Time
from pytcp.lab.world import World
from pytcp.link.delayed import Delayed
from pytcp.sockets.socket import IPPROTO_TCP, TCP_NODELAY

BEFORE = dict(zip(PERCENTILES, (0.91, 1.13, 1.46, 1.74, 1.89, 41.95, 48.32, 48.96), strict=True))  # ms
AFTER = dict(zip(PERCENTILES, (0.90, 1.13, 1.45, 1.72, 1.83, 2.11, 2.53, 2.62), strict=True))
FASTEST = 0.5  # ms; not published


@experiment(
    "push-barrier",
    "A completion that nobody is called for",
    variants={"without": {"pytcp.push_barrier": 0}, "with": {"pytcp.push_barrier": 1}},
    compare=("without", "with"),
    published={name: {f"p{percent:g}": value for percent, value in known.items()} for name, known in (("without", BEFORE), ("with", AFTER))},
    source="Salvatore Dipietro, 17 January 2024: tcp: Add memory barrier to tcp_push() (wrk2, an AArch64 server)",
    serial=True,
    figures=(
        *(Figure(f"p{percent:g}", f"p{percent:g} (ms)", "{:.2f}") for percent in PERCENTILES),
        Figure("held_for_good", "sockets left stuck on two processors (0: none, 1: some)"),
        Figure("bad_tso", "bad executions, store buffers, decrement a locked operation"),
        Figure("bad_tso_plain", "bad executions, store buffers, decrement a plain store"),
        Figure("bad_sc", "bad executions, sequential consistency"),
        Figure("bad_printed", "bad executions of the test printed in the thread, store buffers"),
    ),
    differences=(
        "The litmus test printed in the thread stays bad with the barrier: its completion writes the count by a release store and reads the "
        "flag by an acquire load, which a store buffer may swap. tcp_wfree decrements by a locked operation; so modelled, the barrier "
        "removes the bad state. Both sides need an order, not only the push.",
        "On x86 the kernel sets the flag by a locked operation and has never had the bug; here the flag is set by a plain store, to see it.",
        "Counts of stuck sockets depend on the machine and on the moment, and are in the table only; that there are some without the fence "
        "and none with it does not.",
    ),
    fitted=(
        "How often a completion is missed, 1.5 in 10,000, is chosen for the published percentiles. The thread does not know it; what two "
        "processors do here when they meet within 10 ns says that it is of that order.",
        "60,000 requests instead of 400,000 (--set requests=400k).",
    ),
    real="Its threads are real already; over a TAP the kernel completes inside the call that sends and cannot race.",
)
def run(
    world: World,
    requests: Some = 60_000,
    connections: Some = 128,
    rate: Some = 10_000,
    missed: Share = 1.5e-4,
    rtt: Time = 200 * US,
    rounds: Some = 10_000_000,
) -> Figures:
    client, server = world.host("client"), world.host("server")
    barrier = bool(server.stack.sysctl.push_barrier)
    ring = Delayed((20 * US, 50 * US), missed=missed, seed=world.rng("nic").getrandbits(32))
    world.wire(client, server, delay=rtt // 2, mtu=9001, completions=("reaped", ring))
    think = sampler(FASTEST * MS, {percent: value * MS for percent, value in AFTER.items()}, world.rng("think"))
    load = OpenLoop(
        client, server, world.rng("phase"), connections=connections, rate=rate, requests=requests, writes=(2048, 1048),
        think=lambda: int(think()) - rtt, prepare=lambda socket: socket.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1),
    )  # fmt: skip
    world.run(lambda: load.done)
    figures = percentiles(load.from_schedule, MS)

    rows = litmus.verdicts()
    bad = {(row.model, row.flag, row.decrement): (row.barrier if barrier else row.without)[0] for row in rows}
    figures |= {
        "bad_tso": bad["TSO", "plain", "locked"],
        "bad_tso_plain": bad["TSO", "plain", "plain"],
        "bad_sc": bad["SC", "plain", "locked"],
        "bad_printed": bad["TSO", "as printed", "as printed"],
    }
    shown = [(row.model, row.flag, row.decrement, *(row.barrier if barrier else row.without)) for row in rows]
    world.show("Every order of steps", ("memory", "flag set", "decrement", "bad", "of"), shown)

    impossible = litmus.why_no_race()
    if impossible:
        world.show("Two processors", ("",), [(f"cannot race here: {impossible}",)])
    elif rounds:
        # without the fence the first one will do
        how = "plain store and fence" if barrier else "plain store"
        stuck, done = litmus.stuck_sockets("fence" if barrier else "plain", rounds=rounds if barrier else rounds // 2, stop_at_first=not barrier)
        figures["held_for_good"] = int(stuck > 0)
        world.show("Two processors", ("flag set", "rounds", "stuck sockets"), [(how, f"{done:,}", f"{stuck:,}")])
    return figures

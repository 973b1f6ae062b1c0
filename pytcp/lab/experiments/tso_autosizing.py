"""Where super-segments are sized to the rate: in sendmsg, or when they leave (netdev, December 2014; 605ad7f184b6, 3.19).

A burst should carry about a millisecond of the flow's rate. Sized in sendmsg, a large write at the start of a connection is cut
for the rate of that moment: two segments a burst for all that is queued, whatever the rate has become when it leaves. Since 3.19
sendmsg fills super-segments and `write_xmit` cuts each for the rate it finds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import trio

from pytcp.lab.experiment import Figure, Figures, experiment
from pytcp.lab.units import MS, SECOND, US, Mtu, Rate, SomeBytes, SomeTime, Time
from pytcp.lab.workloads import Bulk
from pytcp.lab.world import World
from pytcp.link.delayed import Delayed
from pytcp.sockets.socket import SOL_SOCKET, Socket

if TYPE_CHECKING:
    from pytcp.lab.real import Real

SO_SNDBUF = 7
PUBLISHED_SEGMENTS = 1397
OTHERS = {"out": 11, "in": 13}  # packets of the thread's hosts that are not of this connection: netperf's control connection above all


@experiment(
    "tso-autosizing",
    "Super-segments sized in sendmsg, or when they leave",
    variants={"sendmsg": {"pytcp.autosize_at": "sendmsg"}, "xmit": {"pytcp.autosize_at": "xmit"}},
    profile="linux-3.18",
    settings={"net.core.wmem_max": 4_194_304},  # the thread's SO_SNDBUF of 1,000,000 was granted
    compare=("sendmsg", "xmit"),
    published={
        "sendmsg": {"IpOutRequests": 599, "IpInReceives": 600, "TcpOutSegs": PUBLISHED_SEGMENTS, "elapsed": 0.36, "mbit": 44.22},
        "xmit": {"IpOutRequests": 232, "IpInReceives": 221, "TcpOutSegs": PUBLISHED_SEGMENTS, "elapsed": 0.36, "mbit": 44.27},
    },
    source="Eric Dumazet, 7 December 2014: tcp: refine TSO autosizing (netperf -l -2000000 -- -s 1000000, host-wide nstat)",
    figures=(
        Figure("IpOutRequests", "IpOutRequests"),
        Figure("IpOutRequests_and_control", "  with the control connection's 11"),
        Figure("IpInReceives", "IpInReceives"),
        Figure("IpInReceives_and_control", "  with the control connection's 13"),
        Figure("data_segments", "data segments"),
        Figure("data_packets", "data packets"),
        Figure("TcpOutSegs", "TcpOutSegs"),
        Figure("TcpOutSegs_and_control", "  with the control connection's 11"),
        Figure("elapsed", "elapsed (s)", "{:.2f}"),
        Figure("mbit", "throughput (Mbit/s)", "{:.1f}"),
    ),
    differences=(
        "TcpOutSegs is 1382 segments of 1448 bytes and three more for handshake and close (four where the FIN does not ride on data). The "
        "thread's 1397 leaves 11 for netperf's control connection, which host-wide nstat counts and which is not modelled, and 13 "
        "packets that come in for it. They are the same before and after.",
        "The rest of the difference in packets, a few per cent, is the memory of an skb in 2014, which nobody wrote down.",
        "After the patch the queued skbs hold 10 segments at most, because sendmsg filled them while the peer's window was still 29,200 "
        "bytes, and half a window is the limit: that, not the rate, gives 63 bursts of 10.",
    ),
    fitted=(
        "Nothing: both variants have Linux 3.18's defaults, and the round trip is the thread's. What decides is the first window of 20 segments "
        "(with 64 KB the patch gives about 190 packets) and, before it, the 896 bytes beside an skb's payload.",
    ),
    real="pytcp sends 2 MB to the kernel over a TAP with the same delay, with each variant; the kernel's first window is the thread's.",
)
def run(
    world: World,
    size: SomeBytes = 2_000_000,
    sndbuf: SomeBytes = 1_000_000,
    rtt: SomeTime = 40 * MS,
    rate: Rate = 10_000_000_000,
    completion: Time = 5 * US,
    receive: Literal["super", "segments"] = "super",
    mtu: Mtu = 1500,
) -> Figures:
    sender, receiver = world.host("sender"), world.host("receiver")
    world.wire(sender, receiver, delay=rtt // 2, rate=rate, mtu=mtu, receive=receive, completions=(Delayed((completion, completion)), "reaped"))

    def large_buffer(socket: Socket) -> None:
        socket.setsockopt(SOL_SOCKET, SO_SNDBUF, sndbuf)

    bursts = sender.trace("xmit")
    flow = Bulk(sender, receiver, size, upload=True, write=size, prepare_sender=large_buffer)
    world.run(lambda: flow.closed_ns > 0)
    world.run(limit=rtt)  # the last ACK arrives
    elapsed = (flow.closed_ns - flow.started_ns) / SECOND  # as netperf counts, to the other side's close

    data = [burst for burst in bursts if burst["end_seq"] > burst["seq"]]
    rounds: dict[int, list[int]] = {}
    for burst in data:
        rounds.setdefault(burst["t_ns"] // rtt, []).append(burst["segs"])
    rows = [(number, sum(segs), len(segs), sizes(segs)) for number, segs in rounds.items()]
    world.show("Super-segments of each round trip", ("round", "segments", "packets", "sizes (times x segments)"), rows)
    segments = sum(burst["segs"] for burst in data)
    rest = sender.counters["TcpOutSegs"] - segments
    world.show(
        "TcpOutSegs of the thread, 1397",
        ("", "segments"),
        [
            ("data", segments),
            ("handshake and close", rest),
            ("netperf's control connection, not modelled", OTHERS["out"]),
            ("left over: the FIN, where it does not ride on data", PUBLISHED_SEGMENTS - segments - rest - OTHERS["out"]),
        ],
    )
    out, into = sender.counters["IpOutRequests"], sender.counters["IpInReceives"]
    return {
        "IpOutRequests": out,
        "IpOutRequests_and_control": out + OTHERS["out"],
        "IpInReceives": into,
        "IpInReceives_and_control": into + OTHERS["in"],
        "data_segments": segments,
        "data_packets": len(data),
        "TcpOutSegs": sender.counters["TcpOutSegs"],
        "TcpOutSegs_and_control": sender.counters["TcpOutSegs"] + OTHERS["out"],
        "elapsed": elapsed,
        "mbit": size * 8 / elapsed / 1e6,
    }


def sizes(segs: list[int]) -> str:
    """How often which size, the frequent ones first."""
    return "  ".join(f"{count}x{size}" for size, count in Counter(segs).most_common())


# half of 58,400 bytes is the first window of 29,200
@run.over_tap(sysctls={"net.ipv4.tcp_rmem": "4096 58400 6291456"})
async def over_tap(
    real: Real, size: SomeBytes = 2_000_000, sndbuf: SomeBytes = 1_000_000, rtt: SomeTime = 40 * MS, receive: Literal["super", "segments"] = "super"
) -> Figures:
    real.set_delay(rtt // 2)
    if receive == "segments":
        real.cut_segments()

    def large_buffer(socket: Socket) -> None:
        socket.setsockopt(SOL_SOCKET, SO_SNDBUF, sndbuf)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(real.kernel_receives, 5001)
        async with await real.stack.open_tcp_stream(real.testbed.peer4, 5001, prepare=large_buffer) as stream:
            await stream.send_all(bytes(size))
            await stream.send_eof()
            async for _ in stream:  # until the kernel closes, too
                pass
        seconds = trio.current_time() - began
    await real.quiet()
    real.show_counters(("IpInReceives", "IpOutRequests", "TcpInSegs", "TcpOutSegs", "TcpRetransSegs", "TcpExtTCPAutoCorking"))
    ours = real.counters
    return {"IpOutRequests": ours["IpOutRequests"], "IpInReceives": ours["IpInReceives"], "TcpOutSegs": ours["TcpOutSegs"], "elapsed": seconds}

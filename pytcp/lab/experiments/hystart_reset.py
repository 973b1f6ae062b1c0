"""HyStart and flows that do not fill their window (netdev, November 2021; 4e1fddc98d25, 5.16, and 25c1a9ca53db, 6.14).

HyStart's ACK train ends slow start when ACKs keep coming for longer than half the path's delay since the round began. Until 5.16 a
round was reset in `cong_avoid`, after the detector and only while the window was the limit. A request-response flow rests between its
messages: the first ACK of the second request was measured from the beginning of the first, looked like a train, and left the
flow with a window of which half is less than a message. The fix reset the round at the top of `update`, but behind the test for a
small window (`update_gated`): the first round of a bulk flow then began in the middle of a burst, and so did all later ones, where the
burst's own queue looks like delay. 6.14 moved the reset before that test (`update`).
"""

from __future__ import annotations

from typing import Literal

from pytcp.lab.experiment import Figure, Figures, Setting, experiment
from pytcp.lab.hosts import AF_INET6
from pytcp.lab.transactions import RequestResponse
from pytcp.lab.units import MS, SECOND, US, Bytes, Count, Mtu6, Rate, Some, SomeBytes, Time
from pytcp.lab.workloads import Bulk
from pytcp.lab.world import World
from pytcp.link.emulator import Impairment


@experiment(
    "hystart-reset",
    "HyStart's ACK train and flows that rest between their messages",
    variants={name: {"pytcp.hystart_reset": name} for name in ("cong_avoid", "update_gated", "update")},
    profile="linux-5.15",
    compare=("cong_avoid", "update_gated"),
    published={
        "cong_avoid": {
            "out_per_transaction": 3.01,
            "in_per_transaction": 2.03,
            "TCPHystartTrainDetect": 1,
            "TCPHystartTrainCwnd": 30,
            "transactions_per_second": 8605,
        },
        "update_gated": {
            "out_per_transaction": 2.01,
            "in_per_transaction": 2.02,
            "TCPHystartTrainDetect": 0,
            "transactions_per_second": 8760,
            "bulk_TCPHystartDelayCwnd": 516,
        },
    },
    source="Eric Dumazet, 23 November 2021: tcp_cubic: fix spurious Hystart ACK train detections; packets over 5 s are divided by 5 x transactions/s",
    figures=(
        Figure("out_per_transaction", "packets out per transaction", "{:.2f}"),
        Figure("in_per_transaction", "packets in per transaction", "{:.2f}", claimed=False),
        Figure("TCPHystartTrainDetect", "client's TCPHystartTrainDetect"),
        Figure("TCPHystartTrainCwnd", "client's TCPHystartTrainCwnd"),
        Figure("transactions_per_second", "transactions per second", claimed=False),
        Figure("server_TCPHystartTrainDetect", "server's TCPHystartTrainDetect"),
        Figure("server_TCPHystartTrainCwnd", "server's TCPHystartTrainCwnd"),
        Figure("bulk_TCPHystartTrainCwnd", "bulk: leaves by ACK train at cwnd"),
        Figure("bulk_TCPHystartDelayCwnd", "bulk: leaves by delay at cwnd"),
        Figure("bulk_delivered", "bulk: bytes delivered in 1.5 s"),
    ),
    differences=(
        "The thread's client left at 30, here it is 27: two ACKs of the first request's second burst, 7 and 3 segments, find the window "
        "the limit, or only the first of them does. Both leave half a window below 20 segments.",
        "Packets in are 3 here while packets out are 3, because the server acknowledges both halves of a request where the thread's "
        "server acknowledged them together.",
        "Transactions per second are printed, not claimed: one super-segment of 80 KB arrives later than the first of two, and what a host "
        "saves on fewer packets is not modelled.",
        "The server's detection at 40 is harmless: half of 40 segments hold a message.",
        "The same settings with 6.1's way of remembering that the window was the limit (--set pytcp.keep_cwnd_limited=1) make both sides "
        "leave at 20: 4 packets out before, 2 after.",
    ),
    fitted=("RTT 100 us and 100 Gbit/s are chosen for the published 8600 transactions/s; MSS 4096 because the thread says 80 KB are about 20 segments.",),
    real="Not on a TAP: no namespace's peer lets us choose among the histories of its CUBIC, and a round trip of 100 us is Python's own.",
)
def run(
    world: World,
    message: SomeBytes = 80_000,
    transactions: Some = 2000,
    rtt: Time = 100 * US,
    rate: Rate = 100_000_000_000,
    mtu: Mtu6 = 4168,
    gso_max: Bytes = 131_072,
    wakeup: Time = 2 * US,
    qdisc: Literal["none", "pfifo", "fq"] = "none",
    bulk_rtt: Time = 150 * MS,
    bulk_rate: Rate = 50_000_000,
    bulk_queue: Count = 619,
) -> Figures:
    # a window that holds two messages from the start
    buffers: dict[str, Setting] = {"net.ipv4.tcp_rmem": "4096 1048576 33554432"}
    client, server = world.host("client", buffers), world.host("server", buffers)
    world.wire(client, server, delay=rtt // 2, rate=rate, mtu=mtu, gso_max=gso_max, qdisc=None if qdisc == "none" else qdisc)
    rr = RequestResponse(client, server, message, message, transactions=transactions, wakeup=wakeup, family=AF_INET6)
    world.run(lambda: rr.done)

    sender, receiver = world.host("sender"), world.host("receiver")
    world.wire(sender, receiver, delay=bulk_rtt // 2, receive="segments", there=Impairment(rate=bulk_rate, queue_packets=bulk_queue))
    bulk = Bulk(sender, receiver, 1 << 40)
    world.run(limit=3 * SECOND // 2)
    return {
        "out_per_transaction": client.counters["Ip6OutRequests"] / transactions,
        "in_per_transaction": client.counters["Ip6InReceives"] / transactions,
        "TCPHystartTrainDetect": client.counters["TCPHystartTrainDetect"],
        "TCPHystartTrainCwnd": client.counters["TCPHystartTrainCwnd"],
        "transactions_per_second": rr.per_second,
        "server_TCPHystartTrainDetect": server.counters["TCPHystartTrainDetect"],
        "server_TCPHystartTrainCwnd": server.counters["TCPHystartTrainCwnd"],
        "bulk_TCPHystartTrainCwnd": sender.counters["TCPHystartTrainCwnd"],
        "bulk_TCPHystartDelayCwnd": sender.counters["TCPHystartDelayCwnd"],
        "bulk_delivered": bulk.received,
    }

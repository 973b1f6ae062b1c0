"""Counters and connections in Prometheus' text exposition format (version 0.0.4).

    pytcp_netstat_TcpExt_TCPTimeouts 3
    pytcp_sockets{state="timewait"} 12
    pytcp_interface_receive_bytes_total{device="tap0"} 102142
    pytcp_tcp_rtt_seconds{local="10.99.0.2:7000",remote="10.99.0.1:50000"} 0.000141

Counters keep the names of `nstat`, parted as node_exporter parts them (`node_netstat_Tcp_InSegs`), so
that queries written for a kernel need a new prefix and nothing else. Of a connection there is every field
of tcp_info that changes; units are seconds and bytes as Prometheus wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytcp.cli.inspect.nstat_order import rank

Facts = Mapping[str, Any]

GROUPS = ("TcpExt", "IpExt", "IcmpMsg", "Icmp6", "Udp6", "Ip6", "Icmp", "Tcp", "Udp", "Ip")

# fields of tcp_info -> (name, kind, unit as a divisor, meaning)
TCP_INFO: tuple[tuple[str, str, str, int, str], ...] = (
    ("ca_state", "ca_state", "gauge", 1, "Congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss"),
    ("retransmits", "retransmits", "gauge", 1, "Timeouts of the segment that waits longest"),
    ("rto", "rto_seconds", "gauge", 1_000_000, "Retransmission timeout"),
    ("rtt", "rtt_seconds", "gauge", 1_000_000, "Smoothed round-trip time"),
    ("rttvar", "rttvar_seconds", "gauge", 1_000_000, "Mean deviation of the round-trip time"),
    ("min_rtt", "min_rtt_seconds", "gauge", 1_000_000, "Smallest round-trip time lately"),
    ("rcv_rtt", "rcv_rtt_seconds", "gauge", 1_000_000, "Round-trip time as the receiver estimates it"),
    ("snd_mss", "snd_mss_bytes", "gauge", 1, "Segment size in use"),
    ("pmtu", "pmtu_bytes", "gauge", 1, "Path MTU"),
    ("snd_cwnd", "snd_cwnd_packets", "gauge", 1, "Congestion window"),
    ("snd_ssthresh", "snd_ssthresh_packets", "gauge", 1, "Slow start threshold"),
    ("unacked", "unacked_packets", "gauge", 1, "Packets in flight"),
    ("sacked", "sacked_packets", "gauge", 1, "Packets selectively acknowledged"),
    ("lost", "lost_packets", "gauge", 1, "Packets thought lost"),
    ("retrans", "retrans_packets", "gauge", 1, "Retransmitted packets in flight"),
    ("reordering", "reordering_packets", "gauge", 1, "Reordering the sender puts up with"),
    ("snd_wnd", "snd_wnd_bytes", "gauge", 1, "Window offered by the peer"),
    ("rcv_wnd", "rcv_wnd_bytes", "gauge", 1, "Window offered to the peer"),
    ("notsent_bytes", "notsent_bytes", "gauge", 1, "Written and not sent yet"),
    ("pacing_rate", "pacing_rate_bytes_per_second", "gauge", 1, "Pacing rate"),
    ("delivery_rate", "delivery_rate_bytes_per_second", "gauge", 1, "Delivery rate measured last"),
    ("total_retrans", "retransmitted_packets_total", "counter", 1, "Packets retransmitted"),
    ("bytes_sent", "sent_bytes_total", "counter", 1, "Payload sent, retransmissions too"),
    ("bytes_retrans", "retransmitted_bytes_total", "counter", 1, "Payload retransmitted"),
    ("bytes_acked", "acked_bytes_total", "counter", 1, "Payload acknowledged"),
    ("bytes_received", "received_bytes_total", "counter", 1, "Payload received"),
    ("segs_out", "out_segments_total", "counter", 1, "Segments sent"),
    ("segs_in", "in_segments_total", "counter", 1, "Segments received"),
    ("delivered", "delivered_packets_total", "counter", 1, "Packets known to have arrived"),
    ("delivered_ce", "delivered_ce_packets_total", "counter", 1, "Of these, marked by congestion"),
    ("dsack_dups", "dsack_duplicates_total", "counter", 1, "Duplicates the peer reported"),
    ("reord_seen", "reordering_events_total", "counter", 1, "Reordering events"),
    ("rcv_ooopack", "out_of_order_packets_total", "counter", 1, "Packets received out of order"),
    ("busy_time", "busy_seconds_total", "counter", 1_000_000, "Time with data to send"),
    ("rwnd_limited", "rwnd_limited_seconds_total", "counter", 1_000_000, "Time the peer's window held the sender up"),
    ("sndbuf_limited", "sndbuf_limited_seconds_total", "counter", 1_000_000, "Time the send buffer held the sender up"),
    ("total_rto", "rto_total", "counter", 1, "Retransmission timeouts"),
)
UNKNOWN = {"min_rtt": 0xFFFFFFFF, "pacing_rate": (1 << 64) - 1, "snd_ssthresh": 0x7FFFFFFF}  # values that mean there is none


def expose(totals: Mapping[str, int], sockstat: Facts, interfaces: Iterable[Facts], sockets: Iterable[Facts]) -> str:
    """The whole page."""
    return "".join(f"{line}\n" for line in _lines(totals, sockstat, list(interfaces), [facts for facts in sockets if "info" in facts]))


def _lines(totals: Mapping[str, int], sockstat: Facts, interfaces: list[Facts], sockets: list[Facts]) -> Iterator[str]:
    for name in sorted(totals, key=rank):
        group = next(group for group in GROUPS if name.startswith(group))
        kind = "gauge" if name == "TcpCurrEstab" else "counter"
        yield from _metric(f"netstat_{group}_{name.removeprefix(group)}", kind, f"{name} as nstat counts it", [({}, totals[name])])
    states = ("estab", "synrecv", "orphaned", "timewait")
    yield from _metric("sockets", "gauge", "TCP connections by state", [({"state": state}, sockstat[state]) for state in states])
    for way, word in (("rx", "receive"), ("tx", "transmit")):
        for what in ("bytes", "packets", "dropped"):
            samples = [({"device": dev["name"]}, dev[way][what]) for dev in interfaces if dev[way][what] is not None]
            yield from _metric(f"interface_{word}_{what}_total", "counter", f"{way.upper()} {what} of an interface, super-frames counting once", samples)
    if not sockets:
        return
    labels = [_labels(facts) for facts in sockets]
    for field, name, kind, unit, meaning in TCP_INFO:
        samples = [
            (who, facts["info"][field] if unit == 1 else facts["info"][field] / unit)
            for who, facts in zip(labels, sockets, strict=True)
            if facts["state"] != "LISTEN" and facts["info"][field] != UNKNOWN.get(field)
        ]
        yield from _metric(f"tcp_{name}", kind, meaning, samples)


def _labels(facts: Facts) -> dict[str, str]:
    ends = {}
    for side in ("local", "remote"):
        address = facts[side]
        ends[side] = f"[{address}]:{facts[f'{side}_port']}" if ":" in address else f"{address}:{facts[f'{side}_port']}"
    return {**ends, "state": facts["state"].lower(), "congestion": facts["congestion"]}


def _metric(name: str, kind: str, meaning: str, samples: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    if samples:
        yield f"# HELP pytcp_{name} {meaning}."
        yield f"# TYPE pytcp_{name} {kind}"
        for labels, value in samples:
            inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
            yield f"pytcp_{name}{{{inside}}} {value}" if inside else f"pytcp_{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

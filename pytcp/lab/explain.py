"""Where the time of a connection went: its gates, its losses, and what that means, in one paragraph.

A `Story` is the same whether it comes from a running stack (`of_socket`, what `pytcp ss` gets) or from a trace or record (`of_flow`).
What the paragraph says is made of its figures alone: the product window / round trip where a window was the limit, the queue on the
path where the round trip grew, the buffer, the pacing rate. Times ns unless a name says us, rates bytes/s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from pytcp.sockets.address import host_port
from pytcp.tcp import gates
from pytcp.tcp.trace import LOST

from .record import Record, Row

UNLIMITED = 0xFFFFFFFFFFFFFFFF
NO_RTT = 0xFFFFFFFF
WORTH = 0.10  # share of the time from which a second gate is spoken of
QUEUE_US = 2000  # us by which round trips may be longer than the shortest one without a queue on the path: hosts have other work
TAILS = 0.05  # share of the bytes below which partial segments are the ends of larger writes
FULL = frozenset({"cwnd", "cwnd/2", "autosize", "gso_max", "mss", "nagle-tail"})  # why an xmit of one segment has the size of a whole one
WORTH_WHEN_IDLE = 0.005  # the same where the program is the first


@dataclass
class Story:
    """One connection, in figures. 0 or None where nothing is known."""

    name: str
    ns: int = 0  # from ESTABLISHED to now, or to the end
    gates: dict[str, tuple[int, int]] = field(default_factory=dict)  # (ns, bytes)
    now: str = ""  # the gate that is shut, of a running connection
    sent: int = 0  # bytes of payload, each counted once
    received: int = 0
    congestion: str = ""
    mss: int = 0
    srtt_us: int = 0
    min_rtt_us: int = 0
    cwnd: int = 0  # packets
    snd_wnd: int = 0  # bytes the peer offers
    zero_window: bool = False
    sndbuf: int = 0
    pacing_rate: int = 0
    segs: int = 0  # data segments sent, again or not
    again: int = 0  # of these, sent again
    lost: Counter[str] = field(default_factory=Counter)  # segments by why they counted as lost; empty where only the sum is known
    probes: int = 0  # tail loss probes that repeated a segment
    timeouts: int = 0
    timeout_ms: int = 0  # spent in recoveries that a timeout began
    needless: int = 0  # reductions taken back, or segments the peer had twice
    recovery_ns: int | None = None  # spent in Recovery, CWR or Loss
    busy_us: int = 0  # with data unacknowledged

    def share(self, gate: str) -> float:
        """Part of the connection's time that a gate was shut."""
        return self.gates.get(gate, (0, 0))[0] / self.ns if self.ns else 0.0

    @property
    def order(self) -> list[str]:
        """Gates that were ever shut or passed bytes, longest first."""
        return sorted((gate for gate, figures in self.gates.items() if any(figures)), key=lambda gate: self.gates[gate], reverse=True)

    def as_json(self) -> dict[str, Any]:
        """Figures, shares and the paragraph."""
        figures = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("gates", "lost")}
        shut = {gate: {"ns": self.gates[gate][0], "bytes": self.gates[gate][1], "share": round(self.share(gate), 6)} for gate in self.order}
        return {**figures, "lost": dict(self.lost), "gates": shut, "conclusion": conclusion(self)}


# ---------------------------------------------------------------- where the figures come from


def of_socket(facts: Mapping[str, Any]) -> Story:
    """The story of a socket of a running stack, as `net.snapshot` describes it."""
    info = facts["info"]
    shut = {gate: (ns, sent) for gate, (ns, sent) in facts["gates"].items()}
    return Story(
        f"{host_port(facts['local'], facts['local_port'])}>{host_port(facts['remote'], facts['remote_port'])}",
        sum(ns for ns, _ in shut.values()),
        shut,
        now=facts["gate"],
        sent=sum(sent for _, sent in shut.values()),
        received=info["bytes_received"],
        congestion=facts["congestion"],
        mss=info["snd_mss"],
        srtt_us=info["rtt"],
        min_rtt_us=info["min_rtt"] if info["min_rtt"] < NO_RTT else 0,
        cwnd=info["snd_cwnd"],
        snd_wnd=info["snd_wnd"],
        zero_window=not info["snd_wnd"],
        sndbuf=facts["memory"]["sndbuf"],
        pacing_rate=info["pacing_rate"] if info["pacing_rate"] < UNLIMITED else 0,
        segs=info["data_segs_out"],
        again=info["total_retrans"],
        timeouts=info["total_rto"],
        timeout_ms=info["total_rto_time"],
        needless=info["dsack_dups"],
        busy_us=info["busy_time"],
    )


def flows(record: Record) -> list[str]:
    """The connections of a record, those that its first line does not name included."""
    return list(dict.fromkeys([*record.flows, *(row["flow"] for row in record.events), *(row["flow"] for row in record.series)]))


def of_flow(record: Record, flow: str) -> Story:
    """The story of a flow of a record or trace."""
    story = Story(flow)
    events = [row for row in record.events if row["flow"] == flow]
    series = [row for row in record.series if row["flow"] == flow]
    _gates_of_events(story, events)
    if not story.ns:
        _gates_of_samples(story, series)
    _figures_of_events(story, events)
    _figures_of_samples(story, series)
    return story


def _gates_of_events(story: Story, events: list[Row]) -> None:
    """Add up what the gate events say; bytes go to the gate that was shut when they left."""
    start, end = _life(events)
    times: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    gate = next((row["old"] for row in events if row["kind"] == "gate"), "app")
    since = start
    for row in events:
        if row["kind"] == "xmit" and not row["rtx"]:
            sent[gate] += row["end_seq"] - row["seq"]
        elif row["kind"] == "gate":
            times[gate] += max(row["t_ns"] - max(since, start), 0)
            since, gate = row["t_ns"], row["new"]
    times[gate] += max(end - max(since, start), 0)
    story.ns = end - start
    story.gates = {name: (times[name], sent[name]) for name in gates.NAMES if times[name] or sent[name]}
    story.sent = sum(sent.values())


def _life(events: list[Row]) -> tuple[int, int]:
    """From ESTABLISHED to CLOSE, as far as the events reach; no time where a connection was only tried."""
    if not events:
        return 0, 0
    start, end = events[0]["t_ns"], events[-1]["t_ns"]
    tried = False
    for row in events:
        if row["kind"] == "state":
            if row["new"] in ("SYN_SENT", "SYN_RECV"):
                tried = True
            elif row["new"] == "CLOSE":
                end = row["t_ns"]
            elif row["new"] == "ESTABLISHED":
                start = row["t_ns"]
                tried = False
    return start, start if tried else max(start, end)


def _gates_of_samples(story: Story, series: list[Row]) -> None:
    """Without events: each sample holds until the next."""
    times: Counter[str] = Counter()
    for row, after in pairwise(series):
        if row.get("gate"):
            times[row["gate"]] += after["t_ns"] - row["t_ns"]
    story.ns = sum(times.values())
    story.gates = {name: (times[name], 0) for name in gates.NAMES if times[name]}


def _figures_of_events(story: Story, events: list[Row]) -> None:
    rtts: list[int] = []
    windows: list[int] = []
    cwnds: list[int] = []
    state, since, recovery = "Open", 0, 0
    sent, left, busy = 0, 0, 0  # highest byte sent; when data was first on its way; for how long it was before
    for row in events:
        kind = row["kind"]
        if kind == "xmit":
            if row["end_seq"] > sent:
                sent = row["end_seq"]
                left = left or row["t_ns"]
            story.segs += row["segs"]
            if row["gso_size"] or row["why"] in FULL:
                story.mss = max(story.mss, row["gso_size"] or row["end_seq"] - row["seq"])
            cwnds.append(row["cwnd"])
            if row["rtx"]:
                story.again += row["segs"]
        elif kind == "ack":
            if left and row["una"] >= sent:
                busy += row["t_ns"] - left
                left = 0
            story.snd_wnd = row["wnd"]
            story.zero_window = story.zero_window or not row["wnd"]
            if row["rtt_us"] > 0:
                rtts.append(row["rtt_us"])
        elif kind == "recv":
            story.received = max(story.received, row["end_seq"])
        elif kind == "stop" and row["gate"] == "rwnd":
            windows.append(row["limit"])
        elif kind == "lost":
            story.lost[row["why"]] += row["segs"]
        elif kind == "retransmit":
            story.probes += row["cause"] == "tlp"
        elif kind == "rto":
            story.timeouts += 1
        elif kind == "undo":
            story.needless += 1
        elif kind == "ca_state":
            if state not in ("Open", "Disorder"):
                recovery += row["t_ns"] - since
            state, since = row["new"], row["t_ns"]
    if events and state not in ("Open", "Disorder"):
        recovery += events[-1]["t_ns"] - since
    story.recovery_ns = recovery if events else None
    story.busy_us = (busy + (events[-1]["t_ns"] - left if left else 0)) // 1000
    if rtts:
        story.srtt_us, story.min_rtt_us = int(median(rtts)), min(rtts)
    if windows:
        story.snd_wnd = int(median(windows))
    if cwnds:
        story.cwnd = int(median(cwnds))


def _figures_of_samples(story: Story, series: list[Row]) -> None:
    """What the events did not tell."""
    for name in ("srtt_us", "cwnd", "snd_wnd", "pacing_rate"):
        values = [row[name] for row in series if row.get(name)]
        if values and not getattr(story, name):
            setattr(story, name, int(median(values)))
    if series and not story.sent:
        story.sent = max((row.get("snd_nxt") or 0 for row in series), default=0)


# ---------------------------------------------------------------- what they mean


def rate(per_second: float) -> str:
    """Bytes/s as bits/s."""
    bits = per_second * 8
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.0f} bit/s"


def size(number: float) -> str:
    """Bytes, in thousands."""
    for unit, unit_size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= unit_size:
            return f"{number / unit_size:.3g} {unit}"
    return f"{number:.0f} byte" + ("" if number == 1 else "s")


def span(ns: float) -> str:
    """A time for a sentence."""
    for unit, unit_size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= unit_size:
            return f"{ns / unit_size:.3g} {unit}" if ns < 1000 * unit_size else f"{ns / unit_size:,.0f} {unit}"
    return f"{ns:.0f} ns"


def percent(share: float) -> str:
    """A share, without pretence."""
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}" if share >= 0.001 else "under 0.1%"


def _per_rtt(story: Story, bytes_: int) -> str:
    """What so many bytes per round trip allow."""
    if not story.srtt_us or not bytes_:
        return ""
    return f"{size(bytes_)} per round trip of {span(story.srtt_us * 1000)} allow {rate(bytes_ * 1e6 / story.srtt_us)}"


def _rwnd(story: Story) -> str:
    allowed = _per_rtt(story, story.snd_wnd)
    if story.zero_window and not story.snd_wnd:
        return "the peer's window was full, and it is closed: the program there does not read"
    text = "the peer's window was full" + (f": {allowed}" if allowed else "")
    if story.zero_window:
        return f"{text}; at times it was closed: the program there reads too slowly"
    if story.min_rtt_us and story.srtt_us > 2 * story.min_rtt_us:
        return f"{text}. The shortest round trip, {span(story.min_rtt_us * 1000)}, would allow more: most likely the program there reads too slowly"
    return f"{text}; raise the peer's receive buffer"


def _cwnd(story: Story) -> str:
    text = "the congestion window was full"
    allowed = _per_rtt(story, story.cwnd * story.mss)
    if allowed:
        text += f": {story.cwnd} packets, {allowed}"
    queue_us = story.srtt_us - story.min_rtt_us
    if story.min_rtt_us and queue_us > max(story.min_rtt_us // 4, QUEUE_US):
        return f"{text}. The round trip is {span(queue_us * 1000)} longer than the shortest one: the path is full, and only a faster one would help"
    if story.segs and story.again > story.segs // 1000:
        return f"{text}. Losses keep it small: find where packets are dropped, or try a congestion control that is less sensitive to loss (bbr)"
    if story.min_rtt_us and story.ns < 20 * story.srtt_us * 1000:
        trips = f"{story.ns / 1000 / story.srtt_us:.0f} round trips"
        return f"{text}. The connection lived for {trips} only, while it was still growing: use a connection for more than one transfer"
    return f"{text}. It had room to grow: nothing was queued or lost yet"


def _sndbuf(story: Story) -> str:
    text = "the send buffer was full with everything in it sent"
    if story.sndbuf:
        text += f": {size(story.sndbuf)} of memory hold the data of one round trip ({span(story.srtt_us * 1000)})"
    return text + "; raise SO_SNDBUF or net.ipv4.tcp_wmem, or leave the buffer to autotuning"


def _pacing(story: Story) -> str:
    at = f": pacing is at {rate(story.pacing_rate)}" if story.pacing_rate else ""
    return f"the departure time of the next packet had not come{at}; the rate comes from SO_MAX_PACING_RATE or the congestion control"


_NAGLE = "Nagle's algorithm held a small segment until the one before was acknowledged"
_AUTOCORK = "small writes waited for the host's queue to empty (autocork)"


def _tails(story: Story, gate: str, text: str, advice: str) -> str:
    """Gates for partial segments: where few bytes wait at them, more to write would have opened them."""
    held = story.gates.get(gate, (0, 0))[1]
    if story.sent and held < story.sent * TAILS:
        return f"{text}: {percent(held / story.sent)} of the bytes, the ends of writes, which the program's next write would have sent"
    return f"{text}; {advice}"


_MEANING: dict[str, Callable[[Story], str]] = {
    "app": lambda story: "the program had nothing to send",
    "sndbuf": _sndbuf,
    "cork": lambda story: _tails(story, "cork", "the program held back a partial segment by TCP_CORK or MSG_MORE", "take the cork out where a message ends"),
    "nagle": lambda story: _tails(story, "nagle", _NAGLE, "set TCP_NODELAY, or write each message in one call"),
    "autocork": lambda story: _tails(story, "autocork", _AUTOCORK, "write more at once, or set net.ipv4.tcp_autocorking=0"),
    "tso_defer": lambda story: "a burst waited for the next acknowledgement to become longer; net.ipv4.tcp_tso_win_divisor says for how little window",
    "tsq": lambda story: "the host's own queue held as much of this connection as it may (small queues): the device, or who shares it, is the limit",
    "cwnd": _cwnd,
    "rwnd": _rwnd,
    "pacing": _pacing,
    "host_queue": lambda story: "a retransmission waited for its original to leave the host: the device does not keep up",
    "neighbour": lambda story: "data waited in the host for the link-layer address of the next hop: look at `pytcp neigh`",
}


def meaning(story: Story, gate: str) -> str:
    """What it means that this gate was shut, with the figure that says how far to go."""
    return _MEANING[gate](story)


def conclusion(story: Story) -> str:
    """One paragraph: what limited the connection most, what else did, what was lost and why."""
    if not story.ns:
        return "The connection was tried, and never open."
    first, *others = story.order
    whole = span(story.ns)
    share = story.share(first)
    text = f"{'Throughout' if share > 0.9995 else f'For {percent(share)} of'} its {whole} {meaning(story, first)}"
    if first == "app":
        text += _silence(story)
        if others and story.share(others[0]) >= WORTH_WHEN_IDLE:
            text += f" Of the rest, most went by while {meaning(story, others[0])} ({percent(story.share(others[0]))} of the time)."
        others = others[1:]
    else:
        text += "."
    for gate in others:
        if story.share(gate) >= WORTH:
            text += f" For another {percent(story.share(gate))} {meaning(story, gate)}."
    return f"{text}{_losses(story)}"


def _silence(story: Story) -> str:
    """What a connection did while its program had nothing to send: nothing, wait for answers, or listen."""
    if story.received > 10 * story.sent:
        return f". It received {size(story.received)}: what limited that, the sender's side knows."
    busy = min(1.0, story.busy_us * 1000 / story.ns)
    if busy < WORTH:
        return "."
    trip = f" of {span(story.srtt_us * 1000)}" if story.srtt_us else ""
    if busy < 0.5:
        return f". Data was on its way for {percent(busy)} of the time."
    return f", with data on its way for {percent(busy)} of the time: it waits for round trips{trip}, not for room; send more at once."


def _losses(story: Story) -> str:
    if not story.again:
        return ""
    text = f" {story.again:,} of {story.segs:,} segments ({percent(story.again / story.segs)}) {'was' if story.again == 1 else 'were'} sent again"
    causes = [f"{number:,} because {LOST[why]}" for why, number in story.lost.most_common()]
    if story.probes:
        causes.append(f"{story.probes:,} as probes of the end of a flight")
    if causes:
        text += f" (marked lost: {', '.join(causes)})" if story.lost else f" ({', '.join(causes)})"
    if story.timeouts:
        text += f"; {story.timeouts:,} timeout{'s'[: story.timeouts > 1]}"
        if story.timeout_ms:
            text += f" cost {span(story.timeout_ms * 1_000_000)}"
    if story.recovery_ns:
        text += f"; the window was reduced or repairing for {percent(story.recovery_ns / story.ns)} of the time"
    if story.needless:
        text += f"; {story.needless:,} of that proved needless, so the path reorders or delays packets rather than losing them"
    return text + "."

"""iperf3's output: lines of text as it prints them, and the tree of `-J`."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytcp
from pytcp.sockets.streams import TcpStream

from .protocol import Result, Results
from .session import Flow, Sample, Session

Role = Literal["client", "server"]

DIVIDER = "- - - - - - - - - - - - - - - - - - - - - - - - -"
BAR = "-" * 59
_PREFIXES = ("", "K", "M", "G", "T")
_FIXED = {letter: power for power, letter in enumerate("kmgt", 1)}


def amount(value: float, *, bits: bool, form: str = "") -> str:
    """A figure with its unit, three digits of it: bytes by 1024, bits by 1000.

    form: k m g t for bits and K M G T for bytes of a fixed size; empty chooses one that fits."""
    base = 1000 if bits else 1024
    power = _FIXED.get(form.lower(), 0)
    if not power:
        while power < 4 and value / base**power >= base - 0.5:
            power += 1
    value /= base**power
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:4.{digits}f} {_PREFIXES[power]}{'bits' if bits else 'Bytes'}"


def rate(bits_per_second: float, form: str) -> str:
    """A bitrate. A capital letter means bytes."""
    if form.isupper():
        return amount(bits_per_second / 8, bits=False, form=form) + "/sec"
    return amount(bits_per_second, bits=True, form=form) + "/sec"


class Report:
    """What one side prints about one test.

    say: takes a line of text; None for silence (`-J`). title: before each line."""

    def __init__(self, role: Role, session: Session, say: Callable[[str], object] | None, form: str = "") -> None:
        self.role = role
        self.session = session
        self.settings = session.settings
        self.form = form
        self.lines: list[str] = []
        self.start: dict[str, Any] = {}
        self._say = say
        session.on_interval = self.interval

    def line(self, text: str = "") -> None:
        """Print a line."""
        self.lines.append(text)
        if self._say is not None:
            title = self.settings.title if self.role == "client" else ""
            self._say(f"{title}:  {text}" if title else text)

    # --- text ---

    def _role(self, sender: bool) -> str:
        return f"[{'TX' if sender else 'RX'}-{self.role[0].upper()}]" if self.settings.bidirectional else ""

    def _head(self, *, cwnd: bool) -> str:
        sends = any(flow.sender for flow in self.session.flows)
        if self.settings.udp:
            last = "         Total Datagrams" if cwnd and sends and len(self._directions()) == 1 else "         Jitter    Lost/Total Datagrams"
            return f"[ ID]{'[Role]' if self.settings.bidirectional else ''} Interval           Transfer     Bitrate{last}"
        last = "         Retr  Cwnd" if cwnd and sends else "         Retr" if sends or (not cwnd and self.role == "client") else ""
        return f"[ ID]{'[Role]' if self.settings.bidirectional else ''} Interval           Transfer     Bitrate{last}"

    def connected(self) -> None:
        """The data connections, and the heading of the intervals."""
        for flow in self.session.flows:
            local, remote = flow.stream.socket.getsockname(), flow.stream.socket.getpeername()
            self.line(f"[{flow.socket:3d}] local {_plain(local[0])} port {local[1]} connected to {_plain(remote[0])} port {remote[1]}")
        self.line(self._head(cwnd=True))

    def _row(self, ident: str, role: str, start: float, end: float, size: int, bitrate: float) -> str:
        return f"[{ident}]{role} {start:6.2f}-{end:<6.2f} sec  {amount(size, bits=False)}  {rate(bitrate, self.form)}"

    def interval(self, omitted: bool) -> None:
        """The interval that just ended."""
        samples = self.session.intervals[-1]
        if self.settings.parallel > 1 and len(self.session.intervals) > 1:
            self.line(DIVIDER)
        note = "(omitted)" if omitted else ""
        for flow, sample in zip(self.session.flows, samples, strict=True):
            row = self._row(f"{flow.socket:3d}", self._role(flow.sender), sample.start, sample.end, sample.bytes, _bps(sample.bytes, sample.seconds))
            if self.settings.udp:
                self.line(f"{row}  {_datagrams(flow.sender, sample.jitter, sample.lost, sample.packets)}  {note}")
            elif sample.retransmits is None:
                self.line(f"{row}{note:>{18 + len(note)}}")
            else:
                self.line(f"{row}  {sample.retransmits:3d}   {amount(sample.cwnd, bits=False)}       {note}")
        for sender in self._directions():
            group = [sample for flow, sample in zip(self.session.flows, samples, strict=True) if flow.sender is sender]
            if len(group) > 1:
                size = sum(sample.bytes for sample in group)
                row = self._row("SUM", self._role(sender), group[0].start, group[0].end, size, _bps(size, group[0].seconds))
                if self.settings.udp:
                    self.line(f"{row}  {_datagrams(sender, *_totals(group))}  {note}")
                    continue
                retransmits = f"  {sum(sample.retransmits or 0 for sample in group):3d}{'':13}" if sender else f"{'':18}"
                self.line(f"{row}{retransmits}{note}")

    def _directions(self) -> Sequence[bool]:
        return sorted({flow.sender for flow in self.session.flows}, reverse=True)

    def summary(self, theirs: Results | None) -> None:
        """The last lines. theirs: what the other side found; without it only our half is told."""
        self.line(DIVIDER)
        self.line(self._head(cwnd=False))
        for sender in self._directions():
            flows = [flow for flow in self.session.flows if flow.sender is sender]
            for flow in flows:
                self._last(f"{flow.socket:3d}", sender, *self._both(flow, theirs))
            if len(flows) > 1:
                pairs = [self._both(flow, theirs) for flow in flows]
                self._last("SUM", sender, _sum([pair[0] for pair in pairs]), _sum([pair[1] for pair in pairs]))

    def _both(self, flow: Flow, theirs: Results | None) -> tuple[Result | None, Result | None]:
        """(sender's, receiver's) result of a stream."""
        ours = self.session.result(flow)
        other = None if theirs is None else theirs.streams.get(flow.ident, Result(0, None, self.session.elapsed))
        return (ours, other) if flow.sender else (other, ours)

    def _last(self, ident: str, sender: bool, sent: Result | None, received: Result | None) -> None:
        for result, name in ((sent, "sender"), (received, "receiver")):
            if result is not None and self.settings.udp:
                row = self._row(ident, self._role(sender), 0, result.end, result.bytes, _bps(result.bytes, result.end))
                found = (0.0, 0, result.packets) if name == "sender" else (result.jitter, result.lost, result.packets)
                self.line(f"{row}  {_datagrams(False, *found)}  {name}")
            elif result is not None:
                row = self._row(ident, self._role(sender), 0, result.end, result.bytes, _bps(result.bytes, result.end))
                self.line(f"{row}{'':18}{name}" if name == "receiver" or result.retransmits is None else f"{row}  {result.retransmits:3d}{'':13}{name}")

    # --- JSON ---

    def began(self, **more: Any) -> None:
        """The `start` part. more: who connected to whom, and the cookie."""
        settings = self.settings
        now = time.time()
        connected = []
        for flow in self.session.flows:
            local, remote = flow.stream.socket.getsockname(), flow.stream.socket.getpeername()
            ends = {"local_host": _plain(local[0]), "local_port": local[1], "remote_host": _plain(remote[0]), "remote_port": remote[1]}
            connected.append({"socket": flow.socket} | ends)
        first = self.session.flows[0].stream
        mss = {"tcp_mss_default": first.info().snd_mss} if isinstance(first, TcpStream) else {}
        self.start = {
            "connected": connected,
            "version": f"pytcp {pytcp.__version__}",
            "system_info": " ".join(platform.uname()[:5]).rstrip(),
            "timestamp": {"time": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now)), "timesecs": int(now)},
            **more,
            **mss,
            "target_bitrate": settings.bitrate,
            "sock_bufsize": settings.window,
            "sndbuf_actual": first.socket.getsockopt(1, 7),
            "rcvbuf_actual": first.socket.getsockopt(1, 8),
            "test_start": {
                "protocol": "UDP" if settings.udp else "TCP",
                "num_streams": settings.parallel,
                "blksize": settings.length,
                "omit": settings.omit,
                "duration": 0 if settings.limit else settings.duration,
                "bytes": settings.amount,
                "blocks": settings.blocks,
                "reverse": int(settings.reverse),
                "tos": settings.tos,
                "target_bitrate": settings.bitrate,
            },
        }

    def tree(self, theirs: Results | None, congestion: str, error: str = "") -> dict[str, Any]:
        """The whole document. congestion: ours."""
        settings = self.settings
        found: dict[str, Any] = {"title": settings.title} if settings.title else {}
        found["start"] = self.start or {"connected": [], "version": f"pytcp {pytcp.__version__}", "system_info": " ".join(platform.uname()[:5]).rstrip()}
        found["intervals"] = [self._interval_tree(samples) for samples in self.session.intervals]
        found["end"] = {} if error else self._end_tree(theirs, congestion)
        if error:
            found["error"] = error
        if settings.extra_data:
            found["extra_data"] = settings.extra_data
        if theirs is not None and theirs.output:
            found["server_output_text"] = theirs.output
        if theirs is not None and theirs.output_tree:
            found["server_output_json"] = theirs.output_tree
        return found

    def _interval_tree(self, samples: list[Sample]) -> dict[str, Any]:
        flows = self.session.flows
        found: dict[str, Any] = {"streams": [_sample_tree(flow, sample) for flow, sample in zip(flows, samples, strict=True)]}
        for sender in self._directions():
            group = [sample for flow, sample in zip(flows, samples, strict=True) if flow.sender is sender]
            size = sum(sample.bytes for sample in group)
            total = _span(group[0].start, group[0].end, size)
            if self.settings.udp:
                total |= _loss(sender, *_totals(group))
            elif sender:
                total["retransmits"] = sum(sample.retransmits or 0 for sample in group)
            total |= {"omitted": group[0].omitted, "sender": sender}
            found["sum_bidir_reverse" if self._second(sender) else "sum"] = total
        return found

    def _second(self, sender: bool) -> bool:
        """Of the two directions of --bidir, the one from the server to the client."""
        return self.settings.bidirectional and sender is (self.role == "server")

    def _end_tree(self, theirs: Results | None, congestion: str) -> dict[str, Any]:
        if self.settings.udp:
            return self._end_datagrams(theirs)
        found: dict[str, Any] = {"streams": [self._stream_tree(flow, theirs) for flow in self.session.flows]}
        for sender in sorted(self._directions(), key=self._second):
            pairs = [self._both(flow, theirs) for flow in self.session.flows if flow.sender is sender]
            suffix = "_bidir_reverse" if self._second(sender) else ""
            for which, name in ((0, "sent"), (1, "received")):
                total = _sum([pair[which] for pair in pairs]) or Result(0, None, self.session.elapsed)
                tree = _span(0, total.end, total.bytes)
                if which == 0 and total.retransmits is not None:
                    tree["retransmits"] = total.retransmits
                found[f"sum_{name}{suffix}"] = tree | {"sender": sender}
        found["cpu_utilization_percent"] = self._shares(theirs)
        other = theirs.congestion if theirs is not None else ""
        sends = any(flow.sender for flow in self.session.flows)
        for name, value in zip(("sender", "receiver"), (congestion, other) if sends else (other, congestion), strict=True):
            if value:
                found[f"{name}_tcp_congestion"] = value
        return found

    def _shares(self, theirs: Results | None) -> dict[str, float]:
        """Of a processor: ours, and the other side's."""
        remote = theirs.cpu if theirs is not None else (0.0, 0.0, 0.0)
        names = [f"{side}_{name}" for side in ("host", "remote") for name in ("total", "user", "system")]
        return dict(zip(names, (*self.session.cpu, *remote), strict=True))

    def _end_datagrams(self, theirs: Results | None) -> dict[str, Any]:
        """The `end` of a test of UDP: what was sent as the sender counted it, with the losses that the receiver found."""
        found: dict[str, Any] = {"streams": []}
        nothing = Result(0, None, self.session.elapsed)
        for flow in self.session.flows:
            sent, received = (result or nothing for result in self._both(flow, theirs))
            size, end = (sent.bytes, sent.end) if sent.bytes else (received.bytes, received.end)
            tree = {"socket": flow.socket} | _span(0, end, size) | _loss(False, received.jitter, received.lost, sent.packets or received.packets)
            found["streams"].append({"udp": tree | {"out_of_order": flow.udp.late if flow.udp is not None else 0, "sender": flow.sender}})
        for sender in sorted(self._directions(), key=self._second):
            pairs = [self._both(flow, theirs) for flow in self.session.flows if flow.sender is sender]
            suffix = "_bidir_reverse" if self._second(sender) else ""
            sent, received = (_sum([pair[which] for pair in pairs]) or nothing for which in (0, 1))
            loss = (received.jitter, received.lost, sent.packets or received.packets)
            found[f"sum{suffix}"] = _span(0, received.end, sent.bytes or received.bytes) | _loss(False, *loss) | {"sender": sender}
            found[f"sum_sent{suffix}"] = _span(0, sent.end, sent.bytes) | _loss(False, 0.0, 0, sent.packets) | {"sender": True}
            heard = _loss(False, received.jitter, received.lost, received.packets)
            found[f"sum_received{suffix}"] = _span(0, received.end, received.bytes) | heard | {"sender": False}
        return found | {"cpu_utilization_percent": self._shares(theirs)}

    def _stream_tree(self, flow: Flow, theirs: Results | None) -> dict[str, Any]:
        sent, received = (result or Result(0, None, self.session.elapsed) for result in self._both(flow, theirs))
        sender = {"socket": flow.socket} | _span(0, sent.end, sent.bytes)
        if sent.retransmits is not None:
            sender["retransmits"] = sent.retransmits
        counted = flow.counted()
        if flow.sender and counted:
            rtts = [sample.rtt for sample in counted]
            sender |= {
                "max_snd_cwnd": max(sample.cwnd for sample in counted),
                "max_snd_wnd": max(sample.snd_wnd for sample in counted),
                "max_rtt": max(rtts),
                "min_rtt": min(rtts),
                "mean_rtt": sum(rtts) // len(rtts),
            }
        sender["sender"] = flow.sender
        return {"sender": sender, "receiver": {"socket": flow.socket} | _span(0, received.end, received.bytes) | {"sender": flow.sender}}


def _plain(host: str) -> str:
    """An address without what says that an IPv6 socket speaks IPv4."""
    return host.removeprefix("::ffff:") if "." in host else host


def _bps(size: int, seconds: float) -> float:
    return 8 * size / seconds if seconds > 0 else 0.0


def _span(start: float, end: float, size: int) -> dict[str, Any]:
    return {"start": start, "end": end, "seconds": end - start, "bytes": size, "bits_per_second": _bps(size, end - start)}


def _sum(results: Sequence[Result | None]) -> Result | None:
    known = [result for result in results if result is not None]
    if not known:
        return None
    retransmits = [result.retransmits for result in known if result.retransmits is not None]
    jitter = sum(result.jitter for result in known) / len(known)
    lost, packets = sum(result.lost for result in known), sum(result.packets for result in known)
    return Result(sum(result.bytes for result in known), sum(retransmits) if retransmits else None, known[0].end, jitter, lost, packets)


def _totals(samples: Sequence[Sample]) -> tuple[float, int, int]:
    """(mean jitter, lost, datagrams) of several streams."""
    return sum(sample.jitter for sample in samples) / len(samples), sum(sample.lost for sample in samples), sum(sample.packets for sample in samples)


def _share(lost: int, packets: int) -> float:
    return 100 * lost / packets if packets else 0.0


def _datagrams(sender: bool, jitter: float, lost: int, packets: int) -> str:
    """What stands behind the bitrate of a UDP stream: of a sender how many datagrams, of a receiver what became of them."""
    return f"{packets}" if sender else f"{1000 * jitter:5.3f} ms  {lost}/{packets} ({_share(lost, packets):.2g}%)"


def _loss(sender: bool, jitter: float, lost: int, packets: int) -> dict[str, Any]:
    """The same in JSON."""
    if sender:
        return {"packets": packets}
    return {"jitter_ms": 1000 * jitter, "lost_packets": lost, "packets": packets, "lost_percent": _share(lost, packets)}


def _sample_tree(flow: Flow, sample: Sample) -> dict[str, Any]:
    found = {"socket": flow.socket} | _span(sample.start, sample.end, sample.bytes)
    if flow.udp is not None:
        found |= _loss(flow.sender, sample.jitter, sample.lost, sample.packets)
    elif sample.retransmits is not None:
        found |= {
            "retransmits": sample.retransmits,
            "snd_cwnd": sample.cwnd,
            "snd_wnd": sample.snd_wnd,
            "rtt": sample.rtt,
            "rttvar": sample.rttvar,
            "pmtu": sample.pmtu,
        }
    return found | {"omitted": sample.omitted, "sender": flow.sender}

"""pytcp in virtual time is given what a run on the kernel was given, at the same instants.

Whatever the recorded run's peer and program did happens again when it happened; the host's frames,
results and states are collected as a run of the same form, so that both can be compared event by event.
Ticks and the timer wheel stand as the kernel's stood (`clock_us`, `jiffies` of the recording), so times
can be compared, too. Where a class held frames back, a frame of ours leaves when one of the kernel's left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from pytcp.clock.heap import NEVER

from . import frames
from .compare import Difference
from .frames import M32, PEER_ISN, HostFrame
from .script import moved, words
from .stack_side import VirtualSide

TICK_NS = 4_000_000
# from the stamp of an event to the moment the kernel acted on it, us
LATENCY_US = {"ack": 9, "data": 9, "too_big": 9, "write": 4, "read": 3, "sockopt": 2, "shutdown": 3, "close": 3}
SOON_US = 80  # a frame this soon after an event was caused by it, and shows when the kernel acted
LATE_NS = 150_000  # a timer of the kernel's that made a frame was at most so late
NEAR_US = 60  # a read takes that long, and so does the handshake or read whose time it is compared with
STAMP_US = 3  # from then to the frame's time stamp
HOST_EVENTS = ("frame", "reply")
CAUSES = ("ack", "data", "too_big", "write", "read", "sockopt", "shutdown", "close")
TAIL_US = 2000  # frames may come so much later than the recording's last event


class Replay:
    """One run, again."""

    def __init__(self, workload: dict[str, Any], run: dict[str, Any], shift_us: int = 0, align: bool = True, late: bool = False, phase: int = 0) -> None:
        self.late = late
        self.order: dict[int, str] = {}  # events that are put on the other side of a timer
        self.doubtful: list[tuple[int, str]] = []  # events, and on which side of a timer they may have been as well
        self.shift_us = shift_us
        self.align = align
        self.config: dict[str, Any] = workload["config"]
        self.run_data = run
        handshake = run["handshake"]
        clock_ns = handshake.get("clock_us", 0) * 1000
        jiffies = handshake.get("jiffies", 1 << 16) & 0xFFFFF
        # the same place in a tick, and the same place of the tick in the wheel
        self.zero_ns: int = (1 << 20 | jiffies) * TICK_NS + clock_ns % TICK_NS
        self.rtt_ns = handshake["rtt"] * 1000
        self.side = VirtualSide(self.config, self.zero_ns + LATENCY_US["ack"] * 1000 - self.rtt_ns)
        # BBR begins PROBE_BW at random; what else is drawn does not show
        self.side.stack.random32 = lambda: (phase << 32) // 7 + 1  # type: ignore[method-assign]
        self.events: list[dict[str, Any]] = []
        self.shift = self.config.get("wscale") or 0
        self.ts_on = False
        self.scale = 0
        self.highest = 0
        self.released = 0
        self.sent_ns = [] if self.config.get("htb") else [self.zero_ns + e["t"] * 1000 for e in run["events"] if e["ev"] in HOST_EVENTS]

    def run(self) -> dict[str, Any]:
        """The same run on pytcp."""
        side = self.side
        with side:
            self._open()
            before = side.counters()
            after: dict[str, int] | None = None
            counted = self.run_data.get("counted_us", 1 << 60)
            for i, event in enumerate(self.run_data["events"]):
                kind = event["ev"]
                if after is None and event["t"] > counted:
                    after = self._count(counted)
                when_ns = self._when_ns(i, event)
                if side.held is not None and kind in CAUSES:
                    side.held.free = self._at_once(i, event)
                if side.held is None:
                    side.spaced.times = self._spacing(i, kind)
                if self.late:
                    self._postpone(i, when_ns)
                self._late_timers()
                if kind in HOST_EVENTS:
                    side.fire_late(when_ns - LATE_NS, when_ns - STAMP_US * 1000)
                side.run_until(when_ns)
                self._take()
                if kind in HOST_EVENTS:
                    # those that left at once have gone already
                    self.released += 1
                    if side.held is not None:
                        side.held.free = 0
                    if self.released > len([e for e in self.events if e["ev"] in HOST_EVENTS]):
                        side.release()
                else:
                    getattr(self, "_" + kind)(event)
                self._take()
            last = self.run_data["events"][-1]["t"] if self.run_data["events"] else 0
            if after is None:
                after = self._count(min(counted, last + TAIL_US) if "counted_us" in self.run_data else last)
            missing = sum(event["ev"] in HOST_EVENTS for event in self.run_data["events"]) - sum(event["ev"] in HOST_EVENTS for event in self.events)
            if missing > 0 and side.held is None:
                side.run_until(self.zero_ns + (last + TAIL_US) * 1000)
                self._take()
        return {"handshake": self.handshake, "counters": moved(before, after), "events": self.events}

    def _count(self, counted_us: int) -> dict[str, int]:
        """The counters as the program saw them at that time."""
        if self.side.held is None:
            self.side.run_until(self.zero_ns + counted_us * 1000)
            self._take()
        return self.side.counters()

    def _late_timers(self) -> None:
        """High-resolution timers fire as late as the kernel's did: it takes a while to wake a processor."""
        sk = self.side.sk
        for name in ("pacing_deadline", "compressed_ack_deadline"):
            due = getattr(sk, name)
            if due == NEVER:
                continue
            at = bisect_right(self.sent_ns, due)
            if at < len(self.sent_ns) and self.sent_ns[at] <= due + LATE_NS:
                setattr(sk, name, max(due, self.sent_ns[at] - STAMP_US * 1000))

    def _postpone(self, i: int, when_ns: int) -> None:
        """Timers of ticks at which the kernel sent nothing, up to the next event, come a tick later: the machine kept time on another processor."""
        heap = self.side.heap
        event = self.run_data["events"][i]
        # a frame that leaves a class says nothing of when it was sent
        caused = event["ev"] in HOST_EVENTS and not self.config.get("htb")
        sent_ns = self.zero_ns + event["t"] * 1000 if caused else NEVER
        while (due := heap.next_deadline()) is not None and due <= when_ns:
            if due % TICK_NS or -20_000 <= sent_ns - due <= 1_000_000 or not heap.postpone(TICK_NS):
                # (a frame of a call may have been made behind the time it was due)
                self.side.run_until(max(due, heap.now_ns + 1))
                self._take()
            else:
                # what is due before is armed anew
                self.side.sk.heap_when = NEVER

    def _when_ns(self, i: int, event: dict[str, Any]) -> int:
        """When the kernel acted on an event: as its time and what follows tell, or on the other side of a timer near it."""
        when_ns = self.zero_ns + self._when_us(i, event) * 1000
        if event["ev"] not in CAUSES:
            return when_ns
        if event["ev"] == "read":
            when_ns += self._other_round(i, when_ns)
        due = self.side.heap.next_deadline()
        if due is None:
            return when_ns
        if when_ns - LATE_NS <= due <= when_ns:
            self.doubtful.append((i, "before"))
            if self.order.get(i) == "before":
                return due - 1
        effect = self._effect(i)
        if effect is None:
            return when_ns
        seen_ns: int = self.zero_ns + effect["t"] * 1000
        if effect["t"] - event["t"] <= LATE_NS // 1000 and due <= seen_ns:
            self.doubtful.append((i, "behind"))
            if self.order.get(i) == "behind":
                return seen_ns + 1
        return when_ns

    def _other_round(self, i: int, when_ns: int) -> int:
        """Right-sizing asks at a read whether an RTT has passed: what is to be added for the other answer, where it was a matter of `NEAR_US`."""
        sk = self.side.sk
        beyond_us = when_ns // 1000 - sk.rcvq_time_us - (sk.rcv_rtt_us >> 3)
        if not sk.rcv_rtt_us or abs(beyond_us) > NEAR_US:
            return 0
        self.doubtful.append((i, "other round"))
        return (-beyond_us - (beyond_us >= 0)) * 1000 if self.order.get(i) == "other round" else 0

    def _when_us(self, i: int, event: dict[str, Any]) -> int:
        """When the kernel acted on an event."""
        t: int = event["t"]
        kind = event["ev"]
        latency = LATENCY_US.get(kind)
        if latency is None:
            return t
        if self.align and not self.config.get("htb") and (effect := self._effect(i)) is not None:
            until = event.get("t_end", t + SOON_US)
            caused: int = effect["t"]
            # unless a high-resolution timer sent it
            sk = self.side.sk
            due = min(sk.pacing_deadline, sk.compressed_ack_deadline)
            if t < caused <= until and not self.zero_ns + t * 1000 <= due < self.zero_ns + caused * 1000:
                return max(t + 1, caused - STAMP_US - self.shift_us)
        if kind == "read" and "t_end" in event:
            # right-sizing looks at the clock when the bytes have been copied
            latency = max(latency, event["t_end"] - t - STAMP_US)
        return t + max(latency - self.shift_us, 1)

    def _spacing(self, i: int, kind: str) -> list[int]:
        """When the kernel made the frames behind the first one of those it sent together, ns."""
        if not self.align:
            return []
        events = self.run_data["events"]
        at = [i] if kind in HOST_EVENTS else []
        for j in range(i + 1, len(events)):
            if events[j]["ev"] not in HOST_EVENTS or (at and events[j]["t"] - events[at[-1]]["t"] > SOON_US):
                break
            at.append(j)
        return [self.zero_ns + (events[j]["t"] - STAMP_US) * 1000 for j in at[1:]]

    def _effect(self, i: int) -> dict[str, Any] | None:
        """The host's next frame, if nothing else could have caused it."""
        for later in self.run_data["events"][i + 1 :]:
            if later["ev"] in HOST_EVENTS:
                return dict(later)
            if later["ev"] in CAUSES:
                return None
        return None

    def _at_once(self, i: int, event: dict[str, Any]) -> int:
        """How many frames the class let pass while the kernel was still busy with this event."""
        until = event.get("t_end", event["t"] + 25)
        count = 0
        for later in self.run_data["events"][i + 1 :]:
            if later["ev"] not in HOST_EVENTS or later["t"] > until:
                break
            count += 1
        return count

    def _open(self) -> None:
        side = self.side
        config = self.config
        handshake = self.run_data["handshake"]
        if config.get("passive"):
            side.listen()
            ts = (handshake.get("syn_tsval", 1), 0) if config.get("ts") else None
            options = frames.syn_options(config, ts)
            side.inject(*frames.build(frames.LISTEN_PORT, PEER_ISN, 0, "SEW" if config.get("ecn") else "S", min(config["win"], 65535), options))
        else:
            side.connect()
        syn = next(frame for frame in side.frames() if "S" in frame.flags)
        self.iss, self.port = syn.seq, syn.port
        self.first_ts = syn.ts[0] if syn.ts else 0
        self.ts_on = bool(config.get("ts")) and syn.ts is not None
        if config.get("wscale") is not None:
            self.scale = syn.wscale or 0
        side.run_until(self.zero_ns + LATENCY_US["ack"] * 1000)
        ts = (handshake.get("tsval", 1), self.first_ts) if self.ts_on else None
        if config.get("passive"):
            window = min(config["win"] >> self.shift, 65535)
            side.inject(*frames.build(self.port, PEER_ISN + 1, self.iss + 1, ".", window, frames.options(ts, [])))
            side.accept()
        else:
            flags = "SE." if config.get("ecn") and "E" in syn.flags else "S."
            side.inject(*frames.build(self.port, PEER_ISN, self.iss + 1, flags, min(config["win"], 65535), frames.syn_options(config, ts)))
            if handshake.get("acked_us"):
                side.run_until(self.zero_ns + handshake["acked_us"] * 1000)
        side.frames()
        info = side.info()
        self.mss = info["snd_mss"]
        self.handshake = {name: info[name] for name in ("rtt", "min_rtt", "rto", "pacing_rate", "snd_mss", "snd_cwnd", "sndbuf")}
        if config.get("htb"):
            side.hold()

    def _take(self) -> None:
        for frame in self.side.frames():
            self._arrived(frame)

    def _arrived(self, frame: HostFrame) -> None:
        frame = frame._replace(t_us=frame.t_us - self.zero_ns // 1000)
        event = frames.describe(frame, self.iss, self.scale)
        if "ts" in event:
            event["ts"][0] = event["ts"][0] - self.first_ts & M32
        if event["ev"] == "frame":
            if event["seq"][0] < self.highest:
                event["rtx"] = True
            self.highest = max(self.highest, event["seq"][1] + ("F" in frame.flags))
        self.events.append(event)

    def _segment(self, event: dict[str, Any], seq: int, ack: int, flags: str, payload: bytes, gso: int) -> None:
        ts = None
        if self.ts_on:
            val, age = event["ts"]
            ts = (val, self.first_ts + age)
        blocks = [(self.iss + 1 + a, self.iss + 1 + b) for a, b in event.get("sack", [])]
        window = min(event["win"] >> self.shift, 65535)
        options = frames.options(ts, blocks)
        marks = event.get("ecn", 0), event.get("urg", 0)
        self.side.inject(*frames.build(self.port, PEER_ISN + 1 + seq, self.iss + 1 + ack, flags, window, options, payload, gso, *marks))

    def _ack(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._segment(event, event.get("seq", 0), event["ack"], event.get("flags", "."), b"", 0)

    def _data(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        start, end = event["seq"]
        self._segment(event, start, event["ack"], event["flags"], bytes(end - start), event.get("gso_size", 0))

    def _write(self, event: dict[str, Any]) -> None:
        ours = dict(event)
        self.events.append(ours)
        ours["ret"] = self.side.write(event["n"], words(event.get("flags", "")))

    def _read(self, event: dict[str, Any]) -> None:
        ours = dict(event)
        self.events.append(ours)
        ours["ret"] = self.side.read(event["n"], words(event.get("flags", "")))

    def _sockopt(self, event: dict[str, Any]) -> None:
        ours = dict(event)
        ours.pop("ret", None)
        self.events.append(ours)
        result = self.side.setsockopt(event["name"], event["val"])
        if result != 0:
            ours["ret"] = result

    def _shutdown(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.side.shutdown()

    def _close(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.side.close()

    def _sysctl(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.side.sysctl(event["name"], event["val"])

    def _mtu(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.side.mtu(event["val"])

    def _too_big(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.side.inject(*frames.too_big(self.port, self.iss + 1 + event["seq"], event["mtu"]))

    def _writable(self, event: dict[str, Any]) -> None:
        self.events.append(event | {"val": int(self.side.writable())})

    def _readable(self, event: dict[str, Any]) -> None:
        self.events.append(event | {"val": int(self.side.readable())})

    def _info(self, event: dict[str, Any]) -> None:
        info = self.side.info()
        self.events.append({name: info.get(name, value) for name, value in event.items()})

    _hostmem = _info

    def _released(self, event: dict[str, Any]) -> None:
        self._info(event)


# shift_us, align, late
VARIANTS = (
    (0, True, False), (0, False, False), (3, True, False), (-4, True, False), (6, False, False), (-10, True, False), (-20, True, False), (-12, False, False),
    (0, True, True), (0, False, True),
)  # fmt: skip


def replay(workload: dict[str, Any], run: dict[str, Any], shift_us: int = 0, align: bool = True, late: bool = False, phase: int = 0) -> dict[str, Any]:
    """A recorded run's twin on pytcp, in virtual time.

    shift_us: act so much earlier than the kernel seems to have. align: a frame right behind an event says when that was.
    late: timers come a tick later where the kernel sent nothing. phase: of BBR's gain cycle, 0 to 6."""
    return Replay(workload, run, shift_us, align, late, phase).run()


Judge = Callable[[dict[str, Any]], list[Difference]]
TURNED = 12  # events at most that are put on the other side of a timer
NEAREST, FARTHEST = 3, 40  # so many of those before a difference are tried, before a counter's


def best(workload: dict[str, Any], run: dict[str, Any], judge: Judge) -> tuple[dict[str, Any], list[Difference]]:
    """The twin that agrees longest of a few that differ by microseconds, and its differences.

    A recording does not say to the microsecond when the kernel acted, and sizes follow round-trip times of microseconds; where a timer was
    due within `LATE_NS` of an event, it does not say which came first."""
    bbr = workload["config"].get("cc") == "bbr"
    found: list[tuple[dict[str, Any], list[Difference]]] = []  # ever longer

    def agrees(twin: dict[str, Any], differences: list[Difference]) -> bool:
        if not found or not differences or differences[0].at_us > found[-1][1][0].at_us:
            found.append((twin, differences))
        return not differences

    phase = 0
    for phases, late in ((range(7), False), (range(7), True)) if bbr else ():
        for number in phases:
            so_far = len(found)
            twin = replay(workload, run, late=late, phase=number)
            if agrees(twin, judge(twin)):
                return found[-1]
            if len(found) > so_far:
                phase = number
    for variant in VARIANTS:
        twin = replay(workload, run, *variant, phase)
        if agrees(twin, judge(twin)):
            return found[-1]
    for variant in VARIANTS[:2]:
        if agrees(*_turned(workload, run, judge, (*variant, phase))):
            return found[-1]
    return found[-1]


def _turned(workload: dict[str, Any], run: dict[str, Any], judge: Judge, variant: tuple[int, bool, bool, int]) -> tuple[dict[str, Any], list[Difference]]:
    """Events before a difference change sides with the timer near them, one at a time, for as long as that makes the twin agree longer."""

    def attempt(order: dict[int, str]) -> tuple[Replay, dict[str, Any], list[Difference]]:
        one = Replay(workload, run, *variant)
        one.order = order
        twin = one.run()
        return one, twin, judge(twin)

    order: dict[int, str] = {}
    one, twin, differences = attempt(order)
    while differences and len(order) < TURNED:
        at_us = differences[0].at_us
        near = [(i, side) for i, side in one.doubtful if i not in order and run["events"][i]["t"] <= at_us + SOON_US]
        # a counter does not say where it was, and tcp_info only that it was before
        near = near[-(FARTHEST if differences[0].kind in ("counter", "info") else NEAREST) :]
        for i, side in reversed(near):
            other = attempt(order | {i: side})
            if not other[2] or other[2][0].at_us > at_us:
                order[i] = side
                one, twin, differences = other
                break
        else:
            break
    return twin, differences

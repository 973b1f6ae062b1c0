"""A workload run against a side: what the program calls, what the scripted peer answers, what the host sends.

A workload is a dict as in the recordings (tests/data/send, docs/compare-kernel.md): `config` and `script`.
`Runner` goes through the script on one `Side`, the kernel or pytcp, and returns a run: handshake values,
events with times in us since the connection stood, and how counters moved. Whatever depends on what the
host sent (ACK `all`, a delivery that loses the third segment) is decided here, from this run's frames.

Steps: `write n [flags more|eor|oob|zerocopy] [times]`, `stream n [chunk]`, `read n [flags peek|trunc|waitall|oob] [times]`,
`sockopt name val`, `shutdown`, `close`, `sysctl name val`, `mtu val`, `too_big mtu`, `ack [upto N|all] [segs K] [win] [sack]`,
`deliver n [drop] [order] [every]` (the peer receives the next n segments in flight and acknowledges with SACK as a receiver does),
`dup n`, `data n [at] [flags] [gso] [ecn] [urg] [times] [gap_us]`, `auto mode us [drop]`, `drain`, `wait_ms`, `wait_us`, `wait_data ms`,
`prime`, `wait_release ms`, `info`, `hostmem`, `writable`, `readable`.
"""

from __future__ import annotations

import heapq
from typing import Any, Protocol

from . import frames
from .frames import M32, PEER_ISN, HostFrame

Event = dict[str, Any]
PROGRAM = ("write", "repeat", "stream", "read", "sockopt", "shutdown", "close", "writable", "readable", "info", "hostmem", "wait_release")
COUNTS = 20  # attempts
QUIET_US = 300_000  # `drain` ends after so long without a frame or an acknowledgement due


class Side(Protocol):
    """What is compared: a host with one connection, and the far end of its device."""

    def now_us(self) -> int: ...
    def frames(self) -> list[HostFrame]:
        """What the host has sent since the last call."""

    def wait(self, until_us: int) -> None:
        """Return at that time, or as soon as there are frames."""

    def wait_until(self, until_us: int) -> None:
        """Return at that time, whatever comes."""

    def inject(self, vnet: bytes, frame: bytes) -> None: ...
    def connect(self) -> None: ...
    def listen(self) -> None: ...
    def accept(self) -> None:
        """From now on the connection is that which the peer has opened."""

    def write(self, size: int, flags: tuple[str, ...]) -> int | str: ...
    def read(self, size: int, flags: tuple[str, ...]) -> int | str: ...
    def setsockopt(self, name: str, value: int | str) -> int | str: ...
    def shutdown(self) -> None: ...
    def close(self) -> None: ...
    def sysctl(self, name: str, value: int | str) -> None: ...
    def mtu(self, mtu: int) -> None:
        """The device's changes."""

    def writable(self) -> bool: ...
    def readable(self) -> bool: ...
    def info(self) -> dict[str, int]: ...
    def counters(self) -> dict[str, int]: ...
    def limit(self, rate: int, burst: int) -> None:
        """From now on a class of `rate` bits/s holds frames back; `burst` bytes go at once."""


class Failed(Exception):
    """The host did not do what a run needs (no SYN, no data)."""


def moved(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """How counters changed, those that did."""
    return {name: after.get(name, 0) - before.get(name, 0) for name in sorted({*before, *after}) if after.get(name, 0) != before.get(name, 0)}


def words(flags: str) -> tuple[str, ...]:
    """The names in a step's `flags`."""
    return tuple(word.strip() for word in flags.replace("|", ",").split(",") if word)


class Runner:
    """See the module."""

    def __init__(self, workload: dict[str, Any], side: Side) -> None:
        self.config: dict[str, Any] = workload["config"]
        self.script: list[dict[str, Any]] = workload["script"]
        self.side = side
        self.events: list[Event] = []
        self.iss = 0
        self.port = 0
        self.scale = 0  # of the host's windows
        self.shift = self.config.get("wscale") or 0  # of the peer's
        self.win: int = self.config["win"]
        self.mss = 0
        self.first_ts = 0  # the SYN's TSval
        self.ts_recent = 0
        self.snd_nxt = 0  # next byte of the peer's data
        self.highest = 0  # end of what the host has sent
        self.una = 0  # acknowledged by the peer
        self.held: list[tuple[int, int]] = []  # received out of order
        self.recent: list[tuple[int, int]] = []  # the same, in the order of SACK blocks
        self.flying: list[tuple[int, int, int]] = []  # segments the peer has not received yet: start, end, TSval
        self.auto: tuple[str, int] | None = None
        self.due: list[tuple[int, int, tuple[int, int, int] | None]] = []  # acknowledgements of `auto`: time, number; or a segment's arrival
        self.losses: set[int] = set()  # which of the next segments are lost on the way
        self.closed = False
        self.start_us = 0
        self.seen = 0

    # --- time ---

    def now(self) -> int:
        return self.side.now_us() - self.start_us

    def sleep(self, until_us: int) -> None:
        """Let time pass, acknowledging as `auto` says."""
        while True:
            self.take()
            now = self.now()
            if self.due and self.due[0][0] <= now:
                _, number, segment = heapq.heappop(self.due)
                if segment is not None:
                    self._receive(*segment)
                    self._answer()
                elif number > self.una or self.config.get("repeat_acks"):
                    self.ack(number)
                continue
            if now >= until_us:
                return
            until = min(until_us, self.due[0][0]) if self.due else until_us
            self.side.wait(until + self.start_us)

    def take(self) -> None:
        for frame in self.side.frames():
            self._arrived(frame)

    def _arrived(self, frame: HostFrame) -> None:
        frame = frame._replace(t_us=frame.t_us - self.start_us)
        event = frames.describe(frame, self.iss, self.scale)
        self.snd_nxt = max(self.snd_nxt, event["ack"])
        if "ts" in event:
            event["ts"][0] = event["ts"][0] - self.first_ts & M32
        if event["ev"] == "reply":
            self.events.append(event)
            return
        start, end = event["seq"]
        if start < self.highest:
            event["rtx"] = True
        tail = end + ("F" in frame.flags)
        size = frame.gso_size or frame.length
        for at in range(start, max(end, start + 1), size or 1):
            stop = min(at + size, end) if size else at
            segment = (at, tail if stop == end else stop, frame.ts[0] if frame.ts else 0)
            if self.auto is None or self.auto[0] != "each":
                self.flying.append(segment)
            elif at < self.highest or not self._lost():
                heapq.heappush(self.due, (frame.t_us + self.auto[1], segment[1], segment))
            if not size:
                break
        self.highest = max(self.highest, tail)
        self.events.append(event)
        self.seen += 1
        if self.auto is not None:
            mode, delay = self.auto
            if mode == "frame":
                heapq.heappush(self.due, (frame.t_us + delay, tail, None))
            elif mode == "two":
                step = 2 * (frame.gso_size or max(frame.length, 1))
                for stop in [*range(start + step, end, step), tail]:
                    heapq.heappush(self.due, (frame.t_us + delay, stop, None))

    def _lost(self) -> bool:
        lost = 0 in self.losses
        self.losses = {number - 1 for number in self.losses if number}
        return lost

    # --- the connection ---

    def run(self) -> dict[str, Any]:
        """Go through the script once."""
        self._open()
        before = self.side.counters()
        for step in self.script:
            if not (self.closed and step["do"] in PROGRAM):
                getattr(self, "do_" + step["do"])(step)
            self.take()
        self.take()
        counted, after = self._count()
        # events of one instant keep their order
        self.events.sort(key=lambda event: event["t"])
        return {"handshake": self.handshake, "counters": moved(before, after), "counted_us": counted, "events": self.events}

    def _count(self) -> tuple[int, dict[str, int]]:
        """The counters, and when: at a moment when nothing was sent."""
        for _ in range(COUNTS):
            began = self.now()
            counters = self.side.counters()
            self.take()
            if not any(event["ev"] in ("frame", "reply") and event["t"] >= began for event in self.events[-COUNTS:]):
                break
        return began, counters

    def _open(self) -> None:
        side = self.side
        if self.config.get("passive"):
            sent, stamps = self._open_to_listener()
        else:
            sent, stamps = self._answer_syn()
        self.start_us = sent
        info = side.info()
        self.mss = info["snd_mss"]
        self.handshake = {name: info[name] for name in ("rtt", "min_rtt", "rto", "pacing_rate", "snd_mss", "snd_cwnd", "sndbuf")}
        self.handshake["clock_us"] = sent  # t = 0 on the machine's monotonic clock
        if self.acked_us > 1000:
            self.handshake["acked_us"] = self.acked_us
        if self.ts_on:
            self.handshake["tsval"] = stamps[-1]
            if len(stamps) > 1:
                self.handshake["syn_tsval"] = stamps[0]
        htb = self.config.get("htb")
        if htb:
            rate = str(htb["rate"])
            side.limit(int(rate.removesuffix("kbit").removesuffix("mbit")) * (1_000_000 if rate.endswith("mbit") else 1000), htb["burst"])

    def _answer_syn(self) -> tuple[int, list[int]]:
        """The program connects. Returns when the SYN-ACK was sent, and its timestamp."""
        side = self.side
        side.connect()
        syn = self._await("S")
        self._syn(syn)
        tsval = self._tsval()
        options = frames.syn_options(self.config, (tsval, self.ts_recent) if self.ts_on else None)
        side.wait_until(syn.t_us + int(self.config.get("hs_ms", 0) * 1000))
        flags = "SE." if self.config.get("ecn") and "E" in syn.flags else "S."
        sent = side.now_us()
        side.inject(*frames.build(self.port, PEER_ISN, self.iss + 1, flags, min(self.win, 65535), options))
        # in ping-pong mode the host is in no hurry
        self.acked_us = self._await(".").t_us - sent
        return sent, [tsval]

    acked_us = 0  # when the host acknowledged the SYN-ACK

    def _open_to_listener(self) -> tuple[int, list[int]]:
        """The peer connects. Returns when the handshake's last ACK was sent, and the timestamps of both the peer's segments."""
        side = self.side
        side.listen()
        stamps = [self._tsval()]
        options = frames.syn_options(self.config, (stamps[0], 0) if self.config.get("ts") else None)
        side.inject(*frames.build(frames.LISTEN_PORT, PEER_ISN, 0, "SEW" if self.config.get("ecn") else "S", min(self.win, 65535), options))
        answer = self._await("S.")
        self._syn(answer)
        side.wait_until(answer.t_us + int(self.config.get("hs_ms", 0) * 1000))
        stamps.append(self._tsval())
        ts = frames.options((stamps[1], self.ts_recent) if self.ts_on else None, [])
        sent = side.now_us()
        side.inject(*frames.build(self.port, PEER_ISN + 1, self.iss + 1, ".", min(self.win >> self.shift, 65535), ts))
        side.accept()
        return sent, stamps

    def _syn(self, syn: HostFrame) -> None:
        """What the host's SYN or SYN-ACK says."""
        self.iss, self.port = syn.seq, syn.port
        self.ts_on = bool(self.config.get("ts")) and syn.ts is not None
        if syn.ts is not None:
            self.first_ts = self.ts_recent = syn.ts[0]
        if self.config.get("wscale") is not None:
            self.scale = syn.wscale or 0

    def _await(self, flags: str) -> HostFrame:
        limit = self.side.now_us() + 1_000_000
        while self.side.now_us() < limit:
            for frame in self.side.frames():
                if frame.flags.replace("E", "").replace("W", "") == flags:
                    return frame
            self.side.wait(limit)
        raise Failed(f"the host sent no {flags}")

    def _tsval(self) -> int:
        return (self.side.now_us() // 1000 + 0x1000) & M32

    # --- the peer ---

    def _sacks(self) -> list[tuple[int, int]]:
        return self.recent[: 3 if self.ts_on else 4]

    def ack(self, number: int, sack: list[tuple[int, int]] | None = None, win: int | None = None, flags: str = ".", shift: int = 0, age: int = 0) -> None:
        """Send an acknowledgement.

        number: relative. sack: instead of what is held. shift: of its own sequence number. age: of its timestamp, ms too old."""
        if win is not None:
            self.win = win
        blocks = self._sacks() if sack is None else sack
        if not self.config.get("sack"):
            blocks = []
        if self.una < number <= self.highest:
            self.una = number
        ts = (self._tsval() - age & M32, self.ts_recent) if self.ts_on else None
        seq = self.snd_nxt + shift
        wire = [(self.iss + 1 + a, self.iss + 1 + b) for a, b in blocks]
        vnet, frame = frames.build(
            self.port, PEER_ISN + 1 + seq, self.iss + 1 + number, flags, min(self.win >> self.shift, 65535), frames.options(ts, wire)
        )
        event: Event = {"ev": "ack", "t": self.now(), "ack": number, "win": self.win}
        if blocks:
            event["sack"] = [list(block) for block in blocks]
        if flags != ".":
            event["flags"] = flags
        if seq:
            event["seq"] = seq
        if ts is not None:
            event["ts"] = [ts[0], (ts[1] - self.first_ts) & M32]
        self.events.append(event)
        self.side.inject(vnet, frame)
        self.take()

    def _receive(self, start: int, end: int, tsval: int) -> bool:
        """A segment reaches the peer; True if it closed or made a hole, so that it has to be acknowledged at once."""
        if start <= self.una and tsval:
            self.ts_recent = tsval
        if end <= self.una:
            # a duplicate: D-SACK
            self.dsack = (start, end)
            return True
        if start > self.una:
            left, right = start, end
            for a, b in list(self.held):
                if a <= right and b >= left:
                    if a <= start and b >= end:
                        self.dsack = (start, end)
                    left, right = min(left, a), max(right, b)
                    self.held.remove((a, b))
                    self.recent.remove((a, b))
            self.held.append((left, right))
            self.recent.insert(0, (left, right))
            return True
        had = bool(self.held)
        self.una = end
        for a, b in sorted(self.held):
            if a <= self.una:
                self.una = max(self.una, b)
                self.held.remove((a, b))
                self.recent.remove((a, b))
        return had

    dsack: tuple[int, int] | None = None

    def _answer(self) -> None:
        blocks = self._sacks()
        if self.dsack is not None:
            blocks = [self.dsack, *blocks][: 3 if self.ts_on else 4]
            self.dsack = None
        self.ack(self.una, blocks)

    def do_deliver(self, step: dict[str, Any]) -> None:
        self.take()
        count = step.get("n", 1)
        batch = self.flying[:count]
        del self.flying[:count]
        drop = set(step.get("drop", ()))
        order = [i for i in step.get("order", ()) if i < len(batch)]
        order += [i for i in range(len(batch)) if i not in order]
        every = step.get("every", 2)
        pending = 0
        for i in order:
            if i in drop:
                continue
            at_once = self._receive(*batch[i])
            pending += 1
            if at_once or pending >= every:
                self._answer()
                pending = 0
        if pending:
            self._answer()

    def do_dup(self, step: dict[str, Any]) -> None:
        for _ in range(step.get("n", 1)):
            self.ack(self.una)

    def do_ack(self, step: dict[str, Any]) -> None:
        self.take()
        if "beyond" in step:
            upto = self.highest + step["beyond"]
        elif "behind" in step:
            upto = self.una - step["behind"]
        elif "segs" in step:
            upto = min(self.una + step["segs"] * self.mss, self.highest)
        else:
            upto = step.get("upto", "all")
            if upto == "all":
                upto = self.highest
        sack = [(int(left), int(right)) for left, right in step["sack"]] if "sack" in step else None
        if "blocks" in step:
            # relative to what is acknowledged, in segments
            sack = [(self.una + int(a * self.mss), self.una + int(b * self.mss)) for a, b in step["blocks"]]
        if upto <= self.highest:
            self._forget(upto)
        self.ack(upto, sack, step.get("win"), step.get("flags", "."), step.get("shift", 0), step.get("age", 0))

    def _forget(self, upto: int) -> None:
        """What was acknowledged outright has been received."""
        self.flying = [segment for segment in self.flying if segment[1] > upto]
        self.held = [block for block in self.held if block[0] > upto]
        self.recent = [block for block in self.recent if block[0] > upto]

    def do_data(self, step: dict[str, Any]) -> None:
        for i in range(step.get("times", 1)):
            if i and step.get("gap_us"):
                self.sleep(self.now() + step["gap_us"])
            at = step.get("at", self.snd_nxt)
            if "ahead" in step:
                at = self.snd_nxt + step["ahead"]
            size = step["n"]
            flags = step.get("flags", "P.")
            ts = (self._tsval() - step.get("age", 0) & M32, self.ts_recent) if self.ts_on else None
            payload = bytes(size)
            vnet, frame = frames.build(
                self.port, PEER_ISN + 1 + at, self.iss + 1 + self.una, flags, min(self.win >> self.shift, 65535), frames.options(ts, []),
                payload, step.get("gso", 0), step.get("ecn", 0), step.get("urg", 0),
            )  # fmt: skip
            event: Event = {"ev": "data", "t": self.now(), "seq": [at, at + size], "flags": flags, "ack": self.una, "win": self.win}
            if step.get("gso"):
                event["gso_size"] = step["gso"]
            event |= {name: step[name] for name in ("ecn", "urg") if step.get(name)}
            if ts is not None:
                event["ts"] = [ts[0], (ts[1] - self.first_ts) & M32]
            if at <= self.snd_nxt:
                self.snd_nxt = max(self.snd_nxt, at + size + ("F" in flags))
            self.events.append(event)
            self.side.inject(vnet, frame)
            self.take()

    def do_peer_data(self, step: dict[str, Any]) -> None:
        self.do_data({"n": step["n"], "at": step["seq"], "flags": "P."})

    def do_auto(self, step: dict[str, Any]) -> None:
        self.auto = (step["mode"], int(step["us"])) if "mode" in step else None
        self.losses = set(step.get("drop", ()))
        if self.auto is None:
            self.due.clear()

    # --- time ---

    def do_wait_ms(self, step: dict[str, Any]) -> None:
        self.sleep(self.now() + int(step["ms"] * 1000))

    def do_wait_us(self, step: dict[str, Any]) -> None:
        self.sleep(self.now() + step["us"])

    def do_wait_data(self, step: dict[str, Any]) -> None:
        limit = self.now() + int(step["ms"] * 1000)
        seen = self.seen
        while self.seen == seen and self.now() < limit:
            self.sleep(min(limit, self.now() + 200))

    def do_drain(self, step: dict[str, Any]) -> None:
        """Until nothing has happened for a while."""
        last = self.now()
        events = len(self.events)
        while self.now() - last < step.get("quiet_us", QUIET_US):
            self.sleep(self.now() + 1000)
            if len(self.events) != events or self.due:
                events, last = len(self.events), self.now()

    def do_prime(self, step: dict[str, Any]) -> None:
        """Spend the burst of the class, leave an empty host queue."""
        for _ in range(3):
            self._write(self.mss, ())
        limit = self.now() + 2_000_000
        while self.highest < 3 * self.mss and self.now() < limit:
            self.sleep(self.now() + 200)
        self.do_ack({"upto": "all"})

    def do_wait_release(self, step: dict[str, Any]) -> None:
        limit = self.now() + step["ms"] * 1000
        before = self.side.info()["notsent"]
        while self.now() < limit:
            info = self.side.info()
            if info["notsent"] < before:
                self.events.append({"ev": "released", "t": self.now(), "notsent": info["notsent"], "wmem_alloc": info["wmem_alloc"]})
                return
            self.sleep(self.now() + 100)

    # --- the program ---

    def _write(self, size: int, flags: tuple[str, ...]) -> int | str:
        began = self.now()
        result = self.side.write(size, flags)
        event: Event = {"ev": "write", "t": began, "t_end": self.now(), "n": size, "ret": result}
        if flags:
            event["flags"] = "|".join(flags)
        self.events.append(event)
        self.take()
        return result

    def do_write(self, step: dict[str, Any]) -> None:
        flags = words(step.get("flags", ""))
        for _ in range(step.get("times", 1)):
            self._write(step["n"], flags)

    def do_repeat(self, step: dict[str, Any]) -> None:
        self.do_write(step)

    def do_stream(self, step: dict[str, Any]) -> None:
        left = step["n"]
        chunk = step.get("chunk", 65536)
        limit = self.now() + int(step.get("ms", 5000) * 1000)
        while left > 0 and self.now() < limit:
            if self.side.writable():
                result = self._write(min(chunk, left), ())
                if isinstance(result, int):
                    left -= result
                    continue
                if result != "EAGAIN":
                    return
            else:
                # a poll that finds no room asks to be woken, which shows: it is an event
                self.events.append({"ev": "writable", "t": self.now(), "val": 0})
            events = len(self.events)
            until = self.now() + 2000
            while len(self.events) == events and self.now() < until:
                self.sleep(min(until, self.now() + 100))

    def do_read(self, step: dict[str, Any]) -> None:
        flags = words(step.get("flags", ""))
        for _ in range(step.get("times", 1)):
            began = self.now()
            result = self.side.read(step["n"], flags)
            event: Event = {"ev": "read", "t": began, "t_end": self.now(), "n": step["n"], "ret": result}
            if flags:
                event["flags"] = "|".join(flags)
            self.events.append(event)
            self.take()

    def do_sockopt(self, step: dict[str, Any]) -> None:
        event: Event = {"ev": "sockopt", "t": self.now(), "name": step["name"], "val": step["val"]}
        result = self.side.setsockopt(step["name"], step["val"])
        if result != 0:
            event["ret"] = result
        self.events.append(event)

    def do_shutdown(self, step: dict[str, Any]) -> None:
        self.events.append({"ev": "shutdown", "t": self.now()})
        self.side.shutdown()

    def do_close(self, step: dict[str, Any]) -> None:
        """The program is done: no more calls, no more tcp_info."""
        self.events.append({"ev": "close", "t": self.now()})
        self.side.close()
        self.closed = True

    def do_sysctl(self, step: dict[str, Any]) -> None:
        self.events.append({"ev": "sysctl", "t": self.now(), "name": step["name"], "val": step["val"]})
        self.side.sysctl(step["name"], step["val"])

    def do_mtu(self, step: dict[str, Any]) -> None:
        self.events.append({"ev": "mtu", "t": self.now(), "val": step["val"]})
        self.side.mtu(step["val"])

    def do_too_big(self, step: dict[str, Any]) -> None:
        """A router says that the oldest segment in flight does not fit through `mtu`."""
        self.take()
        self.events.append({"ev": "too_big", "t": self.now(), "seq": self.una, "mtu": step["mtu"]})
        self.side.inject(*frames.too_big(self.port, self.iss + 1 + self.una, step["mtu"]))
        self.take()

    def do_writable(self, step: dict[str, Any]) -> None:
        self.events.append({"ev": "writable", "t": self.now(), "val": int(self.side.writable())})

    def do_readable(self, step: dict[str, Any]) -> None:
        self.events.append({"ev": "readable", "t": self.now(), "val": int(self.side.readable())})

    def do_info(self, step: dict[str, Any]) -> None:
        t = self.now()
        self.events.append({"ev": "info", "t": t, "label": step.get("label", "")} | self.side.info())

    def do_hostmem(self, step: dict[str, Any]) -> None:
        t = self.now()
        info = self.side.info()
        event = {"ev": "hostmem", "t": t, "label": step.get("label", "")} | {name: info[name] for name in ("wmem_alloc", "wmem_queued", "unacked", "notsent")}
        self.events.append(event)

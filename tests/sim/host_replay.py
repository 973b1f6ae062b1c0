"""Replays recorded conversations of a Linux 6.18 kernel (as an IP host) with a scripted peer.

`tests/data/host/*.json` holds them by subject, cut down to the first of at least three runs where runs
differ: a value `{"varies": [v]}` was not the same in all, a time is then [first, earliest, latest].

A recording is a list of steps: frames the peer wrote, frames the kernel sent, calls a program made with
their results, changes of counters, states of neighbour entries. `replay` does to a stack in virtual
time what peer and program did to the kernel, and returns every difference. Frames are compared field
by field in order, without fields that varied from run to run (ids, ephemeral ports, flow labels). Times:
never earlier than the kernel's shortest, later by at most the timer wheel's coarseness.
"""

from __future__ import annotations

import errno
import json
import random
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.frame import RxFrame, TxFrame
from pytcp.link.offload import segment
from pytcp.net import address, icmp, sysctl
from pytcp.net.datagram import UdpSocket
from pytcp.net.neighbour import STATE_NAMES
from pytcp.net.stack import Stack
from pytcp.tcp import api
from pytcp.wire.addr import format_ip, format_mac, parse_ip, parse_mac
from pytcp.wire.checksum import checksum, pseudo6

MAC = parse_mac("02:00:00:00:00:11")
MS = 1_000_000

# counters of no interest to a case, as the recordings leave them out
# what the scripts set up before their first step without saying so in a step
SETUP: dict[str, list[str]] = {
    "answer_other_if_addr": ["address lo 10.99.0.1/32"],
    "dst_lo_addr_configured": ["address lo 10.99.0.1/32"],
    "answer_secondary": ["address t0 10.78.0.9/24"],
    "proxy_off_link_host": ["route 10.78.0.50"],
}

_SKIPPED = re.compile(r"Octets|ECT\d?Pkts|CEPkts|InNoECT")


class Unsupported(Exception):
    """The case does something this replayer has no words for."""


class ScriptLink:
    """The wire: keeps what the stack sends, and gives it what the script says."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self.runtime = runtime
        self.name = "t0"
        self.mac = MAC
        self.mtu = 1500
        self.features = 0
        self.gso_max_size = 65536
        self.sent: list[tuple[int, bytes]] = []
        self.rx: Callable[[RxFrame], None]  # set by the interface
        self.rx_end: Callable[[], None]

    def fileno(self) -> int:
        return -1

    def poll(self, budget: int) -> int:
        return 0

    def send(self, frames: Any) -> int:
        for frame in frames:
            assert isinstance(frame, TxFrame)
            for data in segment(frame):
                self.sent.append((self.runtime.heap.now_ns, bytes(data)))
        return len(frames)

    def close(self) -> None:
        """Nothing to give back."""

    def inject(self, data: bytes) -> None:
        """The peer writes a frame."""
        self.runtime.heap.call_later(0, lambda: self._deliver(data))
        self.runtime.run_for(0)

    def _deliver(self, data: bytes) -> None:
        self.rx(RxFrame(memoryview(data)))
        self.rx_end()


# --- frames as the recordings describe them ---


def decode(data: bytes) -> dict[str, Any]:
    """The fields of a frame, named as in the recordings."""
    out: dict[str, Any] = {"eth": [format_mac(data[:6]), format_mac(data[6:12]), data[12:14].hex()], "flen": len(data)}
    body = data[14:]
    kind = data[12:14]
    if kind == b"\x08\x06":
        out["arp"] = {
            "op": body[7],
            "sha": format_mac(body[8:14]),
            "spa": format_ip(body[14:18]),
            "tha": format_mac(body[18:24]),
            "tpa": format_ip(body[24:28]),
        }
    elif kind == b"\x08\x00":
        out["ip"] = _decode4(body)
    elif kind == b"\x86\xdd":
        out["ip6"] = _decode6(body)
    return out


def _decode4(data: bytes) -> dict[str, Any]:
    vihl, tos, total, ident, frag, ttl, proto, _, src, dst = struct.unpack_from("!BBHHHBBH4s4s", data)
    hlen = (vihl & 15) * 4
    out: dict[str, Any] = {"src": format_ip(src), "dst": format_ip(dst), "proto": proto, "ttl": ttl, "id": ident, "df": frag >> 14 & 1, "len": total}
    if tos:
        out["tos"] = tos
    if frag & 0x3FFF:
        out["mf"] = frag >> 13 & 1
        out["off"] = (frag & 0x1FFF) * 8
    if hlen > 20:
        out["opt"] = data[20:hlen].hex()
    if checksum(data[:hlen]):
        out["ck_bad"] = True
    if not frag & 0x1FFF:
        _decode_l4(out, proto, data[hlen:total])
    return out


def _decode6(data: bytes) -> dict[str, Any]:
    word, plen, nh, hlim, src, dst = struct.unpack_from("!IHBB16s16s", data)
    out: dict[str, Any] = {"src": format_ip(src), "dst": format_ip(dst), "hlim": hlim, "plen": plen, "nh": nh}
    if word & 0xFFFFF:
        out["flow"] = word & 0xFFFFF
    if word >> 20 & 0xFF:
        out["tc"] = word >> 20 & 0xFF
    body = data[40 : 40 + plen]
    if nh == 44:
        field = body[2] << 8 | body[3]
        out["ext"] = [f"frag off={field & 0xFFF8} m={field & 1}"]
    if nh == 58 and checksum(body, pseudo6(src, dst, 58, len(body))):
        out["ck_bad"] = True
    _decode_l4(out, nh, body)
    return out


def _decode_l4(out: dict[str, Any], proto: int, data: bytes) -> None:
    if proto == 17 and len(data) >= 8:
        sport, dport, ulen, _ = struct.unpack_from("!HHHH", data)
        out["udp"] = {"sport": sport, "dport": dport, "ulen": ulen}
    elif proto == 6 and len(data) >= 20:
        names = ((1, "S"), (0, "F"), (2, "R"), (3, "P"), (4, "."))
        flags = "".join(name for bit, name in names if data[13] >> bit & 1)
        out["tcp"] = {"sport": data[0] << 8 | data[1], "dport": data[2] << 8 | data[3], "flags": flags, "dlen": len(data) - (data[12] >> 4) * 4}
    elif proto == 1 and len(data) >= 8:
        icmp: dict[str, Any] = {"type": data[0], "code": data[1]}
        out["icmp"] = icmp
        if data[0] in (0, 8, 13, 14):
            icmp |= {"id": data[4] << 8 | data[5], "seq": data[6] << 8 | data[7], "dlen": len(data) - 8}
        else:
            icmp |= {"rest": data[4:8].hex(), "quoted": len(data) - 8}
    elif proto == 58 and len(data) >= 8:
        out["icmp6"] = _decode_icmp6(data)


def _decode_icmp6(data: bytes) -> dict[str, Any]:
    kind = data[0]
    out: dict[str, Any] = {"type": kind, "code": data[1]}
    if kind in (128, 129):
        out |= {"id": data[4] << 8 | data[5], "seq": data[6] << 8 | data[7], "dlen": len(data) - 8}
    elif kind in (135, 136):
        out["target"] = format_ip(data[8:24])
        if kind == 136:
            out["flags"] = "".join(name for bit, name in ((7, "R"), (6, "S"), (5, "O")) if data[4] >> bit & 1)
        out["opts"] = _options(data[24:])
    elif kind == 133:
        out["opts"] = _options(data[8:])
    elif kind < 128:
        out |= {"rest": int.from_bytes(data[4:8], "big"), "quoted": len(data) - 8}
    return out


def _options(data: bytes) -> list[str]:
    names = {1: "slla", 2: "tlla", 14: "nonce"}
    found = []
    while data:
        size = data[1] * 8
        value = data[2:size]
        found.append(f"{names.get(data[0], data[0])}={value.hex(':') if data[0] in (1, 2) else value.hex()}")
        data = data[size:]
    return found


def compare(want: Any, got: Any, where: str = "") -> list[str]:
    """Where `got` does not have what `want` has."""
    if isinstance(want, dict):
        if "varies" in want:
            return []
        if not isinstance(got, dict):
            return [f"{where}: {want} expected, {got}"]
        found = []
        for key, value in want.items():
            if key in ("note", "quote_is", "payload", "last_nh", "ext"):
                continue
            if key == "opts":
                # nonces are random
                value = [re.sub("^nonce=.*", "nonce", text) for text in value] if isinstance(value, list) else value
                got = got | {key: [re.sub("^nonce=.*", "nonce", text) for text in got.get(key, ())]}
            if key == "flow":
                # a hash with a secret: what can be compared is that there is one
                if not got.get("flow"):
                    found.append(f"{where}: no flow label")
                continue
            if key not in got:
                found.append(f"{where}/{key}: {value} expected, absent")
            else:
                found += compare(value, got[key], f"{where}/{key}")
        for key in ("tos", "opt", "mf", "ck_bad", "tc", "flow"):
            if key in got and key not in want:
                found.append(f"{where}/{key}: {got[key]} unexpected")
        return found
    return [] if want == got else [f"{where}: {want} expected, {got}"]


def _is_mld(frame: dict[str, Any]) -> bool:
    return bool(frame.get("ip6", {}).get("icmp6", {}).get("type") in (131, 132, 143))


def _near(texts: dict[str, str]) -> dict[str, str]:
    """Lifetimes without their last digits: the script's reading is some ms late."""
    return {name: re.sub(r"\d+", lambda match: str((int(match[0]) + 3) // 6 if int(match[0]) > 20 else match[0]), text) for name, text in texts.items()}


class ScriptedRandom(random.Random):
    """Random numbers, except where the recording shows what the kernel drew: by the bound of the draw."""

    def __init__(self, drawn: dict[int, list[int]]) -> None:
        super().__init__(78)
        self.drawn = drawn

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        drawn = self.drawn.get(start)
        return drawn.pop(0) if drawn and stop is None else super().randrange(start, stop, step)


def _with_additions(case: dict[str, Any], steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps, with the address that the duplicate detection scripts add at 4.5 s without saying so."""
    if not case["name"].startswith(("dad_", "ndisc_notify")):
        return steps
    at = next(i for i, step in enumerate(steps) if (step["t"][0] if isinstance(step["t"], list) else step["t"]) > 4.507)
    return [*steps[:at], {"t": 4.507, "do": "fd78::1/64"}, *steps[at:]]


# --- the replay ---


class Replay:
    """One case run on a fresh stack."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.steps: list[dict[str, Any]] = case["steps"]
        self.runtime = VirtualRuntime()
        self.stack = Stack(self.runtime, seed=78)
        self.steps = _with_additions(case, self.steps)
        self.stack.random = ScriptedRandom({1_000_000_000: self._dad_delays(), 200_001: self._solicit_jitter()})
        self.link = ScriptLink(self.runtime)
        self.socks: list[UdpSocket] = []
        self.differences: list[str] = []
        self.read = 0  # frames of link.sent already matched
        self._set_up(case["setup"])
        self.runtime.run_for(2_400_000_000)
        if self.auto6:
            address.start(self.stack, self.dev, dad=True, autoconf=True)
        self.link.sent.clear()
        self.start_ns = self.runtime.heap.now_ns
        self.baselines = [self.stack.mib.snapshot()]  # before each step since the last reading

    def _set_up(self, setup: dict[str, Any]) -> None:
        stack = self.stack
        for name, value in setup.get("sysctls", {}).items():
            sysctl.set_(stack.sysctl, name, value)
        addresses = [setup["ipv4"]] if setup.get("ipv4") else []
        six = setup.get("ipv6") or "disabled"
        self.auto6 = six == "as the case says"
        self.dev = stack.add_interface(self.link, [] if self.auto6 else addresses, ipv6=False)
        if six.startswith("fd78"):
            stack.add_address(self.dev, "fe80::11/64")
            stack.add_address(self.dev, "fd78::1/64")
        if setup.get("static_neighbours"):
            mac = parse_mac("02:00:00:00:00:12")
            for text in ("10.78.0.2", "fd78::2", "fe80::12"):
                addr = parse_ip(text)
                table = self.dev.neigh4 if len(addr) == 4 else self.dev.neigh6
                table.add_permanent(addr, mac)
        route = setup.get("default_route")
        if route:
            for via in route.removeprefix("via ").split("/"):
                if len(parse_ip(via)) == 4 or six.startswith("fd78"):
                    stack.add_route("default", via=via, dev=self.dev)

        if "redirect" in self.case["name"]:
            for text in ("10.78.0.3", "fe80::13") if self.case["subject"] == "icmp4" else ():
                addr = parse_ip(text)
                table = self.dev.neigh4 if len(addr) == 4 else self.dev.neigh6
                table.add_permanent(addr, parse_mac("02:00:00:00:00:13"))
        if self.case["what"].startswith("default via fe80::12") or self.case["name"] == "redirect_from_non_gateway":
            for old in stack.routes6.find(bytes(16), 0):
                stack.remove_route(old)
            stack.add_route("default6", via="fe80::12", dev=self.dev)
        for line in SETUP.get(self.case["name"], ()):
            what, *words = line.split()
            if what == "address":
                stack.add_address(stack.interface(words[0]), words[1])
            else:
                stack.add_route("default", via=words[0], dev=self.dev)

    def _dad_delays(self) -> list[int]:
        """How long the kernel waited before each duplicate address probe: drawn at random, so taken from the recording."""
        delays = []
        began = 3 * MS
        seen = set()
        for step in self.steps:
            if "do" in step or "peer" in step:
                began = self.time_of(step)
            probe = step.get("kernel", {}).get("ip6", {})
            if probe.get("src") == "::" and probe.get("icmp6", {}).get("type") == 135:
                target = probe["icmp6"]["target"]
                if target not in seen:
                    seen.add(target)
                    delays.append(max(self.time_of(step) - (3 * MS if target.startswith("fe80") else began), 0))
        return delays if "fe80::ff:fe00:11" in seen else [0, *delays]

    def _solicit_jitter(self) -> list[int]:
        """The tenth by which each interval between router solicitations was off, in millionths above 0.9 of it."""
        times = [self.time_of(step) for step in self.steps if step.get("kernel", {}).get("ip6", {}).get("icmp6", {}).get("type") == 133]
        drawn = []
        base = 4_000_000_000
        for before, after in pairwise(times):
            interval = after - before
            drawn.append(min(max(interval * 1_000_000 // base - 910_000, 0), 200_000))
            base = 2 * interval
        return drawn

    def value(self, value: Any) -> Any:
        """The value of the run that is replayed, the first."""
        if isinstance(value, dict) and set(value) == {"varies"}:
            return value["varies"][0]
        return value

    def time_of(self, step: dict[str, Any]) -> int:
        t = step["t"]
        return int((t[0] if isinstance(t, list) else t) * 1e9)

    def differ(self, step: dict[str, Any], what: str) -> None:
        self.differences.append(f"t={step['t']}: {what}")

    def go(self) -> list[str]:
        """Run all steps; returns what was different."""
        pending: list[dict[str, Any]] = []
        first = self.start_ns + self.time_of(self.steps[0])
        if self.auto6 and first > self.start_ns + 2 * 10**9:
            # the recording begins after the interface has settled
            self.runtime.run_until(first - 5 * MS)
            self.read = len(self.link.sent)
        for step in self.steps:
            if "kernel" in step:
                pending.append(step)
                continue
            self._advance(self.start_ns + self.time_of(step), pending)
            self._do(step)
        end = max((self.time_of(step) for step in self.steps), default=0)
        self._advance(self.start_ns + end + 40 * MS, pending)
        self._match(pending)
        for when, data in self.link.sent[self.read :]:
            if when > self.start_ns + end:
                break
            self.differences.append(f"t={(when - self.start_ns) / 1e9:.3f}: unexpected frame {decode(data)}")
        self.stack.close()
        return self.differences

    def _advance(self, when_ns: int, pending: list[dict[str, Any]]) -> None:
        self.runtime.run_until(max(when_ns, self.runtime.heap.now_ns))
        self._match(pending)

    def _match(self, pending: list[dict[str, Any]]) -> None:
        """Compare the kernel frames up to now with what the stack has sent."""
        sent = self.link.sent
        group = [step for step in pending if not _is_mld(step["kernel"])]
        pending.clear()
        unordered = self.auto6 or self.case["stable"].get("order_of_neighbouring_kernel_frames_varies")
        for step in group:
            want = step["kernel"]
            if self.read >= len(sent):
                # the kernel's timers are late by up to a bucket; ours, in the same bucket, may come a little after the script's next step
                late = 2_100 * MS if self.time_of(step) > 2e9 else 40 * MS
                self.runtime.run_for(max(late, self.time_of(step) // 5) if self.auto6 else late)
            if self.read >= len(sent):
                self.differ(step, f"expected frame is missing: {want}")
                continue
            when, data = sent[self.read]
            got = decode(data)
            if unordered and compare(want, got):
                for other in range(self.read + 1, len(sent)):
                    if not compare(want, decode(sent[other][1])):
                        sent[self.read], sent[other] = sent[other], sent[self.read]
                        when, data = sent[self.read]
                        got = decode(data)
                        break
            self.read += 1
            for line in compare(want, got):
                self.differ(step, line)
            # the script of this case read its frames only after the blocking call
            if self.case["name"] != "resolve_fail_tcp":
                self._check_time(step, when)

    def _check_time(self, step: dict[str, Any], when_ns: int) -> None:
        t = step["t"]
        low = int((min(t) if isinstance(t, list) else t) * 1e9)
        high = int((max(t) if isinstance(t, list) else t) * 1e9)
        if self.auto6 and step["kernel"].get("ip6", {}).get("icmp6", {}).get("type") == 133:
            # each interval is off by up to a tenth at random, and they add up
            high, low = int(high * 1.2), int(low * 0.8)
        coarse = 40 * MS if high < 1.9e9 else 300 * MS if high < 20e9 else 2_100 * MS
        took = when_ns - self.start_ns
        if not low - coarse <= took <= high + coarse:
            self.differ(step, f"frame at {took / 1e9:.3f}")

    def _do(self, step: dict[str, Any]) -> None:
        if "counters" not in step:
            self.baselines.append(self.stack.mib.snapshot())
        if "peer" in step:
            if step["peer"].get("flen", 0) >= 14:
                self.link.inject(self._frame(step["peer"]))
        elif "app" in step:
            self._app(step)
        elif "do" in step:
            self.stack.add_address(self.dev, step["do"], dad=True)
            self.stack.flush()
        elif "counters" in step:
            self._counters(step)
        elif "neigh" in step:
            self._neigh(step)
        elif "link_rx" in step:
            if self.dev.rx_dropped != step["link_rx"]["dropped"]:
                self.differ(step, f"rx_dropped {step['link_rx']['dropped']} expected, {self.dev.rx_dropped}")
        elif "addresses" in step:
            self._addresses(step)
        elif "routes" in step:
            self._routes(step)
        elif "route_get" in step:
            self._route_get(step)
        elif "nd" in step:
            table = self.dev.neigh6
            got = [self.dev.mtu6, self.dev.hop_limit or 64, table.base_reachable_ns // MS, table.retrans_ns // MS]
            nd, ip6 = step["nd"], step["sysctl"]
            want = [ip6["mtu"], ip6["hop_limit"], int(nd["base_reachable_time_ms"]), int(nd["retrans_time_ms"])]
            if got != want:
                self.differ(step, f"MTU, hop limit, reachable, retrans: {want} expected, {got}")
        elif "note" in step:
            self._note(step)
        elif "link_stats" not in step and "route_cache" not in step:
            raise Unsupported(f"step {sorted(step)}")

    def _note(self, step: dict[str, Any]) -> None:
        note = step["note"]
        if not isinstance(note, str):
            raise Unsupported("note that is no text")
        released = re.match(r"released (\d+) datagrams, first (?:index )?(\d+), last (\d+)", note)
        if note.startswith("frames: "):
            for want in json.loads(note.removeprefix("frames: ")):
                if self.read >= len(self.link.sent):
                    self.differ(step, f"frame {want} is missing")
                    continue
                got = decode(self.link.sent[self.read][1])
                self.read += 1
                ip6 = got.get("ip6")
                have = {"len": 40 + ip6["plen"], "ext": ip6.get("ext")} if ip6 else {"mf": 0, "off": 0} | got["ip"]
                if any(have.get(key) != value for key, value in want.items()):
                    self.differ(step, f"frame {want} expected, {have}")
        elif released:
            count = int(released[1])
            if len(self.link.sent) - self.read != count:
                self.differ(step, f"{count} datagrams expected, {len(self.link.sent) - self.read}")
            self.read = len(self.link.sent)
        elif note == "sysctl dad_transmits=3":
            self.stack.sysctl.dad_transmits = 3
        elif note == "address .8 added":
            self.stack.add_address(self.dev, "10.78.0.8/24")
        elif note == "link down, up":
            self.dev.set_up(False)
            self.dev.set_up(True)
            self.stack.flush()
        elif note == "address added":
            self.stack.add_address(self.dev, "10.78.0.1/24")
        elif note not in ("link up", "write to TAP refused: EINVAL"):
            raise Unsupported(note)

    def _addresses(self, step: dict[str, Any]) -> None:
        now = self.runtime.heap.now_ns
        got = {}
        for entry in self.dev.addresses6:
            words = ["tentative"] if entry.tentative else []
            words += ["dadfailed"] if entry.dadfailed else ["optimistic"] if entry.optimistic else []
            if entry.origin == "ra":
                words += ["dynamic", "mngtmpaddr"]
                words += [f"valid {(entry.valid_until_ns - now) // 10**9 + 1}", f"pref {max((entry.preferred_until_ns - now) // 10**9 + 1, 0)}"]
            got[format_ip(entry.addr)] = " ".join(words)
        want = {name: self.value(value) for name, value in step["addresses"].items()}
        if _near(want) != _near(got):
            self.differ(step, f"addresses {want} expected, {got}")

    def _routes(self, step: dict[str, Any]) -> None:
        got = []
        for route in self.stack.routes6.routes():
            if route.dev is self.dev:
                prefix = "default" if not route.plen else f"{format_ip(route.prefix)}/{route.plen}"
                got.append(f"{prefix}{f' via {format_ip(route.gateway)}' if route.gateway else ''}")
        want = [re.match(r"(\S+(?: via \S+)?) dev", line)[1] for line in self.value(step["routes"]) if "expires -" not in line]  # type: ignore[index]
        if sorted(got) != sorted(want) or [line for line in got if line[0] == "d"] != [line for line in want if line[0] == "d"]:
            self.differ(step, f"routes {want} expected, {got}")

    def _route_get(self, step: dict[str, Any]) -> None:
        text = self.value(step["route_get"])
        dst = self.stack.dst(parse_ip(text.split()[0]))
        via = re.search(r"via (\S+)", text)
        if dst.gateway != (parse_ip(via[1]) if via else b""):
            self.differ(step, f"route {text!r} expected, {dst} via {dst.gateway.hex()}")
        mtu = re.search(r"mtu (lock )?(\d+)", text)
        if mtu and (dst.mtu, dst.mtu_lock) != (int(mtu[2]), bool(mtu[1])):
            self.differ(step, f"route {text!r} expected, {dst}")

    # --- what the peer sends ---

    def _frame(self, peer: dict[str, Any]) -> bytes:
        raw = peer.get("hex") or peer.get("hex_head")
        data = bytes.fromhex(self.value(raw))
        data += bytes((data[-1] + 1 + i) & 0xFF for i in range(peer["flen"] - len(data)))
        if isinstance(raw, dict):
            data = self._requote(peer, data)
        return data

    def _requote(self, peer: dict[str, Any], data: bytes) -> bytes:
        """The frame quotes what the host had chosen: quote our own last packet instead."""
        last = next((frame for _, frame in reversed(self.link.sent) if frame[12:14] in (b"\x08\x00", b"\x86\xdd")), None)
        if last is None:
            raise Unsupported("nothing to quote")
        if "icmp" in peer.get("ip", {}):
            size = peer["ip"]["icmp"]["quoted"]
            message = data[34:42] + self._same_quote(data[42:], last[14:], size, 4)
            message = message[:2] + b"\0\0" + message[4:]
            return data[:34] + message[:2] + checksum(message).to_bytes(2, "big") + message[4:]
        if "icmp6" in peer.get("ip6", {}) and "quoted" in peer["ip6"]["icmp6"]:
            size = peer["ip6"]["icmp6"]["quoted"]
            message = data[54:62] + self._same_quote(data[62:], last[14:], size, 6)
            message = message[:2] + b"\0\0" + message[4:]
            return data[:54] + message[:2] + checksum(message, pseudo6(data[22:38], data[38:54], 58, len(message))).to_bytes(2, "big") + message[4:]
        if peer.get("ip6", {}).get("icmp6", {}).get("type") == 135:
            probe = next(frame for _, frame in reversed(self.link.sent) if decode(frame).get("ip6", {}).get("src") == "::")
            return data[:12] + probe[12:]
        raise Unsupported("frame that depends on the host's choices")

    def _same_quote(self, recorded: bytes, ours: bytes, size: int, family: int) -> bytes:
        """Our packet cut to the recorded size, with the addresses and ports that the script changed on purpose."""
        quote = bytearray(ours[:size])
        span = range(12, 20) if family == 4 else range(8, 40)
        for i in span:
            quote[i] = recorded[i]
        return bytes(quote)

    # --- what the program does ---

    def _app(self, step: dict[str, Any]) -> None:
        text = step["app"]
        if re.match(r"(udp[46]) socket", text):
            self._open(text)
            return
        if re.match(r"tcp[46] socket", text):
            self._open_tcp(text)
            return
        if text.startswith("raw4 socket") and self.case["name"] == "id_and_df":
            return
        if text.startswith("sysctl "):
            name, value = text.removeprefix("sysctl ").split("=")
            if name.rpartition("/")[2] not in ("use_optimistic", "ping_group_range"):
                sysctl.set_(self.stack.sysctl, name, value)
            return
        if "ret" not in step:
            raise Unsupported(text)
        want = self.value(step["ret"])
        got = self._call(text, want)
        self.runtime.run_for(0)
        if got != want and not (isinstance(want, list) and want == [got, self._from]):
            self.differ(step, f"{text}: {want} expected, {got}")

    def _open(self, text: str) -> None:
        sock = self.stack.udp.socket(int(text[3]))
        for name, value in re.findall(r"([A-Z0-9_]+)=(?:[A-Z]+=)?(\w+)", text):
            self._option(sock, name, value)
        bound = re.search(r"bind\(([^,]+),(\d+)\)", text)
        if bound:
            sock.bind(b"" if bound[1] == "any" else parse_ip(bound[1]), int(bound[2]))
        peer = re.search(r"connect\('([^']+)', (\d+)\)", text)
        if peer:
            sock.connect(parse_ip(peer[1]), int(peer[2]))
            if self.case["name"].startswith("nud_reachable"):
                sock.send(b"x")
        self.socks.append(sock)
        self.stack.flush()

    def _open_tcp(self, text: str) -> None:
        self.tcp = self.stack.new_sock(int(text[3]))
        bound = re.search(r"bind\(any,(\d+)\)", text)
        if bound:
            api.bind(self.tcp, b"", int(bound[1]))
            api.listen(self.tcp, 8)

    def _connect_tcp(self, blocking: bool) -> int:
        if blocking:
            self.tcp = self.stack.new_sock(6)
            try:
                api.connect(self.tcp, parse_ip("fd78::50"), 80)
            except BlockingIOError:
                self.runtime.run_for(3_200 * MS)
            return api.take_error(self.tcp)
        api.connect(self.tcp, parse_ip("10.78.0.2"), 80)
        return 0

    def _option(self, sock: UdpSocket, name: str, value: str) -> None:
        if name == "IP_RECVERR":
            sock.recverr = value == "1"
        elif name == "IPV6_RECVERR":
            sock.recverr6 = value == "1"
        elif name == "IP_MTU_DISCOVER":
            sock.pmtu_disc = int(value)
        elif name == "IPV6_MTU_DISCOVER":
            sock.pmtu_disc6 = int(value)
        elif name == "SO_REUSEADDR":
            sock.reuseaddr = value == "1"
        elif name == "IP_MULTICAST_ALL":
            sock.multicast_all = value == "1"
        elif name == "IPV6_DONTFRAG":
            sock.dontfrag = value == "1"
        elif name == "SO_BINDTODEVICE":
            sock.bound_dev_if = self.stack.interface(bytes.fromhex(value).decode()).index
        elif name == "SO_RCVBUF":
            sock.set_rcvbuf(int(value))
        elif name == "UDP_NO_CHECK6_RX":
            sock.no_check6_rx = value == "1"
        elif name != "SO_SNDBUFFORCE":
            raise Unsupported(f"option {name}")

    _from: list[Any] = []  # noqa: RUF012  # where the last datagram came from

    def _call(self, text: str, want: Any) -> Any:
        if text.startswith("tcp connect"):
            try:
                number = self._connect_tcp("blocking" in text)
            except OSError as error:
                number = error.errno or 0
            self.stack.flush()
            return errno.errorcode[number] if number else 0
        if text == "raw icmp echo":
            icmp.send_echo(self.stack, parse_ip("10.78.0.2"), b"", 7, 1, bytes(8))
            self.stack.flush()
            return 16
        if not self.socks:
            raise Unsupported(text)
        sock = self.socks[-1]
        label = re.match(r"([ABC])\b(?: \([^)]*\))? (.+)", text)
        if label:
            sock = self.socks["ABC".index(label[1])]
            text = label[2]
        try:
            return self._do_call(sock, text, want)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        finally:
            self.stack.flush()

    def _do_call(self, sock: UdpSocket, text: str, want: Any) -> Any:
        if text == "bind to tentative address":
            sock.bind(parse_ip("fd78::1"), 0)
        if text.startswith("recvmsg(MSG_ERRQUEUE)"):
            report = sock.recv_error()
            return {
                "dlen": len(report.data),
                "addr": [format_ip(report.dst), report.dport],
                "errno": errno.errorcode[report.errno],
                "origin": report.origin,
                "type": report.type,
                "code": report.code,
                "info": report.info,
                "offender": format_ip(report.offender) if report.offender else None,
            }
        if text.startswith("recv() blocking"):
            return "timeout" if want == "timeout" else sock.recv()
        if text.startswith("recv"):
            datagram = sock.recv()
            self._from = [format_ip(datagram.source), datagram.sport]
            return len(datagram.data)
        if text == "SO_ERROR":
            number = sock.so_error()
            return errno.errorcode[number] if number else 0
        if "IP_MTU" in text or "IPV6_MTU" in text:
            return sock.mtu()
        if text.startswith("poll flags"):
            return str([sock.poll()])
        many = re.match(r"send (\d+) datagrams of (\d+) bytes", text)
        if many:
            for _ in range(int(many[1])):
                sock.send(bytes(int(many[2])))
            return int(many[1])
        return self._send(sock, text, want)

    def _send(self, sock: UdpSocket, text: str, want: Any) -> int:
        size = re.match(r"send(?:to)?\((\d+)", text) or re.match(r"send (\d+) bytes", text)
        length = int(size[1]) if size else want if isinstance(want, int) else 20
        data = bytes(i & 0xFF for i in range(length))
        if text.startswith("send") and sock.rport:
            return sock.transmit(sock.way(sock.destination(sock.raddr), sock.rport), data, confirm="MSG_CONFIRM" in text)
        host = re.search(r"sendto (\S+)", text)
        if "(.50)" in text:
            addr = "10.78.0.50"
        elif host and re.match(r"[0-9a-f]*[.:]", host[1]):
            addr = host[1]
        else:
            addr = "192.0.2.9" if "other dest" in text else "10.78.0.2" if sock.family == 4 else "fd78::2"
        return sock.sendto(data, parse_ip(addr), 9)

    # --- what the host says of itself ---

    def _counters(self, step: dict[str, Any]) -> None:
        """Compare the changes since the last reading; some scripts took one in between that they do not list."""
        now = self.stack.mib.snapshot()
        want = {name.replace(".", ""): value for name, value in step["counters"].items() if not _SKIPPED.search(name)}
        mld = want.pop("Icmp6OutMLDv2Reports", 0)
        for name in ("Ip6OutRequests", "Ip6OutTransmits", "Ip6OutMcastPkts", "Icmp6OutMsgs", "Icmp6OutType143"):
            if mld and isinstance(mld, int) and isinstance(want.get(name), int):
                want[name] -= mld
        want = {name: value for name, value in want.items() if value}
        found = [self._counter_differences(since, now, want) for since in self.baselines]
        self.baselines = [now]
        for line in min(found, key=len):
            self.differ(step, line)

    def _counter_differences(self, since: dict[str, int], now: dict[str, int], want: dict[str, Any]) -> list[str]:
        changed = {name: value - since.get(name, 0) for name, value in now.items() if value != since.get(name, 0)}
        found = []
        for name, value in want.items():
            got = changed.pop(name, 0)
            if not isinstance(value, dict) and got != value:
                found.append(f"counter {name}: {value} expected, {got}")
        found += [f"counter {name}: {value} unexpected" for name, value in changed.items() if not _SKIPPED.search(name) and self._counts(name)]
        return found

    def _counts(self, name: str) -> bool:
        """IPv6 cases list the counters of IPv6, others those of IPv4."""
        six = name.startswith(("Ip6", "Icmp6", "Udp6"))
        return six == (self.case["setup"].get("ipv6", "disabled") != "disabled" and not self.case["setup"].get("ipv4"))

    def _neigh(self, step: dict[str, Any]) -> None:
        for text, want in step["neigh"].items():
            addr = parse_ip(text)
            table = self.dev.neigh4 if len(addr) == 4 else self.dev.neigh6
            entry = table.entries.get(addr)
            state = STATE_NAMES[entry.state] if entry is not None else "none"
            wanted = self.value(want["state"])
            if state != wanted:
                self.differ(step, f"neighbour {text}: {wanted} expected, {state}")
            mac = self.value(want.get("lladdr"))
            if mac and entry is not None and format_mac(entry.mac) != mac:
                self.differ(step, f"neighbour {text}: {mac} expected, {format_mac(entry.mac)}")


def load(subject: str) -> list[dict[str, Any]]:
    """The recorded cases of a subject."""
    path = Path(__file__).parent.parent / "data" / "host" / f"{subject}.json"
    cases: list[dict[str, Any]] = json.loads(path.read_text())
    return cases


def replay(case: dict[str, Any]) -> list[str]:
    """Differences between the recording and a stack; empty when there are none. Raises Unsupported."""
    return Replay(case).go()

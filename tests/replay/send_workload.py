"""Replay of one recorded sender workload: the kernel's frames against the engine's, in virtual time.

A recording says what the program and the peer did and when, and which super-segments the kernel put on
the wire. The engine gets the same handshake values, calls and ACKs at the same instants; its
super-segments must have the same boundaries, flags and gso_size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pytcp.tcp import ack, cong, const, mtu, rtt, sendmsg, seq, tsq, xmit
from pytcp.tcp.sock import Sock
from tests.unit.harness import FakeDst, FakeHost, Sent, established, segment

US = 1000
OPTION_BITS = {"nodelay": const.NAGLE_OFF, "cork": const.NAGLE_CORK}


# us from the stamp of an event to the moment the kernel acted on it
LATENCY_US = {"ack": 10, "write": 20}
TIMER_SLACK_MS = 40


class Frame(NamedTuple):
    """What is compared of one super-segment."""

    start: int
    end: int
    flags: str
    gso_size: int
    rtx: bool


class Difference(NamedTuple):
    index: int
    kernel: Frame | None
    ours: Frame | None
    kernel_us: int
    ours_us: int


class Result(NamedTuple):
    kernel: list[tuple[Frame, int]]
    ours: list[tuple[Frame, int]]
    differences: list[Difference]
    returns: list[tuple[int, Any, Any]]  # (t_us, kernel's, ours) of writes that differ
    infos: list[tuple[str, str, int, int]]  # (label, field, kernel's, ours) that differ
    sk: Sock


def load(path: Path) -> dict[str, Any]:
    with path.open() as f:
        data: dict[str, Any] = json.load(f)
    return data


def make(config: dict[str, Any], handshake: dict[str, Any], host: FakeHost) -> Sock:
    """The connection as it stood right after the recorded handshake."""
    sysctl = host.sysctl
    for name, value in config.get("sysctls", {}).items():
        short = name.removeprefix("net.ipv4.")
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        setattr(sysctl, short, value)
    timestamps = bool(config.get("ts"))
    device_mtu = config.get("mtu") or 1500
    mss = min(config["mss"], device_mtu - 40)
    sk = established(
        host,
        cc=config.get("cc", "reno"),
        mss=mss - (12 if timestamps else 0),
        window=min(config["win"], 65535),
        wscale=config.get("wscale") or 0,
        sack=bool(config.get("sack")),
        timestamps=timestamps,
    )
    sk.dst = FakeDst(device_mtu)
    sk.pmtu_cookie = device_mtu
    sk.mss_clamp = mss
    mtu.sync_mss(sk, device_mtu)
    rtt.rtt_estimator(sk, handshake["rtt"])
    rtt.set_rto(sk)
    rtt.update_rtt_min(sk, handshake["min_rtt"], False)
    sk.rtt_seq = sk.snd_nxt
    sk.pacing_rate = handshake["pacing_rate"]
    sk.snd_cwnd = handshake["snd_cwnd"]
    sk.sndbuf = sysctl.tcp_wmem[1]
    for name, value in config.get("pre", []):
        if name == "sndbuf":
            sk.sndbuf_locked = True
        elif name == "max_pacing":
            sk.max_pacing_rate = value
            sk.pacing_status = 1
        else:
            set_option(sk, name, value)
    if sk.sndbuf_locked:
        sk.sndbuf = handshake["sndbuf"]
    else:
        sendmsg.init_sndbuf(sk)
    if config.get("gso_max_size"):
        sk.gso_max_size = min(sk.gso_max_size, config["gso_max_size"] - (sysctl.max_tcp_header + 1))
    if config.get("gso_max_segs"):
        sk.gso_max_segs = config["gso_max_segs"]
    sk.wstamp_ns = host.now_ns
    sk.lsndtime_ns = host.now_ns
    sk.cwnd_stamp = host.now_ns
    cong.init(sk)
    return sk


def set_option(sk: Sock, name: str, value: int) -> None:
    """The socket options workloads use, through the engine's own rooms where there is one."""
    from pytcp.tcp import sockopt

    numbers = {"nodelay": (6, 1), "cork": (6, 3), "notsent_lowat": (6, 25), "sndbuf": (1, 7), "max_pacing": (1, 47)}
    level, number = numbers[name]
    sockopt.setsockopt(sk, level, number, value)


def replay(data: dict[str, Any], run_index: int = 0) -> Result:
    """Run one recorded run through the engine."""
    config = data["config"]
    run = data["runs"][run_index]
    host = FakeHost(complete="manual" if config.get("htb") else "at_once")
    sk = make(config, run["handshake"], host)
    start = host.now_ns
    htb = bool(config.get("htb"))
    streams = any(step["do"] == "stream" for step in data["script"])
    kernel: list[tuple[Frame, int]] = []
    returns: list[tuple[int, Any, Any]] = []
    infos: list[tuple[str, str, int, int]] = []
    for event in run["events"]:
        kind = event["ev"]
        # an ACK is stamped before the write to the device, a write() before the system call
        host.advance_to(start + (event["t"] + LATENCY_US.get(kind, 0)) * US)
        if kind == "frame":
            frame = Frame(event["seq"][0], event["seq"][1], event["flags"], event["gso_size"], bool(event.get("rtx")))
            kernel.append((frame, event["t"]))
            if htb and host.in_ring:
                owner, skb, truesize = host.in_ring.pop(0)
                tsq.wfree(owner, skb, truesize)
        elif kind == "write":
            ours = _write(sk, event["n"], event.get("flags", ""))
            if ours != event["ret"]:
                returns.append((event["t"], event["ret"], ours))
        elif kind == "ack":
            _ack(sk, event, config)
        elif kind == "sockopt":
            set_option(sk, event["name"], event["val"])
        elif kind == "shutdown":
            sk.state = const.FIN_WAIT1
            sk.shutdown |= const.SEND_SHUTDOWN
            xmit.send_fin(sk)
        if streams and not sendmsg.stream_is_writeable(sk):
            # the program polls for POLLOUT, and a poll that finds no room asks to be woken
            sk.nospace = True
        if kind in ("info", "hostmem"):
            infos.extend(_compare_info(sk, event))
    # what the recording's end cut off must not be held against us; a timer may be late by the wheel
    last = run["events"][-1]["t"]
    host.advance_to(start + (last + 200) * US)
    for _ in range(TIMER_SLACK_MS):
        if len(host.sent) >= len(kernel):
            break
        host.advance(1000 * US)
    cut = config["mss"] if config.get("offload") is False else 0
    ours_frames = [(frame, (s.t_ns - start) // US) for s in host.sent for frame in _frames(s, cut)]
    if htb:
        # frames are recorded when they leave the class: what still waits in it is not compared
        ours_frames = ours_frames[: len(ours_frames) - len(host.in_ring)]
    return Result(kernel, ours_frames, _differences(kernel, ours_frames), returns, infos, sk)


def _frames(s: Sent, cut: int) -> list[Frame]:
    """A transmitted super-segment; with `cut` (a device without TSO) the frames it becomes below TCP."""
    start = s.seq - 1
    if not cut or s.length <= cut:
        return [Frame(start, start + s.length, s.flags, s.gso_size, False)]
    out = []
    for at in range(0, s.length, cut):
        end = min(at + cut, s.length)
        flags = s.flags if end == s.length else s.flags.replace("P", "").replace("F", "")
        out.append(Frame(start + at, start + end, flags, 0, False))
    return out


def _differences(kernel: list[tuple[Frame, int]], ours: list[tuple[Frame, int]]) -> list[Difference]:
    out = []
    for i in range(max(len(kernel), len(ours))):
        k = kernel[i] if i < len(kernel) else (None, -1)
        o = ours[i] if i < len(ours) else (None, -1)
        if k[0] is None or o[0] is None or k[0][:4] != o[0][:4]:
            out.append(Difference(i, k[0], o[0], k[1], o[1]))
    return out


_FLAGS = {"more": const.MSG_MORE, "eor": const.MSG_EOR, "oob": const.MSG_OOB}


def _write(sk: Sock, n: int, flags: str) -> Any:
    bits = 0
    for word in flags.replace("|", ",").split(","):
        bits |= _FLAGS.get(word.strip(), 0)
    try:
        return sendmsg.sendmsg(sk, bytes(n), bits)
    except OSError as e:
        import errno

        return errno.errorcode[e.errno or 0]


def _ack(sk: Sock, event: dict[str, Any], config: dict[str, Any]) -> None:
    from pytcp.tcp import input as tcp_input

    seq_at, payload = None, b""
    if event.get("note", "").startswith("peer data "):
        left, right = event["note"].removeprefix("peer data ").split(":")
        seq_at, payload = int(left) + 1, bytes(int(right) - int(left))
    seg = segment(
        sk,
        const.ACK | (const.PSH if payload else 0),
        seq=seq_at,
        payload=payload,
        ack=event["ack"] + 1,
        window=event["win"],
        sack=[(left + 1, right + 1) for left, right in event.get("sack", [])],
        ts=((sk.host.now_ns // 1_000_000) & 0xFFFFFFFF, 0) if config.get("ts") else None,
    )
    tcp_input.receive(sk, seg)


def _compare_info(sk: Sock, event: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    mine = {
        "snd_cwnd": sk.snd_cwnd,
        "cwnd": sk.snd_cwnd,
        "unacked": sk.packets_out,
        "notsent": sk.write_seq - sk.snd_nxt,
        "sndbuf": sk.sndbuf,
        "wmem_queued": sk.wmem_queued,
        "wmem_alloc": sk.wmem_alloc - 1,
        "autocorking": sk.mib.TCPAutoCorking,
        "snd_ssthresh": sk.snd_ssthresh,
        "ssthresh": sk.snd_ssthresh,
    }
    label = str(event.get("label", event["t"]))
    return [(label, k, event[k], mine[k]) for k in mine if k in event and event[k] != mine[k]]


__all__ = ["Difference", "Frame", "Result", "ack", "load", "replay", "seq"]

"""The words of one connection in `ss -tiemo`: tcp_info, timer, memory, process, in iproute2's order and units.

A fact that is zero (or as it always is) is left out, so what stands there means something. Times of the
round trip are ms with what decimals they have, rates bits per second: short (9.65Gbps), or to the last
digit with -n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Facts = dict[str, Any]

UNLIMITED = (1 << 64) - 1
UNKNOWN = 0xFFFFFFFF
OPT_TIMESTAMPS, OPT_SACK, OPT_WSCALE, OPT_ECN, OPT_ECN_SEEN, OPT_SYN_DATA = 1, 2, 4, 8, 16, 32
ALWAYS_RTO = 3_000_000  # us: not worth a word
ALWAYS_REORDERING = 3
NO_SSTHRESH = 0xFFFF


def rate(bits: float, numeric: bool) -> str:
    """Bits per second."""
    if numeric:
        return f"{bits:.0f}bps"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if bits >= size:
            return f"{bits / size:.3g}{unit}bps"
    return f"{bits:g}bps"


def span(ms: int) -> str:
    """Time left, the shorter the finer: 119min, 1min9sec, 10sec, 9.988ms, 988ms; nothing for nothing."""
    seconds, ms = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    text = ""
    if minutes:
        text = f"{minutes}min"
        ms = 0
        if minutes > 9:
            return text
    if seconds > 9:
        ms = 0
    if seconds:
        text += f"{seconds}" + ("." if ms else "sec")
    return text + (f"{ms:03}ms" if ms else "")


def timer(facts: Facts) -> str:
    """`timer:(on,200ms,0)`, or nothing."""
    found = facts["timer"]
    return f"timer:({found['kind']},{span(found['ms'])},{found['retrans']})" if found else ""


def memory(facts: Facts) -> str:
    """`skmem:(...)`: backlog and drops are always 0 here."""
    m = facts["memory"]
    return (
        f"skmem:(r{m['rmem_alloc']},rb{m['rcvbuf']},t{m['wmem_alloc']},tb{m['sndbuf']},f{m['forward_alloc']},w{m['wmem_queued']},"
        f"o{m.get('optmem', 0)},bl0,d0)"
    )  # fmt: skip


def md5keys(facts: Facts) -> str:
    """`md5keys:192.0.2.0/24=secret,...`, what is no letter or would divide as an octal number; nothing without keys."""
    return "md5keys:" + ",".join(f"{key['address']}/{key['prefix_len']}={_shown(key['key'])}" for key in facts["md5keys"]) if "md5keys" in facts else ""


def _shown(secret: list[int]) -> str:
    return "".join(chr(byte) if 0x20 < byte < 0x7F and chr(byte) not in "\\," else f"\\{byte:03o}" for byte in secret)


def details(facts: Facts) -> str:
    """What -e adds: inode, cookie, mark, IPV6_V6ONLY, and which directions are still open."""
    words = [f"ino:{facts['inode']}", f"sk:{facts['cookie']:x}"]
    if facts["mark"]:
        words.append(f"fwmark:{facts['mark']:#x}")
    if "shutdown" in facts:
        if facts["family"] == 6 and facts["state"] in ("LISTEN", "CLOSE"):
            words.append(f"v6only:{int(facts['v6only'])}")
        shut = facts["shutdown"]
        words.append(("-" if shut & 1 else "<") + "-" + ("-" if shut & 2 else ">"))
    return " ".join(words)


def users(facts: Facts, command: str, pid: int) -> str:
    """What -p adds: who holds the socket; nobody does once it was closed, or before it is accepted."""
    return f'users:(("{command}",pid={pid},fd={facts["fd"]}))' if facts["fd"] is not None else ""


def why(facts: Facts) -> str:
    """What the connection waits for, and what it waited for so far: time, share of its life, bytes that left then."""
    gates = sorted(facts["gates"].items(), key=lambda item: -item[1][0])
    life = sum(ns for _, (ns, _) in gates) or 1
    return " ".join([f"gate:{facts['gate']}", *(f"{name}:{ns // 1_000_000}ms({100 * ns / life:.1f}%)/{sent}" for name, (ns, sent) in gates)])


def info(facts: Facts, *, options: bool, numeric: bool) -> str:
    """What -i shows of a connection. `options`: what was negotiated as well (-e, -o)."""
    return " ".join(_words(facts, facts["info"], options, numeric))


def _words(facts: Facts, i: dict[str, int], options: bool, numeric: bool) -> Iterator[str]:
    if options:
        for bit, word in ((OPT_TIMESTAMPS, "ts"), (OPT_SACK, "sack"), (OPT_ECN, "ecn"), (OPT_ECN_SEEN, "ecnseen"), (OPT_SYN_DATA, "fastopen")):
            if i["options"] & bit:
                yield word
    yield facts["congestion"]
    yield from _pace(i)
    yield from _totals(i)
    yield from _rates(i, numeric)
    yield from _flight(i, facts["state"] == "LISTEN")
    yield from _receiving(i)


def _pace(i: dict[str, int]) -> Iterator[str]:
    if i["snd_wscale"] or i["rcv_wscale"]:
        yield f"wscale:{i['snd_wscale']},{i['rcv_wscale']}"
    if i["rto"] and i["rto"] != ALWAYS_RTO:
        yield f"rto:{i['rto'] / 1000:g}"
    if i["backoff"]:
        yield f"backoff:{i['backoff']}"
    if i["rtt"]:
        yield f"rtt:{i['rtt'] / 1000:g}/{i['rttvar'] / 1000:g}"
    if i["ato"]:
        yield f"ato:{i['ato'] / 1000:g}"
    yield from _present(i, ("mss", "snd_mss"), ("pmtu", "pmtu"), ("rcvmss", "rcv_mss"), ("advmss", "advmss"), ("cwnd", "snd_cwnd"))
    if 0 < i["snd_ssthresh"] < NO_SSTHRESH:
        yield f"ssthresh:{i['snd_ssthresh']}"


def _totals(i: dict[str, int]) -> Iterator[str]:
    names = ("bytes_sent", "bytes_retrans", "bytes_acked", "bytes_received", "segs_out", "segs_in", "data_segs_out", "data_segs_in")
    return _present(i, *((name, name) for name in names))


def _rates(i: dict[str, int], numeric: bool) -> Iterator[str]:
    if i["rtt"] and i["snd_mss"] and i["snd_cwnd"]:
        yield f"send {rate(i['snd_cwnd'] * i['snd_mss'] * 8_000_000 / i['rtt'], numeric)}"
    yield from _present(i, ("lastsnd", "last_data_sent"), ("lastrcv", "last_data_recv"), ("lastack", "last_ack_recv"))
    if i["pacing_rate"] and i["pacing_rate"] != UNLIMITED:
        most = i["max_pacing_rate"]
        yield f"pacing_rate {rate(i['pacing_rate'] * 8, numeric)}" + (f"/{rate(most * 8, numeric)}" if most and most != UNLIMITED else "")
    if i["delivery_rate"]:
        yield f"delivery_rate {rate(i['delivery_rate'] * 8, numeric)}"
    yield from _present(i, ("delivered", "delivered"), ("delivered_ce", "delivered_ce"))
    if i["delivery_rate_app_limited"]:
        yield "app_limited"
    busy = i["busy_time"]
    if busy:
        yield f"busy:{busy // 1000}ms"
        for name in ("rwnd_limited", "sndbuf_limited"):
            if i[name]:
                yield f"{name}:{i[name] // 1000}ms({100 * i[name] / busy:.1f}%)"


def _flight(i: dict[str, int], listening: bool) -> Iterator[str]:
    yield from _present(i, ("unacked", "unacked"))
    if i["retrans"] or i["total_retrans"]:
        yield f"retrans:{i['retrans']}/{i['total_retrans']}"
    yield from _present(i, ("lost", "lost"))
    if not listening:
        yield from _present(i, ("sacked", "sacked"))
    yield from _present(i, ("dsack_dups", "dsack_dups"))
    if i["reordering"] != ALWAYS_REORDERING:
        yield f"reordering:{i['reordering']}"
    yield from _present(i, ("reord_seen", "reord_seen"))


def _receiving(i: dict[str, int]) -> Iterator[str]:
    if i["rcv_rtt"]:
        yield f"rcv_rtt:{i['rcv_rtt'] / 1000:g}"
    yield from _present(i, ("rcv_space", "rcv_space"), ("rcv_ssthresh", "rcv_ssthresh"), ("notsent", "notsent_bytes"))
    if i["min_rtt"] not in (0, UNKNOWN):
        yield f"minrtt:{i['min_rtt'] / 1000:g}"
    yield from _present(i, ("rcv_ooopack", "rcv_ooopack"), ("snd_wnd", "snd_wnd"), ("rcv_wnd", "rcv_wnd"), ("rehash", "rehash"))


def _present(i: dict[str, int], *names: tuple[str, str]) -> Iterator[str]:
    """`word:value` of each that is not zero."""
    for word, name in names:
        if i[name]:
            yield f"{word}:{i[name]}"

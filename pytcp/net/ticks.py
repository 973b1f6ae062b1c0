"""When a timer of the modelled kernel really fires: on its tick, and late when it is long.

Linux keeps time for most timers in ticks (jiffies, `pytcp.hz`) and sorts them into a wheel whose
buckets grow with distance (4.8, 500ec2dbd1c3 "timers: Switch to a non-cascading wheel"). A timer of
D ticks fires in (D, D + 1] ticks; from 63 ticks on it is late by up to one bucket: level n holds
delays from 63·8^(n-1) ticks in buckets of 8^n. Never early. Measured for neighbour probes,
reassembly and retransmission alike (linux-tcp §14, linux-host).
"""

from __future__ import annotations

_LEVELS = 8


def expiry(now_ns: int, delay_ns: int, tick_ns: int) -> int:
    """Absolute time, ns, at which a timer started now for `delay_ns` fires."""
    jiffy = now_ns // tick_ns
    when = jiffy + -(-delay_ns // tick_ns)
    delta = when - jiffy
    level = 0
    limit = 63
    while delta >= limit and level < _LEVELS:
        level += 1
        limit <<= 3
    shift = 3 * level
    return (((when >> shift) + 1) << shift) * tick_ns

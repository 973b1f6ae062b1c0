"""What Linux 6.18 put on the wire for scripted senders, the engine puts on the wire.

Recordings under tests/data/send were taken from a running kernel over a TAP (first of five runs).
Where all five runs had the same frames, ours must be the same to the byte, with the same results of
writes and the same memory figures and counters; where they vary with ACK timing, up to the first frame that varies.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytcp.lab.oracle import replay as workloads
from pytcp.lab.oracle.compare import compare
from pytcp.tcp.sock import Sock

from .send_workload import load, replay

DATA = Path(__file__).parent.parent / "data" / "send"
FILES = sorted(DATA.glob("*.json"))
# the recording does not say when the program polled in vain, or with which timestamps the peer acknowledged
UNSAID = {"sndbuf_growth", "frame_acks_rtt5_ts_cubic"}
VARYING = [path for path in FILES if not load(path)["stability"]["frame_boundaries_and_flags_identical"] and path.stem not in UNSAID]
TICK_US = 4000
MS = 1_000_000
AT_ONCE_US = 300
# the software-GSO device's recording ends before the timer that flushes the tail
CUT_SHORT = {"no_gso"}
# the recording's end comes before a timer, or its frames follow round trips to the microsecond: replayed as tools/compare-kernel does
ALIGNED = {"no_gso", "pacing_10MBps"}
COUNTERS = ("TcpOutSegs", "TcpExtTCPOrigDataSent", "TcpExtTCPAutoCorking", "TcpExtTCPLossProbes", "TcpExtTCPTimeouts")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_engine_sends_the_super_segments_linux_sent(path: Path) -> None:
    data = load(path)
    result = replay(data)
    stability = data["stability"]
    if stability["frame_boundaries_and_flags_identical"]:
        limit = len(result.kernel) if path.stem in CUT_SHORT else max(len(result.kernel), len(result.ours))
        assert [d for d in result.differences if d.index < limit] == []
        assert result.returns == []
        assert result.infos == []
    else:
        limit = min(stability["first_difference_at_frame"], len(result.kernel))
        assert limit > 0
        assert [d for d in result.differences if d.index < limit] == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_frames_leave_when_linux_sent_them(path: Path) -> None:
    data = load(path)
    if not data["stability"]["frame_boundaries_and_flags_identical"] or data["config"].get("htb"):
        pytest.skip("the kernel's own runs differ in time, or the frame time is the class's")
    result = replay(data)
    causes = [e["t"] for e in data["runs"][0]["events"] if e["ev"] in ("write", "ack", "sockopt", "shutdown")]
    for (frame, kernel_us), (_, ours_us) in zip(result.kernel, result.ours, strict=False):
        since = min((kernel_us - t for t in causes if t <= kernel_us), default=kernel_us)
        if since <= AT_ONCE_US:
            allowed = AT_ONCE_US
        else:
            # a timer: its tick's phase is not recorded, and from 63 ticks on the wheel is coarser
            allowed = (8 if since >= 63 * TICK_US else 1) * TICK_US + AT_ONCE_US
        assert abs(ours_us - kernel_us) <= allowed, (frame, kernel_us, ours_us)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_counters_are_those_of_linux(path: Path) -> None:
    """Of the run that is replayed: where the kernel's runs differ, by when acknowledgements came, it is given those of this one."""
    data = load(path)
    run = data["runs"][0]
    theirs = {name: run["counters"].get(name, 0) for name in COUNTERS}
    assert theirs["TcpOutSegs"] > 0
    if path.stem in ALIGNED:
        twin, _ = workloads.best(data, run, lambda twin: compare(run, twin, counters=False))
        assert {name: twin["counters"].get(name, 0) for name in COUNTERS} == theirs
        return
    sk = replay(data).sk
    for _ in range(TICK_US // 1000):
        if counted(sk) == theirs:
            break
        sk.host.advance(MS)  # the last timer may still be to come: its tick's phase is not recorded
    assert counted(sk) == theirs


@pytest.mark.parametrize("path", VARYING, ids=lambda p: p.stem)
def test_what_varies_from_run_to_run_follows_the_acknowledgements(path: Path) -> None:
    """Given those of one run when the kernel had them, all frames of that run come, at the times of that run."""
    data = load(path)
    run = data["runs"][0]
    _, differences = workloads.best(data, run, lambda twin: compare(run, twin, counters=False))
    assert [difference for difference in differences if difference.kind in ("frame", "time")] == []


def counted(sk: Sock) -> dict[str, int]:
    return {name: getattr(sk.mib, name.removeprefix("TcpExt")) for name in COUNTERS}

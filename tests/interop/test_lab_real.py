"""Experiments over a TAP: the same variants against the machine's kernel, and its counters beside ours."""

from __future__ import annotations

import pytest

from pytcp.lab.experiment import ExperimentError, Setting
from pytcp.lab.runs import run_all_real

pytestmark = pytest.mark.tap


def counter(rows: list[tuple[str, ...]], name: str) -> tuple[int, int]:
    """(pytcp's, the kernel's)."""
    row = next(row for row in rows if row[0] == name)
    return int(row[1].replace(",", "")), int(row[2].replace(",", ""))


def test_what_leaves_pytcp_is_what_the_kernel_counts() -> None:
    """2 MB in super-segments over 10 ms: the delay line keeps them whole, so the packets of one side are those of the other."""
    outcome = run_all_real("tso-autosizing", ["xmit"], sets=[("rtt", "10ms")]).outcomes["xmit"]
    rows = outcome.tables[0].rows
    out, received = counter(rows, "IpOutRequests")[0], counter(rows, "IpInReceives")[1]
    assert out == received < 1382, "bursts, not segments"
    assert counter(rows, "IpInReceives")[0] == counter(rows, "IpOutRequests")[1]
    assert counter(rows, "TcpRetransSegs") == (0, 0)
    # SYN, ACK, FIN or its ACK, and 1382 segments or one more where the kernel's window edge cuts one
    assert 1384 <= outcome.figures["TcpOutSegs"] <= 1400


def test_the_kernel_fills_the_window_that_each_default_offers() -> None:
    small: list[tuple[str, Setting]] = [("size", "200kB"), ("rtt", "40ms")]
    outcomes = run_all_real("scaling-ratio", ["65-never", "128-never"], sets=small).outcomes
    for name, scale, clamp in (("65-never", 0, 31832), ("128-never", 1, 64088)):
        assert (outcomes[name].figures["window_scale"], outcomes[name].figures["window_clamp"]) == (scale, clamp)
    # 200,000 bytes in windows of 32,120 are seven round trips, in windows of 64,240 four; the kernel's own slow start comes before
    assert outcomes["65-never"].figures["seconds"] > 7 * 0.04


def test_the_kernels_delayed_ack_is_what_a_missed_completion_waits_for() -> None:
    """pytcp answers a kernel client in two writes; one completion in fifty calls nobody."""
    outcomes = run_all_real("autocork-nodelay", ["mainline", "any_nonagle"]).outcomes
    held = outcomes["mainline"]
    assert held.figures["missed"] > 0
    assert held.figures["send_p100"] > 38
    assert counter(held.tables[0].rows, "TcpExtDelayedACKs")[1] > 0
    # a socket that is never held cannot miss a completion
    assert (outcomes["any_nonagle"].figures["missed"], outcomes["any_nonagle"].figures["TCPAutoCorking"]) == (0, 0)


def test_what_cannot_run_over_a_tap_says_why() -> None:
    with pytest.raises(ExperimentError, match="hystart-reset runs in virtual time only"):
        run_all_real("hystart-reset")
    with pytest.raises(ExperimentError, match="rate is not used with --real"):
        run_all_real("tso-autosizing", sets=[("rate", "1Gbit")])

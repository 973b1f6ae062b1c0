"""Where the time goes: what the profile's figures are made of, on statistics made by hand and on one run of cProfile."""

from __future__ import annotations

import cProfile
import os
import pstats
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pytcp
from pytcp.cli import profile as cli
from pytcp.lab import profile
from pytcp.tcp import rtt
from pytcp.wire import checksum

ROOT = Path(pytcp.__file__).parent
POLL = ("~", 0, "<method 'poll' of 'select.epoll' objects>")
WRITEV = ("~", 0, "<built-in method posix.writev>")
LEN = ("~", 0, "<built-in method builtins.len>")
ACK = (str(ROOT / "tcp" / "ack.py"), 10, "tcp_ack")
RX = (str(ROOT / "net" / "interface.py"), 20, "rx")
TURN = (os.path.join(os.sep, "venv", "site-packages", "trio", "_core", "_run.py"), 30, "unrolled_run")


def row(calls: int, own: float, callers: dict[Any, Any] | None = None) -> tuple[int, int, float, float, dict[Any, Any]]:
    return calls, calls, own, own, callers or {}


def test_a_room_is_in_one_layer_and_there() -> None:
    rooms = [room for rooms in profile.LAYERS.values() for room in rooms]
    assert len(rooms) == len(set(rooms))
    assert [room for room in rooms if not (ROOT / room).is_dir() and not (ROOT / f"{room}.py").is_file()] == []


def test_a_file_is_found_in_its_layer() -> None:
    assert profile.layer_of(rtt.__file__) == "acknowledgement"
    assert profile.layer_of(str(ROOT / "tcp" / "cong" / "cubic.py")) == "acknowledgement"
    assert profile.layer_of(str(ROOT / "tcp" / "info.py")) == "rest of TCP"
    assert profile.layer_of(checksum.__file__) == "IP in and out"
    assert profile.layer_of(str(ROOT / "sockets" / "http" / "server.py")) == "sockets, streams"
    assert profile.layer_of(TURN[0]) == "trio"
    assert profile.layer_of(str(ROOT / "lab" / "services.py")) == profile.PROGRAM
    assert profile.layer_of(os.path.join(os.sep, "srv", "site-packages", "httpx", "client.py")) == profile.PROGRAM


def test_built_ins_count_for_their_callers_and_system_calls_for_the_kernel() -> None:
    stats = {
        ACK: row(10, 0.2),
        RX: row(20, 0.3),
        LEN: row(30, 0.3, {ACK: (10, 10, 0.1, 0.1), RX: (20, 20, 0.2, 0.2)}),
        WRITEV: row(10, 0.2, {RX: (10, 10, 0.2, 0.2)}),
    }
    layers, functions = profile.spread(stats, operations=10, user_us=40.0, system_us=10.0)
    assert (layers["acknowledgement"].calls, layers["acknowledgement"].us) == pytest.approx((2, 15))
    assert (layers["IP in and out"].calls, layers["IP in and out"].us) == pytest.approx((4, 25))
    assert (layers[profile.SYSTEM].calls, layers[profile.SYSTEM].us) == pytest.approx((1, 10))
    assert ("several", LEN[2]) in [(layer, name) for layer, name, _ in functions]
    assert functions[-1][2].us == min(cost.us for *_, cost in functions), "dearest first"


def test_what_the_profiler_adds_is_nobodys_cost() -> None:
    """Each call is dearer by 10 ms for who is called and by 5 ms for who calls; a function never costs less than nothing."""
    stats = {ACK: row(10, 0.2 + 0.1 + 0.05), LEN: row(10, 0.3 + 0.1, {ACK: (10, 10, 0.4, 0.4)}), TURN: row(1, 0.5 + 0.01), RX: row(10, 0.05)}
    layers, _ = profile.spread(stats, operations=1, user_us=100.0, system_us=0.0, overhead=profile.Overhead(0.01, 0.005))
    assert (layers["acknowledgement"].us, layers["trio"].us) == pytest.approx((50, 50))
    assert (layers["IP in and out"].calls, layers["IP in and out"].us) == (10, 0)


def test_the_time_in_the_kernel_is_the_kernels_to_tell() -> None:
    """cProfile counts as much as it likes for a call in which the thread sleeps or is put aside."""
    stats = {TURN: row(4, 0.3), POLL: row(4, 900.0, {TURN: (4, 4, 900.0, 900.0)}), WRITEV: row(4, 100.0, {TURN: (4, 4, 100.0, 100.0)})}
    layers, functions = profile.spread(stats, operations=4, user_us=30.0, system_us=10.0)
    assert (layers["trio"].us, layers[profile.SYSTEM].us) == pytest.approx((30, 10))
    assert {name: cost.us for _, name, cost in functions}[POLL[2]] == pytest.approx(9)


def test_the_profiler_is_found_to_cost_something() -> None:
    overhead = profile.calibrate(2000)
    assert overhead.called + overhead.calling > 0


def test_a_real_profile_has_the_shape_that_is_read() -> None:
    profiler = cProfile.Profile()
    filt = rtt.WindowedMin(0, 100)
    profiler.enable()
    for time in range(50):
        filt.update(10, time, 200)
    profiler.disable()
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    layers, functions = profile.spread(stats, operations=50, user_us=2.0, system_us=0.0)
    assert layers["acknowledgement"].calls >= 1
    assert any(name.endswith(" update") and name.startswith("tcp/rtt.py:") for _, name, _ in functions)


def test_the_command_prints_one_table_for_each_operation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layers = {layer: profile.Cost(2, 10) for layer in profile.LAYERS}
    functions = [("trio", "_core/_run.py:30 unrolled_run", profile.Cost(3, 12)), ("device", "link/tap.py:1 poll", profile.Cost(1, 2))]

    def report(name: str) -> profile.Report:
        return profile.Report(profile.WORKS[name].unit, 1234, 130.0, 65160.0, layers, functions)

    monkeypatch.setattr(profile, "run", lambda names, sources, seconds: {name: report(name) for name in names})
    result = CliRunner().invoke(cli.command, ["bulk", "--seconds", "1", "--functions", "1", "--sources", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert result.output.count("one super-segment") == 2
    assert "one super-segment sent of 65,160 bytes, of 1,234 in 1 s" in result.output
    assert "unrolled_run" in result.output and "link/tap.py" not in result.output
    line = next(line for line in result.output.splitlines() if line.startswith("in all"))
    assert line.split() == ["in", "all", f"{2.0 * len(layers):.1f}", "130.0"]

"""What the demo, the benchmark and the doctor print: tables, last lines, JSON, exit status."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from trio.testing import MockClock

from pytcp import native
from pytcp.cli.bench import ROWS, cells
from pytcp.cli.demo import fresh_capture, legend, size, table, verdict, writable
from pytcp.cli.doctor import verdict as doctors_verdict
from pytcp.lab import machine, netns
from pytcp.lab.machine import MISSING, OK, OPTIONAL, Check, examine, tun_device
from pytcp.lab.mainjob import Check as Finding
from pytcp.lab.mainjob import MainJob, Report, Sizes, Transfer, data_folder


def printed(lines: list[str]) -> list[str]:
    return list(map(click.unstyle, lines))


@pytest.fixture
def report() -> Report:
    return Report(
        transfers=[
            Transfer("curl fetches, IPv4", "clean", 125_000_000, 0.5, 3, 2, 2),
            Transfer("pytcp pings the kernel", "clean", 0, 0.0, None, 0, 1),
        ],
        checks=[Finding("clean: one", True), Finding("clean: two", True), Finding("clean: three", False, "0 of 3 answered")],
        pcap="x.pcapng",
    )


def test_125_million_bytes_in_half_a_second_are_2_gigabits_per_second(report: Report) -> None:
    line = next(line for line in printed(table(report)) if line.startswith("curl"))
    assert line.split()[-7:] == ["clean", "119", "MiB", "0.500", "2.00", "3", "2/2"]


def test_a_transfer_that_took_no_time_has_no_rate_and_unknown_retransmits_stay_empty(report: Report) -> None:
    line = next(line for line in printed(table(report)) if line.startswith("pytcp pings"))
    assert line.split()[-5:] == ["0", "B", "0.000", "0.00", "0/1"]


def test_80_columns_hold_the_demos_table(report: Report) -> None:
    names = ("the kernel pings pytcp", "pytcp pings the kernel", "pytcp fetches, IPv6", "100 echoes at once", "the kernel sends")
    report.transfers = [Transfer(name, "impaired", 99_900 << 10, 123.456, 1_234_567, 2, 2) for name in names]
    report.checks += [Finding(f"impaired: {number}", True) for number in range(20)]
    assert max(map(len, printed(table(report)))) <= 80


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (384, "384 B"), (999, "999 B"), (1000, "1 KiB"), (6_553_600, "6.2 MiB"), (16 << 20, "16 MiB"), (100 << 20, "100 MiB"),
     (104_805_171, "99.9 MiB"), (1000 << 20, "1 GiB"), (4_106_511_072, "3.8 GiB"), (5000 << 30, "5000 GiB")],
)  # fmt: skip
def test_a_size_has_three_digits_and_a_unit(number: int, text: str) -> None:
    assert size(number) == text


def test_the_demos_last_line_counts_the_checks(report: Report) -> None:
    assert verdict(report) == "demo: 2 checks passed, 1 failed"


def test_the_demos_json_says_the_same_as_its_table(report: Report) -> None:
    found = json.loads(json.dumps(report.as_json()))
    assert (found["passed"], found["failed"]) == (2, 1)
    assert found["transfers"][0]["gbps"] == 2.0
    assert found["transfers"][1]["retransmits"] is None
    assert found["transfers"][0]["duplicates"] == 0
    assert found["checks"][2] == {"name": "clean: three", "passed": False, "detail": "0 of 3 answered"}


def test_every_check_is_in_a_line_of_the_table(report: Report) -> None:
    report.checks += [Finding("impaired: the wire lost packets on the way out", True), Finding("clean: the testbed leaves nothing behind", False)]
    lines = printed(table(report))
    cells = [line.split()[-1].split("/") for line in lines[1:]]
    assert sum(int(good) for good, _ in cells) == 3
    assert sum(int(checks) for _, checks in cells) == len(report.checks)
    assert lines[-1].startswith("wire, capture, cleanup")


def test_the_legend_explains_the_words_that_are_in_the_table(report: Report) -> None:
    assert legend(report) == []  # three retransmits on the clean wire, and nobody said that they were needless
    report.transfers[0].duplicates = 2
    assert [line.split(", ")[0] for line in legend(report)] == ["clean: of 3 retransmits 2 were needless"]
    report.transfers[0].duplicates = 0
    report.transfers.append(Transfer("curl fetches, IPv4", "impaired", 1, 1.0, 3, 2, 2))
    assert legend(report) == ["impaired: 1 % lost, 1 % reordered, 0.1 % duplicated, 0.1 % corrupted, each way"]


def test_each_capture_of_the_demo_is_a_new_file_and_a_failed_run_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with fresh_capture() as first, fresh_capture() as second:
        assert first != second
    assert sorted(map(str, tmp_path.iterdir())) == sorted([first, second])
    with pytest.raises(KeyboardInterrupt), fresh_capture() as third:
        raise KeyboardInterrupt
    assert not Path(third).exists()


def test_an_output_file_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(click.FileError, match="No such file or directory"):
        writable(str(tmp_path / "no" / "file.json"))


def test_a_step_that_raises_is_a_failed_check_and_the_next_step_runs() -> None:
    job = MainJob(Sizes(), lambda text, share: None)

    async def first() -> None:
        async with job.step("first", 10):
            raise ConnectionResetError(104, "Connection reset by peer")

    async def main() -> None:
        await first()
        async with job.step("second", 10):
            job.check("it works", True)

    trio.run(main)
    assert [(c.name, c.passed) for c in job.report.checks] == [("clean: first finishes", False), ("clean: it works", True)]
    assert [(t.good, t.checks) for t in job.report.transfers] == [(0, 1), (1, 1)]


def test_a_step_that_takes_too_long_is_a_failed_check() -> None:
    job = MainJob(Sizes(), lambda text, share: None)

    async def main() -> None:
        async with job.step("slow", 5):
            await trio.sleep(6)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert job.report.checks == [Finding("clean: slow finishes", False, "took too long")]


def test_ctrl_c_is_not_a_failed_check() -> None:
    job = MainJob(Sizes(), lambda text, share: None)

    async def main() -> None:
        async with job.step("interrupted", 5):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert not job.report.checks


def test_what_a_killed_demo_left_is_removed_by_the_next_but_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, locked, young, other = (tmp_path / name for name in ("pytcp-demo-dead", "pytcp-demo-alive", "pytcp-demo-young", "somebody-demo-dead"))
    for folder in (abandoned, locked, young, other):
        folder.mkdir()
        (folder / "clean").write_bytes(b"data")
        if folder is not young:
            os.utime(folder, (1, 1))
    held = os.open(locked, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        with data_folder() as folder:
            assert folder.parent == tmp_path
            assert not abandoned.exists()
            assert all((kept / "clean").exists() for kept in (locked, young, other))
            os.utime(folder, (1, 1))
            with data_folder():
                assert folder.exists(), "it is locked"
    finally:
        os.close(held)
    assert sorted(tmp_path.iterdir()) == sorted((locked, young, other))


def test_a_second_ctrl_c_waits_until_the_demos_data_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = shutil.rmtree

    def interrupted(path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(path)

    monkeypatch.setattr("shutil.rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), data_folder() as folder:
        (folder / "clean").write_bytes(bytes(1000))
        raise KeyboardInterrupt
    assert not folder.exists()


def test_the_benchmarks_ratios_are_ours_over_theirs() -> None:
    figures = {"bulk_out_gbps": 10.0, "bare_loop": {"bulk_out_gbps": 40.0}, "kernel_veth": {"bulk_out_gbps": 20.0}}
    row = next(row for row in ROWS if row.key == "bulk_out_gbps")
    assert cells(row, figures) == [row.label, "10.0", ">= 10", "40.0", "0.25", "20.0", "0.50"]


def test_what_a_yardstick_has_not_stays_empty_and_what_was_not_measured_has_no_line() -> None:
    figures = {"idle_bytes_per_conn": 4000.0, "bare_loop": {"idle_bytes_per_conn": None}, "kernel_veth": {}}
    row = next(row for row in ROWS if row.key == "idle_bytes_per_conn")
    assert cells(row, figures) == [row.label, "4,000", "~ 4,000", "", "", "", ""]
    assert cells(ROWS[0], figures) is None


@pytest.mark.parametrize(
    ("statuses", "status", "words"),
    [
        ([OK, OK], 0, "doctor: everything is here"),
        ([OK, OPTIONAL], 0, "doctor: everything needed is here (1 optional thing is not)"),
        ([OPTIONAL, OPTIONAL], 0, "doctor: everything needed is here (2 optional things are not)"),
        ([OPTIONAL, MISSING], 1, "doctor: the testbed does not work here: thing 1"),
    ],
)
def test_the_doctor_fails_only_for_what_the_testbed_needs(statuses: list[Any], status: int, words: str) -> None:
    checks = [Check(f"thing {number}", found, "") for number, found in enumerate(statuses)]
    assert doctors_verdict(checks) == (words, status)


def test_a_program_that_only_the_demo_needs_is_no_fault_of_the_testbeds() -> None:
    checks = [Check("testbed", OK, "made"), Check("curl", MISSING, "not installed"), Check("socat", OPTIONAL, "not installed")]
    assert doctors_verdict(checks) == ("doctor: the demo needs curl; the testbed works", 1)


def test_who_asked_for_no_c_helpers_is_told_how_to_get_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HAVE_C", False)
    monkeypatch.setattr(native, "reason", "PYTCP_NO_C=1")
    assert (machine.c_helpers().status, machine.c_helpers().remedy) == (OPTIONAL, "unset PYTCP_NO_C")
    monkeypatch.setattr(native, "reason", "not built: no module")
    assert "install pytcp again" in machine.c_helpers().remedy


def test_root_is_not_told_to_run_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns.Namespace, "_make", refused)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    found = machine.namespaces()
    assert found.status == MISSING
    assert found.detail == "cannot make a network namespace: mount on /run/netns: Operation not permitted"
    assert found.remedy.startswith("in a container: --cap-add SYS_ADMIN")


def refused(self: netns.Namespace) -> None:
    """As pyroute2 says it."""
    raise OSError(1, "mount rundir failed", self.name)


def test_the_doctor_tells_an_absent_tun_device_from_a_file_in_its_place(tmp_path: Path) -> None:
    absent = tun_device(str(tmp_path / "tun"))
    assert absent.status == OPTIONAL  # a veth pair does as well
    assert absent.detail.startswith(f"no {tmp_path}/tun: testbeds use a veth pair")
    assert "modprobe tun" in absent.remedy
    (tmp_path / "tun").touch()
    wrong = tun_device(str(tmp_path / "tun"))
    assert wrong.status == OPTIONAL
    assert f"mknod {tmp_path}/tun c 10 200" in wrong.remedy


def test_whatever_the_doctor_finds_missing_comes_with_something_to_do() -> None:
    for check in examine():
        assert check.status in (OK, OPTIONAL, MISSING)
        assert check.detail
        if check.status == MISSING:
            assert check.remedy


def test_the_doctor_looks_for_every_package_that_pytcp_depends_on() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(machine.PACKAGES.values()) == {re.match(r"[\w-]+", text)[0] for text in project["dependencies"]}  # type: ignore[index]


def test_the_doctor_calls_a_missing_package_as_pip_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dns", None)
    found = machine.packages()
    assert (found.status, found.detail) == (MISSING, "cannot import dnspython")
    assert found.remedy.endswith("pip install dnspython")


def test_what_the_doctor_tells_to_run_as_root_is_there_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """sudo has a PATH of its own, without the virtual environment's programs."""
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(machine.rootless, "entered", lambda: None)
    monkeypatch.setattr(machine.rootless, "lacking", lambda: ["CAP_NET_ADMIN"])
    monkeypatch.setattr(machine.rootless, "probe", lambda: "a reason")
    found = machine.privileges()
    assert found.status == MISSING
    words = shlex.split(found.remedy.partition(": ")[2])
    assert words[0] == "sudo"
    assert Path(words[1]).is_absolute() and Path(words[1]).exists()

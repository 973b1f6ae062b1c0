"""`--record`: what a run did, as a script that passes where it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pytcp.cli.drill import command
from pytcp.drill.run import Settings, record_file, run_text

HERE = Path(__file__).parent
EVERY = sorted(path.relative_to(HERE).with_suffix("").as_posix() for path in HERE.rglob("*.pkt"))
ON_THE_KERNEL = ["handshake/blocking_connect", "handshake/refused", "handshake/second_connection_of_a_listener", "data/fast_retransmit_by_sack"]


@pytest.mark.parametrize("name", EVERY)
def test_what_was_recorded_passes(name: str) -> None:
    text = record_file(HERE / f"{name}.pkt")
    assert "\n" in text
    result = run_text(text, "recorded.pkt")
    assert result.verdict == "pass", f"{result.report}\n{text}"


@pytest.mark.tap
@pytest.mark.parametrize("name", ON_THE_KERNEL)
def test_what_was_recorded_on_the_kernel_passes_there(name: str) -> None:
    text = record_file(HERE / f"{name}.pkt", "kernel")
    result = run_text(text, "recorded.pkt", "kernel", settings=Settings({"tolerance_usecs": "20000"}))
    assert result.verdict == "pass", f"{result.report}\n{text}"


def test_results_and_packets_are_those_of_the_run(tmp_path: Path) -> None:
    wrong = (HERE / "data" / "read_in_pieces.pkt").read_text().replace("read(4, ..., 1000) = 100", "read(4, ..., 1000) = 77").replace("ack 301", "ack 999")
    (tmp_path / "wrong.pkt").write_text(wrong)
    text = record_file(tmp_path / "wrong.pkt")
    assert "read(4, ..., 1000) = 100\n" in text
    assert "> . 1:1(0) ack 301 win" in text


OPEN = """
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 5) = 0
+0 < S 0:0(0) win 65535 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.01 < . 1:1(0) ack 1 win 1000
+0 accept(3, ..., ...) = 4
"""


def recorded(tmp_path: Path, body: str) -> str:
    """What comes of an open connection and these lines."""
    (tmp_path / "x.pkt").write_text(OPEN + body)
    return record_file(tmp_path / "x.pkt")


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("getsockopt(4, SOL_TCP, TCP_KEEPIDLE, [7], [4]) = 0", "getsockopt(4, SOL_TCP, TCP_KEEPIDLE, [7200], [4]) = 0"),
        ("ioctl(4, SIOCINQ, [7]) = 0", "ioctl(4, SIOCINQ, [0]) = 0"),
        ("poll([{fd=4, events=POLLIN|POLLOUT, revents=POLLIN}], 1, 0) = 7", "poll([{fd=4, events=POLLIN|POLLOUT, revents=POLLOUT}], 1, 0) = 1"),
        (
            "poll([{fd=3, events=POLLIN}, {fd=4, events=POLLOUT, revents=0}], 2, 0) = 0",
            "poll([{fd=3, events=POLLIN}, {fd=4, events=POLLOUT, revents=POLLOUT}], 2, 0) = 1",
        ),
        ("epoll_create(1) = 5\n+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1", "epoll_wait(5, {events=0, ptr=0}, 1, 0) = 0"),
        (
            "epoll_create(1) = 5\n+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLOUT|EPOLLET, fd=4}) = 0\n+0 epoll_wait(5, {events=0, ptr=0}, 1, 0) = 0",
            "epoll_wait(5, {events=EPOLLOUT, fd=4}, 1, 0) = 1",
        ),
    ],
)
def test_what_a_call_found_is_in_the_script(tmp_path: Path, written: str, found: str) -> None:
    assert f"{found}\n" in recorded(tmp_path, f"+0 {written}\n")


@pytest.mark.parametrize(
    ("written", "call"),
    [
        ("write(4, ..., 10) = 9 // a comment = (this)", "write(4, ..., 10) = 10"),
        ("send(4, ..., (3), 0) = 7 (a note = 7)", "send(4, ..., (3), 0) = 3"),
        (
            'setsockopt(4, SOL_TCP, TCP_CONGESTION, "a)\\")=", 5) = 0',
            'setsockopt(4, SOL_TCP, TCP_CONGESTION, "a)\\")=", 5) = -1 ENOENT (No such file or directory)',
        ),
    ],
)
def test_the_result_stands_behind_the_call(tmp_path: Path, written: str, call: str) -> None:
    assert f"+0 {call}\n" in recorded(tmp_path, f"+0 {written}\n")


def test_what_a_block_prints_is_not_in_the_script(tmp_path: Path) -> None:
    (tmp_path / "x.pkt").write_text("0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 %{ print('frob') }%\n")
    done = CliRunner().invoke(command, [str(tmp_path / "x.pkt"), "--record"], standalone_mode=False)
    assert done.stdout.startswith("// Recorded")
    assert done.stderr == "frob\n"


def test_times_are_as_fine_as_the_scripts_own(tmp_path: Path) -> None:
    body = "".join(f"+.0004 < . {1 + 10 * i}:{11 + 10 * i}(10) ack 1 win 1000\n+0 > . 1:1(0) ack {11 + 10 * i}\n" for i in range(4))
    times = [float(line.split()[0]) for line in recorded(tmp_path, body).splitlines() if "(10) ack" in line]
    assert len(times) == 4
    assert all(abs(time - 0.0004) < 0.00011 for time in times)  # a step of the script takes 10 us, too


def test_packets_of_an_older_connection_are_comments(tmp_path: Path) -> None:
    body = """+0 write(4, ..., 10) = 10
+0 > P. 1:11(10) ack 1
+0 listen(3, 5) = 0
+0 < S 0:0(0) win 65535 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.5 close(3) = 0
"""
    text = recorded(tmp_path, body)
    again = [line for line in text.splitlines() if "P. 1:11(10)" in line and "8080 > 40000" in line]
    assert again, text
    assert all(line.startswith("// of another connection, +0.") for line in again)
    assert run_text(text, "recorded.pkt").verdict == "pass", text


def test_the_command_prints_the_script() -> None:
    where = str(HERE / "data" / "blocking_read.pkt")
    done = CliRunner().invoke(command, [where, "--record"], standalone_mode=False)
    assert done.return_value == 0
    assert "+0...0.04 read(4, ..., 1000) = 100" in done.output
    assert CliRunner().invoke(command, [str(HERE), "--record"]).exit_code == 2

"""What a run does with time, with calls that block, with files and blocks; how it reports; what a batch amounts to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from pytcp.cli.drill import command
from pytcp.drill import batch
from pytcp.drill.batch import Job, find_scripts, run_jobs
from pytcp.drill.parser import parse
from pytcp.drill.run import Result, Settings, run_file, run_text, setup_for
from pytcp.drill.target_kernel import RTN_LOCAL, KernelTarget, await_local
from pytcp.drill.verdict import as_json, as_junit, counts, exit_status, table

HERE = Path(__file__).parent
OPEN = """    0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
   +0 bind(3, ..., ...) = 0
   +0 listen(3, 1) = 0
   +0 < S 0:0(0) win 65535 <mss 1000>
   +0 > S. 0:0(0) ack 1 <mss 1460>
 +.01 < . 1:1(0) ack 1 win 60000
   +0 accept(3, ..., ...) = 4
"""


def verdict(body: str, **settings: object) -> Result:
    return run_text(OPEN + body, "x.pkt", settings=Settings(**settings))  # type: ignore[arg-type]


# ---- time


def test_relative_times_count_from_the_event_before() -> None:
    # 0.01 + 0.1 + 0.2: an absolute time in between must agree
    assert verdict("+.1 getsockopt(4, SOL_SOCKET, SO_ERROR, [0], [4]) = 0\n+.2 write(4, ..., 10) = 10\n0.31 > P. 1:11(10) ack 1").verdict == "pass"


@pytest.mark.parametrize(("at", "expected"), [("+.004", "pass"), ("+.005", "fail"), ("+.002~+.003", "pass"), ("*", "pass")])
def test_an_expected_packet_may_be_off_by_four_milliseconds(at: str, expected: str) -> None:
    assert verdict(f"+0 write(4, ..., 10) = 10\n{at} > P. 1:11(10) ack 1").verdict == expected


def test_late_events_may_be_off_by_an_eighth_of_the_gap() -> None:
    # the retransmission comes 0.2 s and some ticks after the data; 0.23 is within 12.5 %
    assert verdict("+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1\n+.23 > P. 1:11(10) ack 1").verdict == "pass"


def test_tolerance_is_an_option() -> None:
    body = "+0 write(4, ..., 10) = 10\n+.03 > P. 1:11(10) ack 1"
    assert verdict(body).verdict == "fail"
    assert verdict(body, options={"tolerance_usecs": "30000"}).verdict == "pass"


def test_a_script_that_goes_on_too_long_fails_at_once() -> None:
    result = verdict("+1000 close(4) = 0", timeout_s=5.0)
    assert (result.verdict, result.line) == ("fail", 8)
    assert "--timeout" in result.reason
    assert result.seconds < 2


def test_a_missing_packet_is_waited_for_two_seconds() -> None:
    result = verdict("+.5 > . 1:1(0) ack 1")
    assert result.verdict == "fail"
    found = re.fullmatch(r"no packet came: expected at (0\.510\d+), waited until (2\.\d+)", result.reason)
    assert found is not None
    assert float(found[2]) - float(found[1]) == pytest.approx(2 + 0.5 / 8, abs=1e-5)  # 2 s, and an eighth of the gap


def test_a_command_does_not_sleep_beyond_the_limit() -> None:
    result = verdict("+0 `sleep 100000`", timeout_s=5.0)
    assert (result.verdict, result.line) == ("fail", 8)
    assert "--timeout" in result.reason
    assert verdict("+0 `sleep 4`", timeout_s=5.0).verdict == "pass"


def test_a_syn_nobody_expected_fails_at_the_end() -> None:
    script = "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3\n+0 connect(3, ..., ...) = -1 EINPROGRESS"
    result = run_text(script, "x.pkt")
    assert result.verdict == "fail"
    assert "the script is over, and the stack sent S 0:0(0)" in result.reason
    assert run_text(script, "x.pkt", settings=Settings(compat=True)).verdict == "pass"


@pytest.mark.tap
def test_a_syn_nobody_expected_fails_at_the_end_on_the_kernel() -> None:
    script = "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3\n+0 connect(3, ..., ...) = -1 EINPROGRESS"
    assert "the stack sent S 0:0(0)" in run_text(script, "x.pkt", "kernel").reason


def test_timestamps_of_a_difference_are_the_scripts_own() -> None:
    script = """--tcp_ts_tick_usecs=1000
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 5) = 0
+0 < S 0:0(0) win 65535 <mss 1000,sackOK,TS val 100 ecr 0>
+0 > S. 0:0(0) ack 1 <mss 1460,sackOK,TS val 500 ecr 100>
+.01 < . 1:1(0) ack 1 win 1000 <nop,nop,TS val 110 ecr 500>
+0 accept(3, ..., ...) = 4
+.09 write(4, ..., 100) = 100
+0 > P. 1:101(100) ack 1 <nop,nop,TS val 700 ecr 110>
"""
    report = run_text(script).report
    assert re.search(r"TS val 700 ecr 110>  <nop,nop,TS val 60\d ecr 110>", report), report
    assert re.search(r"got: .* <nop,nop,TS val 60\d ecr 110>", report), report


def test_a_difference_shows_all_the_script_says() -> None:
    report = verdict("+0 send(4, ..., 3, MSG_OOB) = 3\n+0 > [ect0, ttl 9] P. 1:4(3) ack 1 urg 7").report
    assert "expected: [ect0, ttl 9] P. 1:4(3) ack 1 urg 7\n" in report
    assert "urg 3" in report.split("got:")[1].split("\n")[0]


# ---- super-segments


def test_one_line_stands_for_several_packets_unless_strict() -> None:
    body = "+0 write(4, ..., 2500) = 2500\n+0 > P. 1:2501(2500) ack 1"
    assert verdict(body).verdict == "pass"
    assert verdict(body, strict=True).verdict == "fail"


def test_a_line_that_ends_inside_a_packet_fails() -> None:
    assert verdict("+0 write(4, ..., 2500) = 2500\n+0 > . 1:1501(1500) ack 1").verdict == "fail"


# ---- calls


def test_a_call_that_blocks_must_be_written_so() -> None:
    result = verdict("+0 read(4, ..., 10) = 10")
    assert result.verdict == "fail"
    assert "the call blocks" in result.reason


def test_a_call_that_never_returns_fails_when_it_is_due() -> None:
    result = verdict("+0...0.1 read(4, ..., 10) = 10")
    assert result.verdict == "fail"
    assert "still blocks" in result.reason


def test_a_call_that_returns_early_fails() -> None:
    assert "returned at 0.0300" in verdict("+0...0.1 read(4, ..., 10) = 10\n+.02 < P. 1:11(10) ack 1 win 9\n+0 > . 1:1(0) ack 11").reason


def test_the_next_call_waits_for_the_one_that_blocks() -> None:
    body = "+0...0.05 read(4, ..., 10) = 10\n+.05 < P. 1:11(10) ack 1 win 9\n+0 > . 1:1(0) ack 11\n+0 read(4, ..., 10) = -1 EAGAIN"
    assert verdict("+0 fcntl(4, F_SETFL, O_RDWR) = 0\n" + body.replace("-1 EAGAIN", "10")).verdict == "fail"
    assert verdict(body.replace("+0 read(4, ..., 10) = -1 EAGAIN", "+0 recv(4, ..., 10, MSG_DONTWAIT) = -1 EAGAIN")).verdict == "pass"


def test_a_blocking_write_waits_for_room() -> None:
    init = '`sysctl -q net.ipv4.tcp_wmem="4096 16384 16384"`\n'
    blocked = run_text(init + OPEN + "+0...0.03 write(4, ..., 90000) = 90000", settings=Settings(compat=True))
    assert "still blocks" in blocked.reason  # nobody acknowledges
    assert run_text(init + OPEN + "+0...0 write(4, ..., 9000) = 9000", settings=Settings(compat=True)).verdict == "pass"


def test_a_closed_descriptor_is_ebadf_and_an_unknown_one_an_error() -> None:
    assert verdict("+0 close(4) = 0\n+0 > F. 1:1(0) ack 1\n+0 read(4, ..., 1) = -1 EBADF (Bad file descriptor)").verdict == "pass"
    assert verdict("+0 read(9, ..., 1) = 1").verdict == "error"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("frobnicate(4) = 0", "system call frobnicate"),
        ("setsockopt(4, SOL_TCP, TCP_ZEROCOPY_RECEIVE, [1], 4) = 0", "TCP_ZEROCOPY_RECEIVE"),
        ("fcntl(4, F_GETFD) = 0", "fcntl"),
    ],
)
def test_what_pytcp_does_not_have_is_unsupported(line: str, says: str) -> None:
    result = verdict(f"+0 {line}")
    assert result.verdict == "unsupported"
    assert says in result.reason


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("write(4) = 1", "takes 3 arguments"),
        ("close(FROB) = 0", "unknown name 'FROB'"),
        ("write(4, ..., -5) = 1", "a length of -5"),
        ("poll(4, 1, 0) = 0", r"poll\(\) takes a list"),
        ("close(4) = -1 EFROB", "no error EFROB"),
    ],
)
def test_calls_that_make_no_sense_are_errors_with_a_place(line: str, says: str) -> None:
    result = verdict(f"+0 {line}")
    assert (result.verdict, result.line) == ("error", 8)
    assert re.search(says, result.reason)


def test_files_pipes_and_sendfile() -> None:
    init = "`dd if=/dev/zero of=/tmp/drill-file bs=10 count=3 status=none`\n"
    assert run_text(init + OPEN + '+0 open("/tmp/drill-file", O_RDONLY) = 5\n+0 sendfile(4, 5, [0], 30) = 30\n+0 > P. 1:31(30) ack 1').verdict == "pass"


PIPES = """
+0 pipe([5, 6]) = 0
+0 splice(5, NULL, 4, NULL, 100, SPLICE_F_NONBLOCK) = -1 EAGAIN (Resource temporarily unavailable)
+0 write(6, ..., 30) = 30
+0 splice(5, NULL, 4, NULL, 100, SPLICE_F_NONBLOCK) = 30
+0 > P. 1:31(30) ack 1
+0...0.02 splice(4, NULL, 6, NULL, 100, 0) = 10
+.02 < P. 1:11(10) ack 31 win 1000
+0 > . 31:31(0) ack 11
+0 read(5, ..., 4) = 4
+0 read(5, ..., 100) = 6
+0 close(6) = 0
+0 read(5, ..., 100) = 0
+0 splice(5, NULL, 4, NULL, 100, 0) = 0
+0 splice(4, NULL, 4, NULL, 100, 0) = -1 EINVAL (Invalid argument)
"""


@pytest.mark.parametrize("target", ["pytcp", pytest.param("kernel", marks=pytest.mark.tap)])
def test_an_empty_pipe_is_waited_for_while_somebody_may_write(target: str) -> None:
    result = run_text(OPEN + PIPES, "x.pkt", target)
    assert result.verdict == "pass", result.report
    assert "the call blocks" in run_text(OPEN + "+0 pipe([5, 6]) = 0\n+0 read(5, ..., 1) = 1", "x.pkt", target).reason


@pytest.mark.tap
def test_an_ipv6_address_is_waited_for_until_the_kernel_has_made_it_its_own() -> None:
    target = KernelTarget(setup_for(parse("0 close(3) = 0"), "ipv6", Settings()))
    target.open()
    try:
        with target.space.netlink() as ip:
            for number in range(1, 31):
                address = f"fd00:77::{number:x}"
                ip.addr("add", index=ip.link_lookup(ifname="tun0")[0], address=address, prefixlen=64, flags=2)
                await_local(ip, address)
                assert [route["type"] for route in ip.route("get", dst=address)] == [RTN_LOCAL]
    finally:
        target.close()


# ---- blocks


def test_blocks_share_names_and_see_tcp_info() -> None:
    assert verdict("+0 %{ a = tcpi_snd_mss }%\n+0 %{\nassert a == 1000\nassert tcpi_state == TCP_ESTABLISHED\n}%").verdict == "pass"


def test_a_failing_assert_shows_the_fields_it_names() -> None:
    result = verdict("+0 %{ assert tcpi_snd_mss == 1, 'no' }%")
    assert (result.verdict, result.reason, result.line) == ("fail", "assert failed: no", 8)
    assert "tcpi_snd_mss = 1000" in result.report


@pytest.mark.parametrize("source", ["1/0", "import sys; sys.exit(3)", "nothing", "raise KeyError(1)"])
def test_whatever_a_block_raises_fails_the_script(source: str) -> None:
    assert verdict(f"+0 %{{ {source} }}%").verdict == "fail"


# ---- reports


def test_a_difference_is_shown_side_by_side_with_the_last_packets() -> None:
    result = verdict("+0 write(4, ..., 10) = 10\n+0 > P. 1:12(11) ack 2")
    lines = result.report.split("\n")
    assert lines[0] == "x.pkt:9: packet differs in seq, ack"
    assert lines[1] == "  9 | +0 > P. 1:12(11) ack 2"
    assert [line.split() for line in lines[2:5]] == [["expected", "got"], ["seq", "1:12(11)", "1:11(10)"], ["ack", "2", "1"]]
    assert "last 4 of 4 packets" in result.report
    assert re.match(r"  0\.0100\d\d > ", lines[-1])
    assert "length 10" in lines[-1]


# ---- batches

PASSED = Result("a/x.pkt", "pytcp", "ipv4", "pass", seconds=0.5)
FAILED = Result("a/y.pkt", "pytcp", "ipv4", "fail", "a \x01 reason", 0.25, "report", 3)
SKIPPED = Result("b/z.pkt", "kernel", "ipv6", "skipped", "not root")
UNSUPPORTED = Result("b/u.pkt", "pytcp", "ipv4", "unsupported", "splice")


@pytest.mark.parametrize(
    ("results", "status"),
    [([PASSED], 0), ([PASSED, SKIPPED], 0), ([SKIPPED], 77), ([PASSED, FAILED], 1), ([PASSED, UNSUPPORTED], 1), ([SKIPPED, FAILED], 1)],
)
def test_exit_status(results: list[Result], status: int) -> None:
    assert exit_status(results) == status


def test_json_for_programs() -> None:
    made = json.loads(as_json([PASSED, FAILED]))
    assert made["counts"] == {"pass": 1, "fail": 1, "unsupported": 0, "error": 0, "skipped": 0}
    assert made["results"][1] == {"file": "a/y.pkt", "target": "pytcp", "ip": "ipv4", "verdict": "fail", "reason": "a \x01 reason", "seconds": 0.25, "line": 3}


def test_junit_for_machines() -> None:
    suite = ElementTree.fromstring(as_junit([PASSED, FAILED, SKIPPED]))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert [case.get("name") for case in suite] == ["x.pkt", "y.pkt", "z.pkt"]


def test_a_table_per_folder() -> None:
    lines = [line.split() for line in table([PASSED, FAILED, SKIPPED]).split("\n")]
    assert lines[0][:3] == ["folder", "target", "ip"]
    assert lines[1][:5] == ["a", "pytcp", "ipv4", "1", "1"]
    assert lines[-1] == ["total", "1", "1", "1"]
    assert counts([PASSED, FAILED, SKIPPED])["skipped"] == 1


def test_why_the_machine_cannot_run_scripts_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.pkt", "b.pkt"):
        (tmp_path / name).write_text(OPEN)
    results = [Result(name, "kernel", "ipv4", "skipped", "not root", report=f"{name}: not root") for name in ("a.pkt", "b.pkt")]

    def run(jobs: list[Job], settings: Settings, processes: int, on_result: Callable[[Result], None]) -> list[Result]:
        for result in results:
            on_result(result)
        return results

    monkeypatch.setattr("pytcp.cli.drill.run_jobs", run)
    said = CliRunner().invoke(command, ["--target", "kernel", str(tmp_path)], standalone_mode=False)
    assert said.return_value == 77
    assert said.stdout.count("not root") == 1
    assert said.stdout.count("skipped      kernel") == 2


def test_a_run_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop.pkt").write_text("0 %{ while True: pass }%\n")
    (tmp_path / "die.pkt").write_text("0 %{ import os; os._exit(3) }%\n")
    (tmp_path / "fine.pkt").write_text(OPEN)
    jobs = [Job(str(tmp_path / name), "pytcp", "ipv4") for name in ("loop.pkt", "die.pkt", "fine.pkt")]
    monkeypatch.setattr(batch, "GRACE_S", 0.5)
    results = run_jobs(jobs, Settings(timeout_s=0.5), processes=2)
    assert [result.verdict for result in results] == ["fail", "error", "pass"]
    assert "killed" in results[0].reason
    assert "status 3" in results[1].reason


def test_whatever_a_block_says_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "x.pkt").write_text('0 %{ assert False, "\\ud800 \\x1b[2J \\uffff" }%\n')
    (tmp_path / "y.pkt").write_text("0 %{ raise KeyboardInterrupt }%\n")
    odd = tmp_path / os.fsdecode(b"odd\xff.pkt")
    odd.write_text("0 close(3) = 0\n")
    results = run_jobs([Job(str(path), "pytcp", "ipv4") for path in (tmp_path / "x.pkt", tmp_path / "y.pkt", odd)], Settings())
    assert [result.verdict for result in results] == ["fail", "fail", "error"]
    assert results[0].reason == "assert failed: \N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}[2J \N{REPLACEMENT CHARACTER}"
    assert "KeyboardInterrupt" in results[1].reason
    assert len(ElementTree.fromstring(as_junit(results).encode())) == 3
    done = CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False)
    assert done.return_value == 1
    assert "odd\N{REPLACEMENT CHARACTER}.pkt" in done.output


def test_a_byte_order_mark_is_no_part_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "x.pkt").write_bytes(b"\xef\xbb\xbf" + OPEN.encode().lstrip())
    assert run_file(tmp_path / "x.pkt").verdict == "pass"


def test_of_a_long_line_the_place_is_shown() -> None:
    result = run_text("0 < S 0:0(0) win 1 <" + "nop," * 5000 + "frob>")
    line, caret = result.report.split("\n")[1:]
    assert len(line) < 200
    assert line[caret.index("^") :].startswith("frob")


def test_scripts_are_found_in_folders(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.pkt", "1.pkt", "note.txt"):
        (tmp_path / name).write_text("")
    assert [Path(found).name for found in find_scripts([tmp_path])] == ["1.pkt", "2.pkt"]
    with pytest.raises(FileNotFoundError):
        find_scripts([tmp_path / "nothing"])


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.pkt").write_bytes(os.urandom(500) + b"\xff\xfe")
    assert run_file(tmp_path / "x.pkt").verdict == "error"
    assert run_file(tmp_path / "none.pkt").verdict == "error"


def test_the_command() -> None:
    runner = CliRunner()
    where = str(HERE / "handshake" / "passive_then_data.pkt")
    done = runner.invoke(command, [where, "--json", "--ip", "all"], standalone_mode=False)
    assert done.return_value == 0
    assert [run["ip"] for run in json.loads(done.output)["results"]] == ["ipv4", "ipv6", "ipv4-mapped"]
    assert runner.invoke(command, [where, "--option", "frob=1"]).exit_code == 2
    assert runner.invoke(command, [where, "--junit", str(HERE / "nowhere" / "x.xml")]).exit_code == 2

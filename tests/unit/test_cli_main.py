"""The command line: what it says when it is used wrongly, what it makes of errors, and its exit status."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import trio
from click.testing import CliRunner

import pytcp
from pytcp.cli import http, network
from pytcp.cli.errors import expected, one_line
from pytcp.cli.main import COMMANDS, cli, run_command


@pytest.fixture
def invoke() -> Callable[..., tuple[int, str]]:
    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, arguments)
        return result.exit_code, result.output

    return call


def test_the_version_is_the_packages(invoke: Callable[..., tuple[int, str]]) -> None:
    assert invoke("--version") == (0, f"pytcp, version {pytcp.__version__}\n")


def test_help_names_every_command(invoke: Callable[..., tuple[int, str]]) -> None:
    status, text = invoke("--help")
    assert status == 0
    assert all(f"\n  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, "http serve", "http get"])
def test_every_command_explains_itself(invoke: Callable[..., tuple[int, str]], command: str) -> None:
    status, text = invoke(*command.split(), "--help")
    assert status == 0
    assert "Usage: " in text
    assert len(text.splitlines()) > 5


@pytest.mark.parametrize("group", [(), ("lab",), ("http",)])
def test_a_group_without_a_command_is_its_help_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], group: tuple[str, ...]) -> None:
    monkeypatch.setattr("sys.argv", ["pytcp", *group])
    assert run_command(cli, "pytcp") == 2
    text = capsys.readouterr().err
    assert text.startswith(f"Usage: {' '.join(['pytcp', *group])} ")
    assert text.count("Usage:") == 1
    assert "\nCommands:\n" in text


@pytest.mark.parametrize(("word", "first"), [("dmeo", "demo"), ("pnig", "ping"), ("iperf", "iperf3")])
def test_an_unknown_command_is_told_what_is_near_and_where_the_list_is(invoke: Callable[..., tuple[int, str]], word: str, first: str) -> None:
    status, text = invoke(word)
    assert status == 2
    assert f"No such command '{word}'; near: {first}" in text
    assert text.rstrip().endswith("--help lists all.")
    assert len(text.splitlines()[-1]) < 100


def test_a_command_like_none_is_told_all_there_are(invoke: Callable[..., tuple[int, str]]) -> None:
    assert f"No such command 'xyzzy'; there are: {', '.join(sorted(COMMANDS))}." in invoke("xyzzy")[1]


def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Status and standard error of a call as from a shell."""
    monkeypatch.setattr("sys.argv", ["pytcp", *words])
    return run_command(cli, "pytcp"), capsys.readouterr().err.lstrip("\n")  # click ends the line of a Ctrl-C


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(("error", "says", "status"), [(REFUSED, "Connection refused", 1), (KeyboardInterrupt(), "interrupted", 130)])
def test_an_error_has_the_whole_name_of_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, says: str, status: int
) -> None:
    def fail(*arguments: object) -> int:
        raise error

    monkeypatch.setattr("pytcp.cli.network.run", fail)
    assert called(monkeypatch, capsys, "http", "get", "http://10.0.0.1/") == (status, f"pytcp http get: {says}\n")
    assert called(monkeypatch, capsys, "ping") == (status, f"pytcp ping: {says}\n")


WRONG = [("run", "nonsense"), ("run", "tso-autosizing", "--set", "xyzzy=1"), ("sweep", "nonsense"), ("run", "x.py", "--html", "/nowhere/x")]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_of_an_experiment_has_its_usage_before_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    status, text = called(monkeypatch, capsys, "lab", *words)
    assert status == 2
    usage, _, _, complaint = text.splitlines()
    assert usage == f"Usage: pytcp lab {words[0]} [OPTIONS] NAME"
    assert complaint.startswith(f"pytcp lab {words[0]}: ")


def test_what_is_fetched_onto_a_full_disk_is_told_with_the_file() -> None:
    target = http._Output("/dev/full")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"), target:
        target.write(bytes(1 << 20))


def test_a_capture_that_breaks_off_is_one_line_with_its_file_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    with network.recorded(network.Where(None, (), (), None, "/dev/full")) as recording:
        assert recording.writer is not None
        recording.writer.flush()
    assert capsys.readouterr().err == "pytcp: /dev/full: No space left on device: the capture breaks off\n"
    assert [recording.status(status) for status in (0, 3)] == [1, 3], "a program's own status is stronger"


def test_a_trace_that_breaks_off_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def work() -> None:
        with network.recorded(network.Where(None, (), (), None, None, "/dev/full")) as recording:
            pass
        assert recording.status(0) == 1

    assert run_command(_quiet_arguments(work), "work") == 0
    assert capsys.readouterr().err == "work: /dev/full: No space left on device: the trace breaks off\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("ping --address 10.0.0.2/24", "go with --tap"),
        ("ping --gateway 10.0.0.1", "go with --tap"),
        ("ping --tap tap7 10.0.0.1", "--tap needs an --address"),
        ("ping --tap tap7 --address 10.0.0.2/24 --peer date 10.0.0.1", "--peer runs in a testbed"),
        ("ping --tap tap7 --address 10.0.0.2/24", "HOST is missing"),
        ("ping --tap tap7 --address banana 10.0.0.1", "'banana' is not like 10.0.0.2/24"),
        ("ping --tap tap7 --address 10.0.0.2 10.0.0.1", "'10.0.0.2' is not like 10.0.0.2/24"),
        ("ping --tap tap7 --address 10.0.0.2/99 10.0.0.1", "'10.0.0.2/99' is not like"),
        ("ping --tap tap7 --address 224.0.0.5/24 10.0.0.1", "'224.0.0.5/24' is not like"),
        ("ping --tap tap7 --address 10.0.0.2/24 --gateway x 10.0.0.1", "'x' is not like 10.0.0.1"),
        ("ping -i nan 10.0.0.1", "nan is not a number of seconds"),
        ("nc -w inf 10.0.0.1 80", "inf is not a number of seconds"),
        ("http get http://10.0.0.1:99999/", "Invalid value for URL: Port out of range"),
        ("http get http://[::1", "Invalid value for URL"),
        ("http get ftp://10.0.0.1/", "it must look like http://"),
        ("nc", "Missing argument"),
        ("nc 10.0.0.1", "HOST and PORT are needed"),
        ("nc -l 10.0.0.1 7000", "--listen takes a PORT"),
        ("nc 10.0.0.1 70000", "'70000': ports are 1 to 65535"),
        ("nc 10.0.0.1 http", "'http' is no port, nor a range like 20-25"),
        ("nc 10.0.0.1 20-25", "a range of ports goes with --zero"),
        ("nc -z 10.0.0.1 25-20", "'25-20' is an empty range"),
        ("nc -k 10.0.0.1 7", "--keep goes with --listen"),
        ("nc -z -l 7", "--zero connects"),
        ("nc -u --tls 10.0.0.1 7", "--tls runs over a connection"),
        ("nc -l --tls 7", "--listen with --tls needs a --cert"),
        ("nc --no-verify 10.0.0.1 7", "go with --tls"),
        ("iperf3", "--server or --client HOST is needed"),
        ("iperf3 -s -c 10.0.0.1", "--server and --client exclude each other"),
        ("iperf3 -c 10.0.0.1 -u -l 70000", "between 16 and 65507"),
        ("iperf3 -c 10.0.0.1 -u -C reno", "--congestion is TCP's: without --udp."),
        ("iperf3 -c 10.0.0.1 --udp-counters-64bit", "--udp-counters-64bit goes with --udp."),
        ("ping -c abc 10.0.0.1", "'abc' is not a valid integer."),
        ("ping -i soon 10.0.0.1", "'soon' is not a valid number."),
        ("ping --tap a --tun b --address 10.0.0.2/24 10.0.0.1", "--tap and --tun exclude each other"),
        ("ping --tx-thread --pcap x.pcapng 10.0.0.1", "--tx-thread and --pcap exclude each other"),
        ("ping --qdisc cake 10.0.0.1", "'cake' is not one of 'fq', 'pfifo'"),
        ("ping --veth v0 10.0.0.1", "--veth needs an --address"),
        ("run /", "PROGRAM '/' is a directory."),
        ("run /dev/null", "PROGRAM '/dev/null' is no file."),
        ("http get --range 9-1 http://10.0.0.1/", "9-1: its end is before its beginning"),
        ("iperf3 -c 10.0.0.1 -t 1 -n 1M", "Only one of -t, -n and -k ends a test"),
        ("iperf3 -c 10.0.0.1 -R --bidir", "--reverse and --bidir exclude each other"),
        ("iperf3 -c 10.0.0.1 -n 1X", "'1X' is not a number like 64, 128K or 1.5M"),
        ("iperf3 -c 10.0.0.1 -l 2M", "between 1 and 1M"),
        ("traceroute -f 9 -m 3 10.0.0.1", "--first is beyond --max-hops"),
        ("traceroute --tap tap7 --address 10.0.0.2/24", "HOST is missing"),
        ("ping --tap fd:nine --address 10.0.0.2/24 10.0.0.1", "'fd:nine' is not like fd:5"),
        ("http get https://10.0.0.1/", "it must look like http://"),
        ("http serve /no/such/folder", "does not exist"),
        ("http get -C -o - http://10.0.0.1/file", "--continue needs a file"),
        ("http get -C -r 0-9 http://10.0.0.1/file", "--continue needs a file"),
        ("http get -r 9 http://10.0.0.1/file", "it must look like 0-499, 500- or -500"),
        ("http get -o /nowhere/g http://10.0.0.1/file", "/nowhere/g: there is no such folder"),
        ("iperf3 -c 10.0.0.1 -C nosuch", "there is no 'nosuch', but reno, cubic, bbr"),
        ("run --pcap /nowhere/x.pcapng /bin/true", "/nowhere/x.pcapng: there is no such folder"),
        ("nc --trace /nowhere/x.jsonl 10.0.0.1 7", "/nowhere/x.jsonl: there is no such folder"),
        ("testbed --pcap /nowhere/x.pcapng", "/nowhere/x.pcapng: there is no such folder"),
        ("lab sweep tso-autosizing --out /nowhere/x.csv", "/nowhere/x.csv: there is no such folder"),
        ("lab plot --png /nowhere/x.png /bin/true", "/nowhere/x.png: there is no such folder"),
        ("demo --json /nowhere/x.json", "/nowhere/x.json: there is no such folder"),
        ("http get -H nonsense http://10.0.0.1/file", "'nonsense' is not like 'Name: value'"),
    ],
)
def test_wrong_usage_is_named_before_anything_is_set_up(invoke: Callable[..., tuple[int, str]], arguments: str, complaint: str) -> None:
    status, text = invoke(*arguments.split())
    assert status == 2
    assert complaint in text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, where the command is called."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_that_is_there_is_not_written_over_unasked(folder: Path, invoke: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytcp.cli.network.run", lambda where, program: 0)
    url = "http://10.0.0.1/file"
    assert invoke("http", "get", url) == (0, "")
    (folder / "file").write_bytes(b"begun")
    for unasked in ((), ("-o", "")):
        status, text = invoke("http", "get", url, *unasked)
        assert (status, text.splitlines()[-1]) == (2, "Error: file exists: -o file writes over it, -C continues it.")
    for asked in (("-o", "file"), ("-C",), ("-o", "-")):
        assert invoke("http", "get", url, *asked) == (0, "")


@pytest.mark.parametrize("options", [(), ("-C",)])
def test_a_folder_with_the_urls_name_is_told_before_anything_is_set_up(folder: Path, invoke: Callable[..., tuple[int, str]], options: tuple[str, ...]) -> None:
    (folder / "file").mkdir()
    status, text = invoke("http", "get", "http://10.0.0.1/file", *options)
    assert status == 2
    assert "file is a folder here: -o FILE says where to put it." in text


def test_a_tap_that_is_not_there_comes_with_the_command_that_makes_one(invoke: Callable[..., tuple[int, str]]) -> None:
    status, text = invoke("ping", "--tap", "nosuchtap", "--address", "10.0.0.2/24", "10.0.0.1")
    assert status == 1
    assert "ip tuntap add nosuchtap mode tap vnet_hdr" in text


def of_ssl() -> trio.BrokenResourceError:
    """What trio's streams raise: no words, but a cause."""
    error = trio.BrokenResourceError()
    error.__cause__ = OSError(errno.EPROTO, "EOF occurred in violation of protocol")
    return error


def failing(error: BaseException) -> click.Command:
    @click.command("fail")
    def command() -> None:
        raise error

    return command


def on_the_way_out() -> OSError:
    """What a clean-up raises that a second Ctrl-C has broken."""
    error = OSError(errno.EBADF, "Bad file descriptor")
    error.__context__ = KeyboardInterrupt()
    return error


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (REFUSED, 1, "fail: Connection refused"),
        (ExceptionGroup("several", [ExceptionGroup("inner", [REFUSED])]), 1, "fail: Connection refused"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"), 1, "fail: /x: No such file or directory"),
        (trio.BrokenResourceError("connection broken: Connection reset by peer"), 1, "fail: Connection reset by peer"),
        (ExceptionGroup("several", [trio.BrokenResourceError("connection broken: Broken pipe"), REFUSED]), 1, "fail: Broken pipe"),
        (of_ssl(), 1, "fail: EOF occurred in violation of protocol"),
        (BaseExceptionGroup("stopped", [KeyboardInterrupt()]), 130, "fail: interrupted"),
        (KeyboardInterrupt(), 130, "fail: interrupted"),
        (on_the_way_out(), 130, "fail: interrupted"),
        (click.UsageError("that was wrong"), 2, "fail: that was wrong"),
        (click.ClickException("no luck"), 1, "fail: no luck"),
    ],
)
def test_an_error_of_the_world_is_one_line_and_a_status(capsys: pytest.CaptureFixture[str], error: BaseException, status: int, line: str) -> None:
    assert run_command(_quiet_arguments(failing(error)), "fail") == status
    assert capsys.readouterr().err.strip().splitlines()[-1] == line


def _quiet_arguments(command: click.Command) -> click.Command:
    """click reads sys.argv, which here is pytest's."""
    original = command.main
    command.main = lambda **options: original(args=[], **options)  # type: ignore[assignment,method-assign]
    return command


def test_our_own_mistakes_keep_their_traceback() -> None:
    with pytest.raises(ExceptionGroup):
        run_command(_quiet_arguments(failing(ExceptionGroup("mixed", [REFUSED, ZeroDivisionError()]))), "fail")
    assert not expected(ZeroDivisionError())


def test_an_error_without_words_is_named() -> None:
    assert one_line(TimeoutError()) == "TimeoutError"


def test_the_status_a_command_returns_is_the_programs() -> None:
    @click.command("three")
    def command() -> int:
        return 3

    assert run_command(_quiet_arguments(command), "three") == 3

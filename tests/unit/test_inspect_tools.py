"""`pytcp nstat` and `sysctl` on a stack of this process, and what Prometheus reads of it.

Formats are those of nstat (iproute2 6.1.0) and sysctl (procps-ng 4.0.2) as recorded; the commands ask
the stack through the same answers as over the control socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pytcp.cli.inspect import client, nstat, prometheus
from pytcp.cli.inspect.nstat_order import rank
from pytcp.cli.main import cli
from pytcp.clock.virtual import VirtualRuntime
from pytcp.net import snapshot
from pytcp.net.stack import Stack
from pytcp.sockets import control
from pytcp.tcp import api


class Here:
    """A stack in this process, asked without a socket."""

    pid = 4242
    command = "python3"

    def __init__(self, stack: Stack, path: Path) -> None:
        self.stack = stack
        self.path = path

    def ask(self, verb: str, what: str, **more: object) -> Iterator[Any]:
        try:
            yield from json.loads(json.dumps(list(control.answer(self.stack, json.dumps({verb: what, **more}).encode()))))
        except OSError as error:
            raise client.Answered(error.errno, error.strerror) from None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    stack = Stack(VirtualRuntime(), seed=1)
    found = Here(stack, tmp_path / "4242.sock")
    found.path.touch()
    monkeypatch.setattr(client, "choose", lambda wanted: found)
    yield found
    stack.close()


Run = Callable[..., str]


@pytest.fixture
def run(here: Here) -> Run:
    """`run("nstat", "-az")`: what the command prints."""

    def call(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(cli, words, standalone_mode=False)
        assert (result.return_value or 0) == status, result.output
        return result.output

    return call


# --- nstat ---


def test_counters_stand_in_the_kernels_order_with_its_columns(here: Here, run: Run) -> None:
    mib = here.stack.mib
    mib.count("TcpExtra")  # a name no kernel has
    mib.IpExtInOctets = 501723
    mib.DelayedACKs = 1
    mib.Ip6InReceives = 19
    mib.TcpOutSegs = 29
    mib.IpInReceives = 32
    mib.count("Icmp6InType136")
    mib.count("Icmp6InType135")
    mib.count("IcmpMsgInType8")
    assert (
        run("nstat", "-a").replace(" ", "·")
        == """\
#kernel
IpInReceives····················32·················0.0
IcmpMsgInType8··················1··················0.0
TcpOutSegs······················29·················0.0
Ip6InReceives···················19·················0.0
Icmp6InType135··················1··················0.0
Icmp6InType136··················1··················0.0
TcpExtDelayedACKs···············1··················0.0
IpExtInOctets···················501723·············0.0
TcpExtra························1··················0.0
"""
    )


def test_each_call_shows_what_was_added_since_the_last(here: Here, run: Run) -> None:
    here.stack.mib.TcpOutSegs = 5
    assert run("nstat").split() == ["#kernel", "TcpOutSegs", "5", "0.0"]
    assert run("nstat").split() == ["#kernel"]
    here.stack.mib.TcpOutSegs = 7
    assert run("nstat", "-s").split() == ["#kernel", "TcpOutSegs", "2", "0.0"]
    assert run("nstat").split() == ["#kernel", "TcpOutSegs", "2", "0.0"]


def test_totals_are_remembered_as_well(here: Here, run: Run) -> None:
    here.stack.mib.TcpOutSegs = 5
    assert "TcpOutSegs" in run("nstat", "-a")
    assert run("nstat").split() == ["#kernel"]
    assert "TcpOutSegs" in run("nstat", "-r")


def test_remembering_only_prints_nothing(here: Here, run: Run) -> None:
    here.stack.mib.TcpOutSegs = 5
    assert run("nstat", "-n") == ""
    assert run("nstat").split() == ["#kernel"]


def test_what_another_stack_counted_is_not_subtracted(here: Here, run: Run) -> None:
    here.stack.mib.TcpOutSegs = 5
    run("nstat", "-n")
    here.path.rename(here.path.with_name("old"))  # keeps its inode from being used again
    here.path.touch()
    assert run("nstat").split() == ["#kernel", "TcpOutSegs", "5", "0.0"]


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"socket": null, "totals": 3}', "\xff"])
def test_a_damaged_memory_counts_as_none(here: Here, run: Run, damage: str) -> None:
    here.stack.mib.TcpOutSegs = 5
    nstat.Memory(here.path).path.write_bytes(damage.encode("latin-1"))
    assert run("nstat").split() == ["#kernel", "TcpOutSegs", "5", "0.0"]


def test_zeros_and_patterns(run: Run) -> None:
    lines = run("nstat", "-az", "ipin*", "*Rsts").splitlines()
    assert [line.split()[0] for line in lines] == [
        "#kernel", "IpInReceives", "IpInHdrErrors", "IpInAddrErrors", "IpInUnknownProtos", "IpInDiscards", "IpInDelivers", "TcpOutRsts",
        "TcpExtEmbryonicRsts",
    ]  # fmt: skip
    assert run("nstat", "-a", "nope*") == "#kernel\n"


def test_a_gauge_is_no_counter(here: Here, run: Run) -> None:
    here.stack.mib.TcpCurrEstab = 3
    assert "CurrEstab" not in run("nstat", "-az")


def test_counters_as_json(here: Here, run: Run) -> None:
    here.stack.mib.IpInReceives = 32
    assert run("nstat", "-saj", "IpIn*") == '{"kernel":{"IpInReceives":32}}\n'
    assert run("nstat", "-sajp", "IpIn*") == '{\n    "kernel": {\n        "IpInReceives": 32\n    }\n}\n'
    assert run("nstat", "-saj", "Tcp*") == '{"kernel":{}}\n'


def test_the_order_knows_every_counter() -> None:
    unknown = rank("NoSuchCounter")[0]
    stack = Stack(VirtualRuntime(), seed=1)
    assert [name for name in snapshot.counters(stack) if rank(name)[0] == unknown] == ["TcpCurrEstab"]
    stack.close()


# --- sysctl ---


def test_reading(run: Run) -> None:
    assert run("sysctl", "net.ipv4.tcp_rmem") == "net.ipv4.tcp_rmem = 4096\t131072\t33554432\n"
    assert run("sysctl", "-n", "net.ipv4.tcp_rmem", "net.ipv4.tcp_sack") == "4096\t131072\t33554432\n1\n"
    assert run("sysctl", "-N", "net.ipv4.tcp_rmem") == "net.ipv4.tcp_rmem\n"
    assert run("sysctl", "net/ipv4/tcp_sack") == "net.ipv4.tcp_sack = 1\n"
    assert run("sysctl", "net.ipv4.conf.eth0.rp_filter") == "net.ipv4.conf.eth0.rp_filter = 0\n"


def test_a_branch_and_all(here: Here, run: Run) -> None:
    branch = run("sysctl", "net.ipv4.neigh").splitlines()
    assert "net.ipv4.neigh.default.ucast_solicit = 3" in branch
    assert all(line.startswith("net.ipv4.neigh.default.") for line in branch)
    everything = run("sysctl", "-a").splitlines()
    assert [line.split(" = ")[0] for line in everything] == sorted(snapshot.sysctls(here.stack))
    assert [line.split()[0] for line in run("sysctl", "-a", "-r", "tcp_re[ct]").splitlines()] == [
        "net.ipv4.tcp_recovery", "net.ipv4.tcp_retrans_collapse", "net.ipv4.tcp_retries1", "net.ipv4.tcp_retries2",
    ]  # fmt: skip


def test_writing_repeats_what_was_written(here: Here, run: Run) -> None:
    assert run("sysctl", "-w", "net.ipv4.tcp_sack=0", "net.ipv4.tcp_ecn=1") == "net.ipv4.tcp_sack = 0\nnet.ipv4.tcp_ecn = 1\n"
    assert run("sysctl", "-w", "net.ipv4.tcp_rmem=4096 87380 100000") == "net.ipv4.tcp_rmem = 4096 87380 100000\n"
    assert run("sysctl", "-qw", "net.ipv4.tcp_retries2 = 8") == ""
    assert run("sysctl", "net.ipv4.tcp_congestion_control=reno") == "net.ipv4.tcp_congestion_control = reno\n"
    values = here.stack.sysctl
    assert (values.tcp_sack, values.tcp_ecn, values.tcp_rmem, values.tcp_retries2) == (0, 1, (4096, 87380, 100000), 8)
    assert values.tcp_congestion_control == "reno"


def test_what_cannot_be_done_is_said_and_the_rest_is_done(here: Here, run: Run) -> None:
    text = run("sysctl", "net.ipv4.tcp_sackk", "net.ipv4.tcp_ecn=99", "net.ipv4.tcp_dsack=0", "net.ipv4.tcp_frto=x", status=1)
    assert "sysctl: no sysctl 'net.ipv4.tcp_sackk'; near: net.ipv4.tcp_sack, net.ipv4.tcp_dsack\n" in text
    assert "sysctl: net.ipv4.tcp_ecn: 99 is outside 0..2\n" in text
    assert "sysctl: net.ipv4.tcp_frto: 'x' is not a number\n" in text
    assert "net.ipv4.tcp_dsack = 0\n" in text
    assert (here.stack.sysctl.tcp_ecn, here.stack.sysctl.tcp_dsack) == (2, 0)


def test_unknown_variables_can_be_ignored_but_bad_values_cannot(run: Run) -> None:
    assert run("sysctl", "-e", "net.ipv4.tcp_sackk") == ""
    assert "outside 0..2" in run("sysctl", "-e", "-w", "net.ipv4.tcp_ecn=99", status=1)


def test_settings_explained(run: Run) -> None:
    run("sysctl", "-w", "pytcp.tsq_cap=unpaced_only")
    assert run("sysctl", "--explain", "pytcp.tsq_cap", "net.ipv4.tcp_ecn").splitlines() == [
        "net.ipv4.tcp_ecn = 2",
        "    0 off, 1 request and accept, 2 accept only",
        "    default 2; takes 0..2",
        "",
        "pytcp.tsq_cap = unpaced_only",
        "    sockets whose TSQ limit tcp_limit_output_bytes caps",
        "    default always; takes always | unpaced_only",
        "    unpaced_only 5.0 (c73e5807e4f6) to 6.15; always again 6.16 (c4221a8cc3a7)",
    ]
    takes = {name: run("sysctl", "--explain", name).splitlines()[2].partition("takes ")[2] for name in (
        "net.ipv4.tcp_base_mss", "net.ipv4.ipfrag_high_thresh", "net.ipv4.tcp_no_metrics_save", "net.ipv4.tcp_congestion_control",
    )}  # fmt: skip
    assert list(takes.values())[:3] == ["up to 2147483647", "0 and more", "1 only"]
    assert takes["net.ipv4.tcp_congestion_control"].startswith("reno | cubic | bbr")
    assert '"default":[4096,16384,4194304]' in run("sysctl", "-j", "--explain", "net.ipv4.tcp_wmem")


def test_a_profile_is_chosen_before_the_first_connection(here: Here, run: Run) -> None:
    assert run("sysctl", "-w", "pytcp.profile=linux-5.15") == "pytcp.profile = linux-5.15\n"
    assert run("sysctl", "net.ipv4.tcp_limit_output_bytes") == "net.ipv4.tcp_limit_output_bytes = 1048576\n"
    assert "default 1048576;" in run("sysctl", "--explain", "net.ipv4.tcp_limit_output_bytes")
    assert "'linux-5' is not one of linux-3.18, linux-5.15, " in run("sysctl", "-w", "pytcp.profile=linux-5", status=1)
    sk = here.stack.new_sock(4)
    with pytest.raises(BlockingIOError):
        api.connect(sk, b"\x7f\0\0\1", 80)
    assert "pytcp.profile: the stack has connections, which began under linux-5.15" in run("sysctl", "-w", "pytcp.profile=mainline", status=1)


def test_settings_as_json(run: Run) -> None:
    assert run("sysctl", "-j", "net.ipv4.tcp_sack", "net.ipv4.tcp_wmem") == '{"net.ipv4.tcp_sack":1,"net.ipv4.tcp_wmem":[4096,16384,4194304]}\n'


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("sysctl", "name a variable"),
        ("sysctl -w net.ipv4.tcp_sack", "'net.ipv4.tcp_sack' sets nothing"),
        ("sysctl -nN net.ipv4.tcp_sack", "choose"),
        ("sysctl -n --explain net.ipv4.tcp_sack", "choose"),
        ("sysctl -a -r (", "is no regular expression"),
        ("nstat --connections", "goes with --prometheus"),
        ("ss sport", "the filter ends where a port is expected"),
    ],
)
def test_wrong_usage_is_found_before_a_stack_is_looked_for(words: str, complaint: str) -> None:
    result = CliRunner().invoke(cli, [*words.split(), "--stack", "nobody"])
    assert result.exit_code == 2
    assert complaint in result.output


# --- Prometheus ---

# the text exposition format: a comment, or a metric with labels and a number
SAMPLE = re.compile(r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?P<labels>([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\[\\n"])*",?)*)\})? (?P<value>-?[0-9.e+-]+)')
COMMENT = re.compile(r"# (HELP|TYPE) (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*) .+")


def parse(page: str) -> tuple[dict[str, str], dict[str, float]]:
    """Types by metric and values by sample, after checking every line, and that no metric comes twice."""
    types: dict[str, str] = {}
    values: dict[str, float] = {}
    assert page.endswith("\n")
    for line in page.splitlines():
        comment = COMMENT.fullmatch(line)
        if comment is not None:
            if " TYPE " in line:
                assert comment["name"] not in types
                types[comment["name"]] = line.split()[-1]
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample is not None, line
        assert sample["name"] == list(types)[-1], "samples follow their TYPE"
        assert line.rpartition(" ")[0] not in values
        values[line.rpartition(" ")[0]] = float(sample["value"])
    assert set(types.values()) <= {"counter", "gauge"}
    return types, values


def test_every_counter_is_exposed_under_nstats_name(here: Here, run: Run) -> None:
    mib = here.stack.mib
    mib.TCPTimeouts = 3
    mib.TcpCurrEstab = 2
    mib.Udp6NoPorts = 4
    mib.count("IcmpMsgInType8")
    types, values = parse(run("nstat", "--prometheus"))
    assert values["pytcp_netstat_TcpExt_TCPTimeouts"] == 3
    assert values["pytcp_netstat_Udp6_NoPorts"] == 4
    assert values["pytcp_netstat_IcmpMsg_InType8"] == 1
    assert values["pytcp_netstat_Tcp_CurrEstab"] == 2
    assert types["pytcp_netstat_Tcp_CurrEstab"] == "gauge"
    assert types["pytcp_netstat_Tcp_OutSegs"] == "counter"
    assert values['pytcp_sockets{state="timewait"}'] == 0
    assert values['pytcp_interface_receive_packets_total{device="lo"}'] == 0
    assert sum(name.startswith("pytcp_netstat_") for name in types) == len(snapshot.counters(here.stack))


def test_a_connection_is_exposed_in_seconds_and_bytes() -> None:
    info = dict.fromkeys((field for field, *_ in prometheus.TCP_INFO), 0) | {"rtt": 141, "bytes_acked": 3000, "min_rtt": 0xFFFFFFFF, "pacing_rate": 2**64 - 1}
    ends = {"local": "fd99::2", "local_port": 7000, "remote": "fd99::1", "remote_port": 50000}
    connection = {**ends, "state": "ESTABLISHED", "congestion": 'a"b\\', "info": info}
    listener = {**ends, "state": "LISTEN", "congestion": "cubic", "info": info}
    left = {**ends, "state": "TIME_WAIT"}
    totals = {"estab": 1, "synrecv": 0, "orphaned": 0, "timewait": 1}
    types, values = parse(prometheus.expose({}, totals, [], [connection, listener, left]))
    labels = r'{local="[fd99::2]:7000",remote="[fd99::1]:50000",state="established",congestion="a\"b\\"}'
    assert values[f"pytcp_tcp_rtt_seconds{labels}"] == 0.000141
    assert values[f"pytcp_tcp_acked_bytes_total{labels}"] == 3000
    assert not any("pacing_rate" in name or "min_rtt" in name for name in types), "what is not known is not there"
    assert [name for name in values if "rtt_seconds" in name] == [f"pytcp_tcp_rtt_seconds{labels}", f"pytcp_tcp_rcv_rtt_seconds{labels}"]

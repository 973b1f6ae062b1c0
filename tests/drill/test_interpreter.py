"""Shell commands in virtual time: they do to the stack what they would do to a host, or are reported as unsupported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytcp.drill.errors import Mismatch, Unsupported
from pytcp.drill.interpreter import Shell
from pytcp.drill.target import Setup
from pytcp.drill.target_pytcp import PytcpTarget


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    target = PytcpTarget(Setup(folder=tmp_path))
    target.open()
    yield target.shells
    target.close()


def run(shell: Shell, text: str) -> list[int]:
    """The pauses a command asks for, ns."""
    return list(shell.run(text))


@pytest.mark.parametrize(
    "text",
    [
        "sysctl -q net.ipv4.tcp_sack=0",
        "sysctl -w net/ipv4/tcp_sack=0 > /dev/null 2>&1",
        "echo 0 > /proc/sys/net/ipv4/tcp_sack",
        "sysctl -q \\\n net.ipv4.tcp_timestamps=0 \\\n net.ipv4.tcp_sack=0   # off",
        "../common/set_sysctls.py /proc/sys/net/ipv4/tcp_sack=0",
        "false; sysctl -q net.ipv4.tcp_sack=0",
        "true && sysctl -q net.ipv4.tcp_sack=0",
        "sysctl -q net.ipv4.nothing=1 &> /dev/null || sysctl -q net.ipv4.tcp_sack=$((2-2))",
    ],
)
def test_a_sysctl_is_written_in_many_ways(shell: Shell, text: str) -> None:
    run(shell, text)
    assert shell.stack.sysctl.tcp_sack == 0


def test_values_of_several_numbers(shell: Shell) -> None:
    run(shell, 'sysctl -q net.ipv4.tcp_rmem="4096 540000 $((15*1024*1024))"')
    assert shell.stack.sysctl.tcp_rmem == (4096, 540000, 15728640)


def test_set_sysctls_leaves_a_file_that_restores(shell: Shell) -> None:
    run(shell, "set_sysctls.py /proc/sys/net/ipv4/tcp_wmem='4096 50000 4194304' /proc/sys/net/ipv4/tcp_ecn=0")
    assert (shell.stack.sysctl.tcp_wmem[1], shell.stack.sysctl.tcp_ecn) == (50000, 0)
    run(shell, "/tmp/sysctl_restore_${PPID}.sh")
    assert (shell.stack.sysctl.tcp_wmem[1], shell.stack.sysctl.tcp_ecn) == (16384, 2)


def test_shell_files_beside_the_script_are_read(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "defaults.sh").write_text("#!/bin/bash\n# comment\nsysctl -q net.ipv4.tcp_reordering=5\nip tcp_metrics flush all > /dev/null 2>&1\n")
    run(shell, "./defaults.sh")
    assert shell.stack.sysctl.tcp_reordering == 5


def test_a_shell_file_that_calls_itself_ends(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "loop.sh").write_text("./loop.sh\n")
    with pytest.raises(Unsupported, match="without end"):
        run(shell, "./loop.sh")


def test_routes_get_metrics(shell: Shell) -> None:
    run(shell, "ip route change 192.0.2.1 via 192.168.0.2 dev tun0 advmss 600 mtu lock 640 initcwnd 11")
    route = shell.stack.routes4.find(bytes([192, 0, 2, 1]), 32)[0]
    assert (route.advmss, route.mtu, route.mtu_lock, route.initcwnd) == (600, 640, True, 11)


def test_a_queue_of_no_length_loses_what_is_sent(shell: Shell) -> None:
    run(shell, "tc qdisc replace dev tun0 root pfifo limit 0")
    assert shell.stack.interface("tun0").ring.limit == 0
    run(shell, "tc qdisc del dev tun0 root 2>/dev/null ; tc qdisc add dev tun0 root pfifo")
    assert shell.stack.interface("tun0").ring.limit > 100


def test_fq_paces_whoever_comes_by(shell: Shell) -> None:
    run(shell, "tc qdisc replace dev tun0 root fq flow_limit 7 nopacing")
    qdisc = shell.stack.interface("tun0").qdisc
    assert qdisc is not None and qdisc.kind == "fq"
    assert (qdisc.options()["flow_limit"], qdisc.options()["pacing"]) == (7, False)
    run(shell, "tc qdisc del dev tun0 root")
    assert shell.stack.interface("tun0").qdisc is None


def test_nstat_shows_what_changed_since_the_last_look(shell: Shell) -> None:
    shell.stack.mib.OutOfWindowIcmps += 1
    run(shell, "nstat | grep TcpExtOutOfWindowIcmps > /dev/null")
    with pytest.raises(Mismatch, match="grep found no"):
        run(shell, "nstat | grep TcpExtOutOfWindowIcmps")


def test_nstat_from_the_start_with_zeros_and_by_name(shell: Shell) -> None:
    shell.stack.mib.OutOfWindowIcmps += 1
    run(shell, "nstat -n; nstat -a | grep OutOfWindowIcmps; nstat -sz TcpExtOutOfWindow* | grep 'Icmps  *0 '")
    with pytest.raises(Mismatch, match="grep found no"):
        run(shell, "nstat -az TcpActive* | grep OutOfWindowIcmps")


def test_one_root_qdisc_is_added_and_taken_away(shell: Shell) -> None:
    run(shell, "tc qdisc add dev tun0 root pfifo && tc qdisc change dev tun0 root pfifo limit 9 && tc qdisc del dev tun0 root")
    for command in ("tc qdisc del dev tun0 root", "tc qdisc replace dev tun0 root fq; tc qdisc add dev tun0 root fq"):
        with pytest.raises(Mismatch, match="failed with status 2"):
            run(shell, command)


def test_files_are_made_and_removed(shell: Shell) -> None:
    run(shell, "dd if=/dev/zero of=/tmp/two bs=1k count=2 status=none")
    assert len(shell.files["/tmp/two"]) == 2048
    run(shell, "rm /tmp/two && rm -f /tmp/two")
    with pytest.raises(Mismatch, match="cannot remove"):
        run(shell, "rm /tmp/two")


def test_parameters_of_the_cubic_module_are_read_and_written(shell: Shell) -> None:
    run(shell, "echo 2 > /sys/module/tcp_cubic/parameters/hystart_detect")
    assert shell.stack.sysctl.cubic_hystart_detect == 2
    run(shell, "cat /sys/module/tcp_cubic/parameters/hystart_detect | grep 2 > /dev/null")


def test_sleep_takes_virtual_time(shell: Shell) -> None:
    assert run(shell, "sleep 0.25; sleep 1") == [250_000_000, 1_000_000_000]


@pytest.mark.parametrize(
    "text",
    [
        "curl http://example.com",
        "tc qdisc add dev tun0 root fq_codel",
        "tc qdisc add dev tun0 root fq flow_limit few",
        "tc filter add dev tun0",
        "ip link set tun0 down",
        "ethtool -K tun0 rx-vlan-filter off",
        "sysctl -q kernel.panic=1",
        "sysctl -q net.ipv4.tcp_ecn=3",
        "sysctl -q net.ipv4.tcp_congestion_control=westwood",
        "echo 1 > /sys/module/tcp_bbr/parameters/none",
        "echo 3 > /sys/module/tcp_cubic/parameters/bic_scale",
        "cat /etc/passwd",
        "sleep forever",
        "echo 'open quote",
        "echo -e 0",
        "nstat -j",
        "sleep 1 &",
        "true && frobnicate",
    ],
)
def test_what_is_not_known_is_unsupported_and_named(shell: Shell, text: str) -> None:
    with pytest.raises(Unsupported) as caught:
        run(shell, text)
    word = text.split()[-1].rsplit("/", 1)[-1].strip("'&").strip() or "1"
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["false", "sysctl -q net.ipv4.tcp_nothing=1", "sysctl -q net.ipv4.tcp_sack=300", "./missing.sh", "ip route change 203.0.113.0/24 dev tun0 mtu 900"],
)
def test_a_failing_command_fails_the_script(shell: Shell, text: str) -> None:
    with pytest.raises(Mismatch, match="failed with status"):
        run(shell, text)


def test_the_last_status_counts(shell: Shell) -> None:
    assert run(shell, "false; true") == []
    assert run(shell, "false || true") == []

"""The testbed: what it makes is what was asked for, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from functools import partial

import pytest

from pytcp.lab import netns
from pytcp.lab.netns import Namespace, TestbedError
from pytcp.lab.testbed import Testbed
from pytcp.link.frame import F_RXCSUM

pytestmark = pytest.mark.tap


def names() -> set[str]:
    return set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set()


def ours() -> set[str]:
    """Those of this process: other tests may run beside us."""
    return {name for name in names() if name.startswith(f"pytcp-{os.getpid()}-")}


def alive(pid: int) -> bool:
    """Does the process run? A zombie does not: who reaps orphans is the machine's business."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_peer_has_both_addresses_the_mtu_and_no_tentative_address() -> None:
    with Testbed(mtu=9000) as tb:
        links = tb.run(["ip", "-o", "link", "show", "tap0"]).stdout.decode()
        addresses = tb.run(["ip", "-o", "addr", "show", "tap0"]).stdout.decode()
    assert "mtu 9000" in links
    assert "inet 10.99.0.1/24" in addresses
    assert "inet6 fd99::1/64" in addresses
    assert "tentative" not in addresses


def test_below_an_mtu_of_1280_there_is_no_ipv6() -> None:
    with Testbed(mtu=576) as tb:
        assert tb.addresses == ["10.99.0.2/24"]
        with pytest.raises(TestbedError):
            _ = tb.address6


@pytest.mark.parametrize("name", ["reno", "cubic", "bbr"])
def test_the_peers_congestion_control_is_the_one_asked_for_even_where_the_machine_restricts_it(name: str) -> None:
    with Testbed(congestion=name) as tb:
        for family, address in ((socket.AF_INET, tb.address4), (socket.AF_INET6, tb.address6)):
            with tb.socket(family) as sock:
                sock.setblocking(False)
                sock.connect_ex((address, 9))
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == name.encode()


def test_an_unknown_congestion_control_is_a_clear_error_and_leaves_nothing() -> None:
    with pytest.raises(TestbedError, match="no congestion control 'vegas2'"), Testbed(congestion="vegas2"):
        pass
    assert not ours()


def test_sysctls_are_the_peers_and_the_machines_own_stay() -> None:
    with open("/proc/sys/net/ipv4/tcp_sack") as file:
        before = file.read()
    with Testbed(sysctls={"net.ipv4.tcp_sack": 1 - int(before)}) as tb:
        assert tb.sysctl("net.ipv4.tcp_sack") == str(1 - int(before))
        with open("/proc/sys/net/ipv4/tcp_sack") as file:
            assert file.read() == before


@pytest.mark.parametrize("name", ["kernel.hostname", "net.ipv4/../../kernel.hostname"])
def test_a_sysctl_that_is_not_of_the_network_is_refused(name: str) -> None:
    with Testbed() as tb, pytest.raises(ValueError, match="only net"):
        tb.set_sysctl(name, "x")


def test_an_exception_inside_removes_namespace_and_programs() -> None:
    child = None
    with pytest.raises(ZeroDivisionError), Testbed() as tb:
        child = tb.popen(["sh", "-c", "sleep 300 & sleep 300"])
        raise ZeroDivisionError
    assert not ours()
    assert child is not None
    assert not alive(child.pid)


def test_a_program_that_ignores_sigterm_and_one_that_left_its_session_are_gone_too() -> None:
    with Testbed() as tb:
        child = tb.popen(["sh", "-c", "trap '' TERM; setsid sleep 300 & echo; while :; do sleep 0.05; done"], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        inside = netns.processes_in(tb.path)
    assert len(inside) >= 2
    assert not any(map(alive, inside))


CRASH = """
    import time
    from pytcp.lab.testbed import Testbed
    with Testbed() as tb:
        child = tb.popen(["sleep", "300"])
        print(tb.name, child.pid, flush=True)
        time.sleep(300)
"""


@pytest.fixture
def crasher() -> subprocess.Popen[str]:
    # who is started in the background of a shell script has Ctrl-C switched off, and its children with it
    on = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(CRASH)], stdout=subprocess.PIPE, text=True, preexec_fn=on)


def test_what_a_killed_process_left_behind_is_removed_by_the_next_testbed(crasher: subprocess.Popen[str]) -> None:
    assert crasher.stdout is not None
    name, pid = crasher.stdout.readline().split()
    os.kill(crasher.pid, signal.SIGKILL)
    crasher.wait(timeout=20)
    assert name in names()
    with Namespace():
        assert name not in names()
    assert not alive(int(pid))


def test_a_namespace_whose_owner_lives_is_not_reaped(crasher: subprocess.Popen[str]) -> None:
    assert crasher.stdout is not None
    name, _ = crasher.stdout.readline().split()
    try:
        assert name not in netns.reap()
        assert name in names()
    finally:
        crasher.send_signal(signal.SIGINT)
        crasher.wait(timeout=20)


def test_ctrl_c_leaves_nothing(crasher: subprocess.Popen[str]) -> None:
    assert crasher.stdout is not None
    name, pid = crasher.stdout.readline().split()
    crasher.send_signal(signal.SIGINT)
    crasher.wait(timeout=20)
    assert name not in names()
    assert not alive(int(pid))


def test_the_calling_thread_is_back_in_its_own_namespace_also_after_an_error() -> None:
    before = os.readlink("/proc/thread-self/ns/net")
    with Testbed() as tb:
        with pytest.raises(FileNotFoundError):
            tb.popen(["no-such-program-anywhere"])
        with pytest.raises(FileNotFoundError):
            tb.sysctl("net.no_such_sysctl")
        assert os.readlink("/proc/thread-self/ns/net") == before


def test_the_peers_counters_have_nstats_names() -> None:
    with Testbed() as tb:
        before = tb.nstat()
        assert tb.ping("127.0.0.1") != [None]
        after = tb.nstat()
    assert after["IcmpInEchos"] == before["IcmpInEchos"] + 1
    assert {"TcpRetransSegs", "TcpExtTCPTimeouts", "IpExtInOctets", "Ip6InReceives"} <= set(after)


def test_nobody_answers_a_ping_to_an_address_without_a_stack() -> None:
    with Testbed() as tb:
        assert tb.ping(tb.address4, timeout=0.2) == [None]


def test_receive_work_goes_to_the_processor_asked_for() -> None:
    with Testbed(rps=True) as tb:
        script = "mount -t sysfs sysfs /sys && cat /sys/class/net/tap0/queues/rx-0/rps_cpus"
        mask = tb.run(["unshare", "--mount", "sh", "-c", script]).stdout
    assert int(mask.decode().replace(",", ""), 16) == 1 << max(os.sched_getaffinity(0))


def test_a_tap_without_header_and_one_whose_peer_finishes_its_frames() -> None:
    with Testbed(vnet_hdr=False) as tb:
        assert not tb.link.vnet_hdr
    with Testbed(offload=False) as tb:
        assert tb.link.vnet_hdr
        assert not tb.link.features & F_RXCSUM

"""The commands on devices of the user's, and what they say of a --peer command, a port that opens late, an interface that is down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from pytcp.lab.netns import Namespace

from .test_interop_cli import pytcp

pytestmark = pytest.mark.tap

Program = Callable[[str], str]
OURS, THEIRS = "10.77.0.2", "10.77.0.1"


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    with Namespace() as ns, ns.netlink() as ip:
        ip.link("set", index=ip.link_lookup(ifname="lo")[0], state="up")
        yield ns


def inside(ns: Namespace, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return ns.run([sys.executable, "-m", "pytcp", *arguments], check=False)


def device(ns: Namespace, name: str, kind: str) -> None:
    """A device of one kind with the peer's address at its other end."""
    make = f"ip link add {name} type veth peer name other" if kind == "veth" else f"ip tuntap add {name} mode {kind} vnet_hdr"
    far = "other" if kind == "veth" else name
    ns.run(["sh", "-ec", f"{make}; ip link set {name} up; ip link set {far} up; ip addr add {THEIRS}/24 dev {far}"])


@pytest.mark.parametrize("kind", ["tap", "tun", "veth"])
def test_a_device_is_attached_to_by_its_name(namespace: Namespace, kind: str) -> None:
    device(namespace, "mine", kind)
    done = inside(namespace, "ping", f"--{kind}", "mine", "--address", f"{OURS}/24", "-c", "2", "-i", "0.05", THEIRS)
    assert done.returncode == 0, done.stderr
    assert b"2 packets transmitted, 2 received" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize("kind", ["tap", "tun", "veth"])
def test_a_device_that_is_not_there_comes_with_the_commands_that_make_one(namespace: Namespace, kind: str) -> None:
    ping = ("ping", f"--{kind}", "mine", "--address", f"{OURS}/24", "-c", "1", "-W", "1", THEIRS)
    done = inside(namespace, *ping)
    assert done.returncode == 1
    advice = done.stderr.decode().rpartition("make one: ")[2]
    namespace.run(["sh", "-ec", advice])
    namespace.run(["ip", "addr", "add", f"{THEIRS}/24", "dev", "mine-peer" if kind == "veth" else "mine"])
    assert inside(namespace, *ping).returncode == 0


def test_a_device_that_is_down_is_named(namespace: Namespace) -> None:
    device(namespace, "mine", "tap")
    namespace.run(["ip", "link", "set", "mine", "down"])
    done = inside(namespace, "ping", "--tap", "mine", "--address", f"{OURS}/24", "-c", "1", "-W", "0.1", THEIRS)
    assert done.returncode == 1
    assert "mine is down: nothing passes until `ip link set mine up`" in done.stderr.decode()


@pytest.mark.parametrize(("name", "words"), [("a" * 16, "too long"), ("a b", "no name for an interface")])
def test_a_name_no_device_can_have_gets_no_advice_to_make_one(name: str, words: str) -> None:
    done = pytcp("ping", "--tap", name, "--address", f"{OURS}/24", THEIRS)
    assert done.returncode == 1
    assert words in done.stderr and "make one" not in done.stderr


def test_another_kind_of_device_is_refused(namespace: Namespace) -> None:
    device(namespace, "mine", "tun")
    done = inside(namespace, "ping", "--tap", "mine", "--address", f"{OURS}/24", THEIRS)
    assert (done.returncode, done.stderr) == (1, b"pytcp ping: mine: it is not a TAP\n")


# --- the --peer command ---


def test_the_status_of_a_peer_command_that_failed_is_told() -> None:
    done = pytcp("ping", "-c", "2", "-i", "0.3", "--peer", "exit 3")
    assert done.returncode == 0
    assert "pytcp ping: the --peer command ended with status 3" in done.stderr
    done = pytcp("ping", "-c", "1", "--peer", "exit 0")
    assert "--peer" not in done.stderr


def test_a_server_whose_client_failed_says_so_while_it_waits() -> None:
    command = [sys.executable, "-m", "pytcp", "iperf3", "-s", "-1", "--peer", "kill -9 $$"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline().startswith("testbed:")
        assert child.stderr.readline() == "pytcp iperf3: the --peer command ended by signal 9\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20) == 130


def test_a_scan_waits_for_a_peer_command_that_is_only_starting(program: Program) -> None:
    program("socat")
    listening = "sleep 1; exec socat -u TCP-LISTEN:7003,fork /dev/null"
    done = pytcp("nc", "-z", "-v", "10.99.0.1", "7003-7004", "--peer", listening)
    assert done.returncode == 0
    assert "Connection to 10.99.0.1 7003 port [tcp/*] succeeded!" in done.stderr
    assert "connect to 10.99.0.1 port 7004 (tcp) failed: Connection refused" in done.stderr


def test_nc_with_keep_takes_one_connection_after_the_other(program: Program) -> None:
    program("socat")
    peer = "sleep 1; for word in one two three; do echo $word | socat -t 1 - TCP:$PYTCP4:7000; done; kill -INT $(cat $PIDFILE)"
    with open(f"/tmp/pytcp-test-{os.getpid()}.pid", "w+") as pidfile:
        command = [sys.executable, "-m", "pytcp", "nc", "-k", "-l", "7000", "-v", "--peer", peer]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PIDFILE": pidfile.name}
        )
        pidfile.write(str(child.pid))
        pidfile.flush()
        try:
            out, err = child.communicate(timeout=60)
        finally:
            os.unlink(pidfile.name)
    assert (child.returncode, out) == (130, "one\ntwo\nthree\n")
    assert err.count("Connection received on 10.99.0.1") == 3


# --- the end ---


def test_ctrl_c_many_times_over_ends_in_good_order() -> None:
    child = subprocess.Popen([sys.executable, "-m", "pytcp", "http", "serve", "/"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    for _ in range(30):
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
        time.sleep(0.005)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert not [name for name in os.listdir("/run/netns") if name.startswith(f"pytcp-{child.pid}-")]

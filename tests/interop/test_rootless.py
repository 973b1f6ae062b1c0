"""Testbeds for who is not root: a user namespace, a veth pair where /dev/net/tun is closed, and what is said where neither goes.

The user is 65534. Their interpreter is the first that user may run and that finds this one's packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import trio

import pytcp
from pytcp.lab import rootless
from pytcp.lab.netns import TestbedError
from pytcp.lab.testbed import Testbed
from pytcp.link.packet import PacketLink
from pytcp.link.tap import Tap

from .exchange import duplex, pair

pytestmark = pytest.mark.tap

NOBODY = 65534
PROGRAM = """
import trio

async def main():
    with trio.fail_after(10):
        while True:
            try:
                stream = await trio.open_tcp_stream("10.99.0.1", 7000)
                break
            except OSError:
                await trio.sleep(0.1)
        await stream.send_all(b"hello")
        print((await stream.receive_some()).decode())

trio.run(main)
"""
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def as_nobody(arguments: list[str], outside: tuple[str, ...] = (), timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(pytcp.__file__).parents[1]), *(path for path in sys.path if path.endswith("site-packages"))]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "PYTHONPATH": ":".join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [*outside, *prefix, *arguments], env=env, cwd="/", capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False, **options
    )


@pytest.fixture(scope="module")
def nobody() -> Run:
    """Runs `pytcp ARGUMENTS` as an ordinary user."""
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed (apt-get install util-linux)")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if os.path.exists(python) and as_nobody([python, "-c", "import pytcp, trio, pyroute2, click"]).returncode == 0:
            break
    else:
        pytest.skip("an ordinary user can run no interpreter that finds these packages")
    allowed = as_nobody([python, "-c", "from pytcp.lab.rootless import probe; print(probe())"])
    if reason := allowed.stdout.strip():
        pytest.skip(reason)

    def run(*arguments: str, outside: tuple[str, ...] = (), timeout: float = 60, **options: object) -> subprocess.CompletedProcess[str]:
        return as_nobody([python, "-m", "pytcp", *arguments], outside, timeout, **options)

    return run


def test_an_ordinary_user_pings_the_peer(nobody: Run) -> None:
    done = nobody("ping", "-c", "2", "-i", "0.1")
    assert done.returncode == 0, done.stderr
    assert "64 bytes from 10.99.0.1" in done.stdout


def test_an_ordinary_users_doctor_finds_what_it_needs_and_says_how(nobody: Run) -> None:
    done = nobody("doctor")
    assert f"ordinary user (uid {NOBODY})" in done.stdout
    open_to_all = stat.S_IMODE(os.stat("/dev/net/tun").st_mode) & 0o006 == 0o006
    assert ("a TAP" if open_to_all else "a veth pair with a packet socket") in done.stdout


def test_an_ordinary_user_exchanges_data_with_a_program_at_the_peer(nobody: Run) -> None:
    done = nobody("testbed", "sh", "-c", "id -u; curl -sS -m 5 http://$PYTCP4:1/; echo status $?")
    # curl's 7: the connection was refused, so the stack answered
    assert done.stdout.split("\n")[0] == "0"
    assert "status 7" in done.stdout
    served = nobody(
        "nc",
        "-l",
        "7000",
        "--peer",
        "sleep 1; python3 -c \"import os, socket; s = socket.create_connection((os.environ['PYTCP4'], 7000)); s.sendall(b'hello')\"",
    )
    assert served.stdout == "hello", served.stderr


def test_files_an_ordinary_user_makes_belong_to_that_user(nobody: Run) -> None:
    # pytest's own folders are closed to others
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        capture = Path(folder) / "file.pcapng"
        done = nobody("ping", "-c", "1", "--pcap", str(capture))
        assert done.returncode == 0, done.stderr
        assert capture.stat().st_uid == NOBODY


def test_an_ordinary_user_runs_a_program_on_the_stack_and_may_have_a_tap(nobody: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(PROGRAM)
        os.chmod(folder, 0o755)
        peer = "python3 -c \"import socket; s = socket.create_server(('10.99.0.1', 7000)); c = s.accept()[0]; c.sendall(c.recv(100).upper())\""
        done = nobody("run", "--peer", peer, str(program))
        assert (done.returncode, done.stdout) == (0, "HELLO\n"), done.stderr
    # a node of the usual mode, seen in a mount namespace only
    mount = 'mount -t tmpfs -o dev tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && exec "$@"'
    opened = nobody("doctor", outside=("unshare", "--mount", "sh", "-c", mount, "sh"))
    assert "made, over a TAP" in opened.stdout


def test_an_ordinary_users_demo_passes_all_its_checks_and_leaves_only_its_capture(nobody: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        results, capture = Path(folder) / "demo.json", Path(folder) / "demo.pcapng"
        done = nobody("demo", "--json", str(results), "--pcap", str(capture), timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"^demo: \d+ checks passed, 0 failed$", done.stdout, re.MULTILINE)
        assert sorted(path.name for path in Path(folder).iterdir()) == ["demo.json", "demo.pcapng"]
        assert {path.stat().st_uid for path in Path(folder).iterdir()} == {NOBODY}


@pytest.mark.parametrize("carrier", ["tap", "veth"])
def test_an_inherited_descriptor_needs_neither_privilege_nor_namespace(nobody: Run, carrier: Literal["tap", "veth"]) -> None:
    with Testbed(carrier=carrier) as tb:
        fd = tb.link.fileno()
        done = nobody("ping", "-c", "1", "--tap", f"fd:{fd}", "--address", "10.99.0.2/24", "10.99.0.1", pass_fds=(fd,))
    assert done.returncode == 0, done.stderr
    assert "1 received" in done.stdout


def test_a_descriptor_that_is_no_device_is_refused(nobody: Run) -> None:
    for number, complaint in (("0", "descriptor 0 is neither"), ("99", "there is no descriptor 99")):
        done = nobody("ping", "--tap", f"fd:{number}", "--address", "10.99.0.2/24", "10.99.0.1")
        assert done.returncode == 1
        assert complaint in done.stderr


def test_where_user_namespaces_are_refused_the_commands_say_why() -> None:
    unshare = [
        "unshare",
        "-Ur",
        "sh",
        "-c",
        'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"',
        "sh",
        "setpriv",
        "--bounding-set=-sys_admin,-net_admin",
    ]
    done = subprocess.run([*unshare, sys.executable, "-m", "pytcp", "ping"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    lacking = "root without CAP_NET_ADMIN and CAP_SYS_ADMIN, and no user namespace to be had"
    assert done.stderr == f"pytcp ping: {lacking}: sysctl user.max_user_namespaces is used up or 0\n"


def test_root_of_a_user_namespace_only_has_no_rights_over_the_machines_network_and_enters_another() -> None:
    done = subprocess.run(["unshare", "-rU", sys.executable, "-m", "pytcp", "ping", "-c", "1"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    none_more = ["unshare", "-rU", "sh", "-c", 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"', "sh", sys.executable, "-m", "pytcp"]
    done = subprocess.run([*none_more, "doctor", "--json"], capture_output=True, text=True, timeout=60, check=False)
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["privileges"]["status"] == "missing"
    assert found["privileges"]["detail"].startswith("root without CAP_NET_ADMIN and CAP_SYS_ADMIN")
    assert "user.max_net_namespaces" in found["privileges"]["detail"]
    assert found["namespaces"]["detail"] == "cannot make a network namespace: mount on /run/netns: Operation not permitted"
    assert "run as root" not in found["namespaces"]["remedy"]


def test_root_needs_no_user_namespace() -> None:
    assert not rootless.enter()
    assert rootless.entered() is None
    assert rootless.lacking() == []


# --- the veth pair ---


@pytest.mark.parametrize("offload", [True, False])
def test_a_testbed_without_a_tap_carries_the_same(offload: bool) -> None:
    async def main() -> None:
        async with pair(tb) as p:
            for family in (4, 6):
                async with p.kernel_connects(family) as (kernel, ours):
                    assert kernel.congestion == "cubic"
                    await duplex(kernel.stream, ours, 2 << 20)
                async with p.pytcp_connects(family) as (kernel, ours):
                    await duplex(kernel.stream, ours, 2 << 20)
            assert p.stack.net.mib.TcpInCsumErrors == 0
            assert (await p.stack.ping(tb.peer6))[0].rtt is not None

    with Testbed(carrier="veth", offload=offload) as tb:
        assert isinstance(tb.link, PacketLink)
        assert bool(tb.link._hdr_len) is offload
        trio.run(main)
        # no second kernel host disturbs the peer's counters
        assert tb.nstat()["IpInAddrErrors"] == 0


def test_the_mtu_of_a_testbed_holds_at_both_ends_of_the_pair() -> None:
    with Testbed(carrier="veth", mtu=9000) as tb:
        assert tb.link.mtu == 9000
        assert b"mtu 9000" in tb.run(["ip", "link", "show", "tap0"]).stdout


def test_both_namespaces_go_away_with_the_testbed() -> None:
    before = set(os.listdir("/run/netns"))
    with Testbed(carrier="veth"):
        assert len(set(os.listdir("/run/netns")) - before) >= 2
    assert not {name for name in set(os.listdir("/run/netns")) - before if f"-{os.getpid()}-" in name}


def test_a_tap_that_is_asked_for_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pytcp.link.tap.Tap.__init__", refused)
    with pytest.raises(TestbedError, match="cannot open a TAP device: Permission denied"):
        Testbed(carrier="tap").open()
    with Testbed() as tb:
        assert isinstance(tb.link, PacketLink)


def test_a_link_and_its_duplicate_lead_to_the_same_device() -> None:
    async def main(link: Tap | PacketLink) -> None:
        for _ in range(2):
            async with pytcp.open_stack(link=link.duplicate(), addresses=tb.addresses) as stack:
                assert (await stack.ping(tb.peer4))[0].rtt is not None

    carriers: tuple[Literal["tap", "veth"], ...] = ("tap", "veth")
    for carrier in carriers:
        with Testbed(carrier=carrier) as tb:
            assert isinstance(tb.link, Tap | PacketLink)
            trio.run(main, tb.link)


def test_who_is_not_root_is_told_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(TestbedError, match=r"needs root: run as root, or call pytcp\.lab\.rootless\.enter\(\) before"):
        Testbed().open()

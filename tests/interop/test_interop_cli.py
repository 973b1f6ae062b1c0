"""The commands as people type them: ping, traceroute, nc and testbed in a testbed of their own, with real programs at the peer."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from pytcp.cli.nc import Options, _scan
from pytcp.cli.network import Network
from pytcp.cli.traceroute import hop_line
from pytcp.lab.netns import Namespace
from pytcp.lab.testbed import Testbed
from pytcp.lab.traceroute import traceroute
from pytcp.native import HAVE_C

from .exchange import pair

pytestmark = pytest.mark.tap

Program = Callable[[str], str]


def pytcp(*arguments: str, data: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytcp", *arguments], input=data, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    names = "subjectAltName=DNS:peer.test,IP:10.99.0.1"
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=peer.test"]
    subprocess.run([*request, "-addext", names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


# --- the stack of a command ---


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks of others are not seen."""
    monkeypatch.setenv("PYTCP_RUNTIME_DIR", str(tmp_path))


@pytest.mark.usefixtures("alone")
def test_a_command_may_have_a_queueing_discipline_a_thread_and_another_kernels_defaults() -> None:
    if not HAVE_C:
        pytest.skip("no C helpers")
    look = f"{sys.executable} -m pytcp qdisc -d; {sys.executable} -m pytcp sysctl net.ipv4.tcp_limit_output_bytes"
    hello = """import socket, os; socket.create_connection((os.environ["PYTCP4"], 7)).sendall(b"hello")"""
    peer = f"sleep 0.5; {look}; {sys.executable} -c '{hello}'"
    done = pytcp("nc", "-l", "7", "--qdisc", "fq", "--tx-thread", "--profile", "linux-5.15", "--peer", peer)
    assert "dev tap0 root refcnt 2 limit 10000p" in done.stdout and "  ring thread " in done.stdout
    assert "net.ipv4.tcp_limit_output_bytes = 1048576" in done.stdout
    assert done.stdout.endswith("hello")


@pytest.mark.usefixtures("alone")
def test_a_program_may_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys, trio\n"
        "async def main():\n"
        "    for words in (['qdisc'], ['sysctl', 'net.ipv4.tcp_limit_output_bytes']):\n"
        "        print((await trio.run_process([sys.executable, '-m', 'pytcp', *words], capture_stdout=True)).stdout.decode())\n"
        "trio.run(main)\n"
    )
    done = pytcp("run", "--qdisc", "fq", "--profile", "linux-5.15", str(program))
    assert "qdisc fq 8002: dev tap0" in done.stdout, done.stderr
    assert "net.ipv4.tcp_limit_output_bytes = 1048576" in done.stdout


# --- ping ---


def test_ping_prints_what_iputils_prints() -> None:
    done = pytcp("ping", "-c", "2", "-i", "0.1", "-s", "100")
    assert done.returncode == 0
    first, *answers, blank, head, counts, times = done.stdout.splitlines()
    assert first == "PING 10.99.0.1 (10.99.0.1) 100(128) bytes of data."
    for number, line in enumerate(answers, 1):
        assert re.fullmatch(rf"108 bytes from 10\.99\.0\.1: icmp_seq={number} ttl=64 time=\d+(\.\d+)? ms", line)
    assert len(answers) == 2
    assert (blank, head) == ("", "--- 10.99.0.1 ping statistics ---")
    assert re.fullmatch(r"2 packets transmitted, 2 received, 0% packet loss, time \d+ms", counts)
    assert re.fullmatch(r"rtt min/avg/max/mdev = (\d+\.\d{3}/){3}\d+\.\d{3} ms", times)


def test_a_quiet_ping_prints_the_first_line_and_the_summary_only() -> None:
    done = pytcp("ping", "-q", "-c", "2", "-i", "0", "fd99::1")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == ["PING fd99::1(fd99::1) 56 data bytes", "", "--- fd99::1 ping statistics ---"]
    assert len(lines) == 5


def test_a_ping_nobody_answers_fails() -> None:
    done = pytcp("ping", "-c", "1", "-W", "0.1", "10.99.0.77")
    assert done.returncode == 1
    assert "1 packets transmitted, 0 received, 100% packet loss" in done.stdout


def test_a_ping_without_a_route_is_one_line() -> None:
    done = pytcp("ping", "-c", "1", "10.1.2.3")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("pytcp ping: ")
    assert "statistics" not in done.stdout


# --- traceroute ---


def test_traceroute_of_the_peer_is_one_hop() -> None:
    for arguments in ((), ("-I",)):
        done = pytcp("traceroute", *arguments)
        assert done.returncode == 0
        head, hop = done.stdout.splitlines()
        assert head == "traceroute to 10.99.0.1 (10.99.0.1), 30 hops max, 60 byte packets"
        assert re.fullmatch(r" 1  10\.99\.0\.1 \(10\.99\.0\.1\)(  \d+\.\d{3} ms){3}", hop)


@pytest.mark.parametrize("icmp", [False, True])
@pytest.mark.parametrize(("far", "near", "gateway"), [("10.98.0.2", "10.99.0.1", "10.99.0.1"), ("fd98::2", "fd99::1", "fd99::1")])
def test_traceroute_finds_the_router_between(icmp: bool, far: str, near: str, gateway: str) -> None:
    async def main() -> None:
        async with pair(tb, gateway=gateway) as p:
            hops = await traceroute(p.stack, far, icmp=icmp, wait=3, simultaneous=3)
            assert [{probe.source for probe in hop} for hop in hops] == [{near}, {far}]
            assert all(probe.rtt is not None for hop in hops for probe in hop)
            assert [probe.final for probe in hops[-1]] == [True] * 3
            [only] = await traceroute(p.stack, far, icmp=icmp, hops=1, wait=3)
            assert [(probe.source, probe.final) for probe in only] == [(near, False)] * 3

    router = {"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1, "net.ipv4.icmp_ratelimit": 0, "net.ipv6.icmp.ratelimit": 0}
    with Testbed(sysctls=router) as tb, Namespace() as behind:
        behind.set_sysctl("net.ipv6.conf.default.accept_dad", 0)
        behind.set_sysctl("net.ipv4.icmp_ratelimit", 0)
        behind.set_sysctl("net.ipv6.icmp.ratelimit", 0)
        with tb.netlink() as ip:
            ip.link("add", ifname="far0", kind="veth", peer={"ifname": "near0", "net_ns_fd": behind.fileno()})
            index = ip.link_lookup(ifname="far0")[0]
            ip.link("set", index=index, state="up")
            ip.addr("add", index=index, address="10.98.0.1", prefixlen=24)
            ip.addr("add", index=index, address="fd98::1", prefixlen=64, flags=2)
        with behind.netlink() as ip:
            index = ip.link_lookup(ifname="near0")[0]
            ip.link("set", index=index, state="up")
            ip.addr("add", index=index, address="10.98.0.2", prefixlen=24)
            ip.addr("add", index=index, address="fd98::2", prefixlen=64, flags=2)
            ip.route("add", dst="default", gateway="10.98.0.1")
            ip.route("add", dst="default", gateway="fd98::1", family=10)
        trio.run(main)


def test_traceroute_shows_where_the_way_ends() -> None:
    async def main() -> None:
        async with pair(tb, gateway="10.99.0.1") as p:
            hops = await traceroute(p.stack, "10.97.0.1", wait=1, queries=1)
            assert re.fullmatch(r" 1  10\.99\.0\.1 \(10\.99\.0\.1\)  \d+\.\d{3} ms !N", hop_line(hops[-1]))
            with trio.fail_after(20):
                silent = await traceroute(p.stack, "10.99.0.77", wait=0.2, hops=2, first=2)
            assert hop_line(silent[0]) == " 2  * * *"

    with Testbed(sysctls={"net.ipv4.ip_forward": 1, "net.ipv4.icmp_ratelimit": 0}) as tb:
        trio.run(main)


# --- nc ---


def test_nc_listens_on_both_families_and_shuts_down_one_direction(program: Program, tmp_path: Path) -> None:
    program("socat")
    for address in ("$PYTCP4", "[$PYTCP6]"):
        peer = f"sleep 1; echo from the peer | socat -t 5 - TCP:{address}:7000 > {tmp_path}/got"
        done = pytcp("nc", "-l", "7000", "--peer", peer, data="from pytcp\n")
        assert (done.returncode, done.stdout) == (0, "from the peer\n")
        assert (tmp_path / "got").read_text() == "from pytcp\n"


def test_nc_sends_the_rest_of_its_input_to_a_peer_that_has_ended_its_own(program: Program, tmp_path: Path) -> None:
    program("socat")
    peer = f"sleep 0.5; socat -t 5 - TCP:$PYTCP4:7000 </dev/null > {tmp_path}/got"
    command = f"(sleep 2; echo late) | {sys.executable} -m pytcp nc -l 7000 --peer '{peer}'"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "got").read_text() == "late\n"


def test_nc_connects_and_waits_for_the_answer_after_its_end_of_file(program: Program) -> None:
    program("socat")
    done = pytcp("nc", "-v", "10.99.0.1", "7000", "--peer", "socat -t 5 TCP-LISTEN:7000 SYSTEM:'tr a-z A-Z'", data="hello\n")
    assert (done.returncode, done.stdout) == (0, "HELLO\n")
    assert "Connection to 10.99.0.1 7000 port [tcp/*] succeeded!" in done.stderr


def test_nc_exchanges_datagrams_in_both_roles(program: Program, tmp_path: Path) -> None:
    program("socat")
    done = pytcp("nc", "-u", "-q", "1", "-w", "20", "10.99.0.1", "7", "--peer", "socat UDP-RECVFROM:7,fork EXEC:cat", data="datagram\n")
    # what was sent before the peer listened came back as an error
    assert (done.returncode, done.stdout) == (0, "datagram\n") or "Connection refused" in done.stderr
    peer = f"sleep 1; echo question | socat -t 2 - UDP:$PYTCP4:7 > {tmp_path}/got"
    done = pytcp("nc", "-u", "-l", "-w", "2", "7", "--peer", peer, data="answer\n")
    assert (done.returncode, done.stdout) == (0, "question\n")
    assert (tmp_path / "got").read_text() == "answer\n"


def test_nc_speaks_tls_as_a_client_and_verifies_the_peer(program: Program, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    program("socat")
    cert, key = certificate
    peer = f"socat OPENSSL-LISTEN:4433,cert={cert},key={key},verify=0 EXEC:cat"
    done = pytcp("nc", "--tls", "10.99.0.1", "4433", "--peer", peer, data="hello\n")
    assert done.returncode == 1
    assert "pytcp nc: TLS: [SSL: CERTIFICATE_VERIFY_FAILED]" in done.stderr
    done = pytcp("nc", "--tls", "--no-verify", "10.99.0.1", "4433", "--peer", peer, data="hello\n")
    assert (done.returncode, done.stdout) == (0, "hello\n")
    monkeypatch.setenv("SSL_CERT_FILE", cert)
    for name in ((), ("--name", "peer.test")):
        done = pytcp("nc", "--tls", *name, "10.99.0.1", "4433", "--peer", peer, data="hello\n")
        assert (done.returncode, done.stdout) == (0, "hello\n")
    done = pytcp("nc", "--tls", "--name", "other.test", "10.99.0.1", "4433", "--peer", peer, data="hello\n")
    assert done.returncode == 1
    assert "Hostname mismatch" in done.stderr


def test_nc_speaks_tls_as_a_server(program: Program, certificate: tuple[str, str], tmp_path: Path) -> None:
    program("openssl")
    cert, key = certificate
    peer = f"sleep 1; (echo secret; sleep 1) | openssl s_client -quiet -verify_return_error -CAfile {cert} -connect $PYTCP4:4433 > {tmp_path}/got 2>/dev/null"
    done = pytcp("nc", "-l", "--tls", "--cert", cert, "--key", key, "-q", "3", "4433", "--peer", peer, data="hello\n")
    assert done.stdout == "secret\n"
    assert (tmp_path / "got").read_text() == "hello\n"


TLS_SERVER = """
import socket, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("{}", "{}")
with socket.create_server(("10.99.0.1", 4433)) as server, server.accept()[0] as plain:
    with context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False) as secure:
        print(secure.recv(100), secure.recv(100), secure.unwrap().recv(1), flush=True)
"""


def test_what_nc_sends_over_tls_is_ended_by_a_close_notify_and_then_a_fin(certificate: tuple[str, str], tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text(TLS_SERVER.format(*certificate))
    for options in ((), ("-q", "0")):
        done = pytcp("nc", "--tls", "--no-verify", *options, "10.99.0.1", "4433", "--peer", f"{sys.executable} {server}", data="hello\n")
        assert (done.returncode, done.stdout) == (0, "b'hello\\n' b'' b''\n"), done.stderr


# connects to or listens at port 7000, says something, and resets the connection after a pause
RESETS = """
import os, socket, struct, sys, time
if sys.argv[1] == "listen":
    one = socket.create_server(("10.99.0.1", 7000)).accept()[0]
else:
    one = socket.create_connection((os.environ["PYTCP4"], 7000))
one.sendall(b"some\\n")
time.sleep(float(sys.argv[2]))
one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
one.close()
"""


@pytest.fixture
def resets(tmp_path: Path) -> str:
    program = tmp_path / "resets.py"
    program.write_text(RESETS)
    return f"{sys.executable} {program}"


@pytest.mark.parametrize("given", ["sleep 2 |", "</dev/null", "</dev/zero"])
def test_nc_tells_of_a_reset_in_a_line_behind_what_had_come(resets: str, given: str) -> None:
    call = f"{sys.executable} -m pytcp nc 10.99.0.1 7000 --peer '{resets} listen 0.5'"
    done = subprocess.run(["sh", "-c", f"{given} {call}" if given.endswith("|") else f"{call} {given}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "some\n")
    assert done.stderr.splitlines()[1:] == ["pytcp nc: Connection reset by peer"]


def test_nc_reads_what_a_client_said_that_resets_at_once(resets: str) -> None:
    done = pytcp("nc", "-l", "7000", "--peer", f"sleep 1; {resets} connect 0")
    assert (done.returncode, done.stdout) == (1, "some\n")
    assert done.stderr.splitlines()[2:] == ["pytcp nc: Connection reset by peer"]


def test_nc_that_keeps_listening_goes_on_after_a_client_that_resets(resets: str) -> None:
    clients = "; ".join(f"{resets} connect {pause}; sleep 0.3" for pause in (0, 0.3, 0.3))
    call = [sys.executable, "-m", "pytcp", "nc", "-l", "-k", "7000", "--peer", f"sleep 1; {clients}; kill -INT $PPID"]
    done = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "some\n" * 3), done.stderr
    assert done.stderr.splitlines()[2:] == [*["pytcp nc: Connection reset by peer"] * 3, "pytcp nc: interrupted"]


def test_nc_gives_up_on_a_host_that_does_not_answer() -> None:
    done = pytcp("nc", "-w", "0.5", "10.99.0.77", "80")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "pytcp nc: Connection timed out: no answer from 10.99.0.77 port 80 in 0.5 s"


@pytest.mark.parametrize(("udp", "kind"), [(False, "tcp"), (True, "udp")])
def test_a_scan_finds_who_listens(udp: bool, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        with tb.socket(kind=2 if udp else 1) as server:
            server.bind((tb.peer4, 7001))
            if not udp:
                server.listen()
            async with pair(tb) as p:
                net = Network(p.stack, tb, tuple(tb.addresses))
                options = Options(tb.peer4, (7000, 7001, 7002), False, False, udp, True, True, 0.5, None, False, True, None, None, None)
                assert await _scan(net, options) == 0
                assert await _scan(net, Options(tb.peer4, (7000,), False, False, udp, True, True, 0.5, None, False, True, None, None, None)) == 1

    with Testbed(sysctls={"net.ipv4.icmp_ratelimit": 0}) as tb:
        trio.run(main)
    assert capsys.readouterr().err.splitlines()[:3] == [
        f"connect to 10.99.0.1 port 7000 ({kind}) failed: Connection refused",
        f"Connection to 10.99.0.1 7001 port [{kind}/*] succeeded!",
        f"connect to 10.99.0.1 port 7002 ({kind}) failed: Connection refused",
    ]


# --- testbed ---


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("kill -9 $$", 137), ('test "$PYTCP4 $PYTCP6 $PEER4 $PEER6" = "10.99.0.2 fd99::2 10.99.0.1 fd99::1"', 0)]
)
def test_the_status_of_a_testbed_is_its_commands(script: str, status: int) -> None:
    assert pytcp("testbed", "sh", "-c", script).returncode == status


def test_a_command_in_a_testbed_meets_the_stack(program: Program) -> None:
    program("curl")
    done = pytcp("testbed", "curl", "-sS", "-m", "5", "http://10.99.0.2:1/")
    assert done.returncode == 7  # refused, so somebody was there to refuse
    done = pytcp("testbed", "nosuchprogram")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "pytcp testbed: nosuchprogram: No such file or directory"


# --- http get ---

SERVE = 'cd {} && exec python3 -c "{}"'
PLAIN = "import http.server as h; h.ThreadingHTTPServer(('10.99.0.1', 8000), h.SimpleHTTPRequestHandler).serve_forever()"


def test_http_get_continues_a_file_where_it_was_left(program: Program, tmp_path: Path) -> None:
    nginx = program("nginx")
    data = bytes(range(256)) * 2000
    (tmp_path / "file").write_bytes(data)
    tmp_path.chmod(0o755)
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; user root; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; server {{ listen 10.99.0.1:8000; root {tmp_path}; }} }}\n"
    )
    peer = f"exec {nginx} -c {config} -e {tmp_path}/error.log"
    got = tmp_path / "got"
    got.write_bytes(data[:300_000])
    arguments = ("http", "get", "--quiet", "--peer", peer, "-o", str(got), "http://10.99.0.1:8000/file")
    capture = tmp_path / "capture.pcapng"
    assert pytcp(*arguments, "-C", "--pcap", str(capture)).returncode == 0
    assert got.read_bytes() == data
    assert capture.stat().st_size < len(data)  # only the rest was sent
    again = pytcp(*arguments, "-C")
    assert (again.returncode, again.stderr.splitlines()[-1]) == (0, f"{got} is complete")
    assert pytcp(*arguments, "-r", "-100").returncode == 0
    assert got.read_bytes() == data[-100:]
    assert pytcp(*arguments, "-H", "Range: bytes=5-9").returncode == 0
    assert got.read_bytes() == data[5:10]


def test_http_get_begins_anew_where_the_server_knows_no_ranges(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    got = tmp_path / "got"
    got.write_bytes(b"01234")
    done = pytcp("http", "get", "--quiet", "-C", "-o", str(got), "http://10.99.0.1:8000/file", "--peer", SERVE.format(tmp_path, PLAIN))
    assert done.returncode == 0, done.stderr
    assert got.read_bytes() == b"0123456789"


def test_http_get_says_that_a_server_without_ranges_sent_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    got = tmp_path / "got"
    done = pytcp("http", "get", "-r", "0-9", "-o", str(got), "http://10.99.0.1:8000/file", "--peer", SERVE.format(tmp_path, PLAIN))
    assert (done.returncode, got.stat().st_size) == (0, 1000), done.stderr
    assert "pytcp http get: http://10.99.0.1:8000/file: the server knows no ranges and sent all of it" in done.stderr


def test_http_get_of_what_is_not_there_leaves_no_file(tmp_path: Path) -> None:
    got = tmp_path / "got"
    done = pytcp("http", "get", "--quiet", "-o", str(got), "http://10.99.0.1:8000/nothing", "--peer", SERVE.format(tmp_path, PLAIN))
    assert done.returncode == 1
    assert "404" in done.stderr
    assert not got.exists()


def test_http_get_of_a_body_that_is_reset_is_one_line_with_the_url(tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome"
    server.write_text(
        "import socket, struct, time\n"
        "one = socket.create_server(('10.99.0.1', 8000)).accept()[0]\n"
        f"one.recv(1000), one.sendall({head!r}), time.sleep(0.5)\n"
        "one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
    )
    got = tmp_path / "got"
    url = "http://10.99.0.1:8000/file"
    done = pytcp("http", "get", "-o", str(got), url, "--peer", f"{sys.executable} {server}")
    assert (done.returncode, done.stderr.splitlines()[1:]) == (1, [f"pytcp http get: {url}: Connection reset by peer"])
    assert got.read_bytes() == b"some"


def test_http_get_draws_its_progress_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    get = [sys.executable, "-m", "pytcp", "http", "get", "-o", str(tmp_path / "got"), "http://10.99.0.1:8000/file", "--peer", SERVE.format(tmp_path, PLAIN)]
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(get, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as child:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while data := os.read(ours, 65536):
                drawn += data
        os.close(ours)
    assert child.returncode == 0, drawn
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode()).replace("\r", "\n").strip().splitlines()[-1]
    assert re.fullmatch(r"http://10\.99\.0\.1:8000/file ━+ 3\.0/3\.0 MB [\d.]+ [kMG]B/s", last), drawn
    plain = pytcp("http", "get", "-o", str(tmp_path / "again"), "http://10.99.0.1:8000/file", "--peer", SERVE.format(tmp_path, PLAIN))
    assert plain.returncode == 0
    assert "━" not in plain.stderr


# --- trace, explain ---


def test_what_nc_decided_is_recorded_beside_the_packets_and_explained(tmp_path: Path) -> None:
    """The trace and the capture agree about every byte that was sent for the first time."""
    trace, capture = tmp_path / "t.jsonl", tmp_path / "c.pcapng"
    peer = "socat -u TCP4-LISTEN:7000 OPEN:/dev/null"
    done = pytcp("nc", "10.99.0.1", "7000", "-q", "0.2", "--trace", str(trace), "--pcap", str(capture), "--peer", peer, data="x" * 300_000)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"trace: {trace} \([\d,]+ events\)", done.stderr)
    shown = pytcp("trace", "--json", "--kind", "xmit", str(trace))
    sent = [row for row in map(json.loads, shown.stdout.splitlines()) if not row["rtx"] and row["end_seq"] > row["seq"]]
    assert [row["seq"] for row in sent] == [0, *(row["end_seq"] for row in sent[:-1])]
    assert sent[-1]["end_seq"] == 300_000
    [story] = [story for story in json.loads(pytcp("explain", "--json", str(trace), "7000").stdout) if story["sent"]]
    assert story["sent"] == sum(gate["bytes"] for gate in story["gates"].values()) == 300_000
    assert story["ns"] == sum(gate["ns"] for gate in story["gates"].values())
    fields = ["-T", "fields", "-e", "tcp.len", "-Y", "tcp.dstport == 7000 && tcp.len > 0 && !tcp.analysis.retransmission"]
    lengths = subprocess.run(["tshark", "-r", str(capture), *fields], capture_output=True, text=True, check=True).stdout.split()
    assert sum(map(int, lengths)) == 300_000

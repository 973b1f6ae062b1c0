"""`pytcp run` as people use it: programs that know nothing of pytcp, their exit status, their errors, and that nothing is left."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytcp.lab.netns import Namespace

pytestmark = pytest.mark.tap


def run(folder: Path, source: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "pytcp", "run", *options, "program.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_a_server_program_serves_the_peer_and_its_exit_status_is_ours(tmp_path: Path) -> None:
    source = """
        import sys, trio

        async def main(port):
            done = trio.Event()

            async def shout(stream):
                data = await stream.receive_some()
                await stream.send_all(data.upper() + b" " + stream.socket.getsockname()[0].encode())
                await stream.send_eof()
                await stream.receive_some()  # the peer has printed it
                done.set()

            async with trio.open_nursery() as nursery:
                await nursery.start(trio.serve_tcp, shout, port)
                await done.wait()
                nursery.cancel_scope.cancel()
            return 7

        sys.exit(trio.run(main, int(sys.argv[1])))
        """
    ask = "for i in $(seq 100); do exec 3<>/dev/tcp/$PYTCP4/7000 && break; sleep 0.05; done; echo -n hello >&3; cat <&3"
    done = run(tmp_path, source, "7000", options=("--peer", f"bash -c '{ask}' 2>/dev/null"))
    assert done.returncode == 7, done.stderr
    assert done.stdout == "HELLO 10.99.0.2"


def test_a_program_whose_trio_is_a_guest_of_asyncio(tmp_path: Path) -> None:
    source = """
        import asyncio, sys
        import httpx, trio

        async def fetch(url):
            transport = httpx.AsyncHTTPTransport(retries=5)  # the server may still be starting
            async with httpx.AsyncClient(transport=transport) as client:
                return (await client.get(url)).text

        async def main():
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            how = {"run_sync_soon_threadsafe": loop.call_soon_threadsafe, "host_uses_signal_set_wakeup_fd": True}
            trio.lowlevel.start_guest_run(fetch, sys.argv[1], done_callback=done.set_result, **how)
            print((await done).unwrap())

        asyncio.run(main())
        """
    (tmp_path / "text").write_text("from a kernel")
    serve = "python3 -m http.server 8000 --bind $PEER4"
    done = run(tmp_path, source, "http://10.99.0.1:8000/text", options=("--pcap", "run.pcapng", "--peer", serve))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "from a kernel"
    assert b"from a kernel" in (tmp_path / "run.pcapng").read_bytes()


def test_what_a_program_raises_is_its_own_traceback_and_status_1(tmp_path: Path) -> None:
    source = """
        import trio

        async def main():
            await trio.open_tcp_stream("10.99.0.1", 9)

        try:
            trio.run(main)
        except OSError as error:
            print("caught", error)
        raise LookupError("mine")
        """
    done = run(tmp_path, source)
    assert done.returncode == 1
    assert done.stdout == "caught all attempts to connect to 10.99.0.1:9 failed\n"
    assert done.stderr.splitlines()[1:] == ["Traceback (most recent call last):", *done.stderr.splitlines()[2:-1], "LookupError: mine"]
    assert 'program.py", line 11' in done.stderr
    assert "runpy" not in done.stderr


def test_a_program_may_call_trio_run_again_and_anyio_means_trio(tmp_path: Path) -> None:
    source = """
        import os, anyio, sniffio, trio

        async def main(expected):
            listener = await anyio.create_tcp_listener(local_host=os.environ["PYTCP4"], local_port=80)
            async with listener, await anyio.connect_tcp(os.environ["PYTCP4"], 80) as stream:
                print(sniffio.current_async_library(), stream.extra(anyio.abc.SocketAttribute.remote_address))
            try:
                await anyio.connect_tcp(os.environ["PEER4"], 9)
            except OSError:
                print("refused")

        anyio.run(main, 1)
        trio.run(main, 2)
        try:
            anyio.run(main, 3, backend="asyncio")
        except RuntimeError as error:
            print(error)
        """
    done = run(tmp_path, source)
    assert done.returncode == 0, done.stderr
    once = ["trio ('10.99.0.2', 80)", "refused"]
    assert done.stdout.splitlines() == [*once, *once, "this program asks for anyio's asyncio backend; on pytcp it has to be trio"]


def test_what_goes_past_trio_reaches_nobody_and_is_not_mistaken_for_success(tmp_path: Path) -> None:
    source = """
        import os, socket
        try:
            socket.create_connection((os.environ["PEER4"], 22), timeout=5)
        except OSError as error:
            print(error)
        """
    done = run(tmp_path, source)
    assert done.returncode == 0
    assert "Network is unreachable" in done.stdout
    assert "never called trio.run" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["no-such.py"], "'no-such.py' does not exist"), ([], "Missing PROGRAM"), (["--nameserver", "dns.example", "x.py"], "is not an IPv4 or IPv6 address")],
)
def test_wrong_usage_is_named(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pytcp", "run", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_a_run_leaves_no_namespace_and_a_capture_that_can_be_read(tmp_path: Path) -> None:
    from scapy.layers.inet import TCP
    from scapy.layers.l2 import Ether  # what the frames are read as
    from scapy.utils import rdpcap

    source = """
        import os, trio

        async def main():
            try:
                await trio.open_tcp_stream(os.environ["PEER4"], 9)
            except OSError:
                pass

        trio.run(main)
        """
    done = run(tmp_path, source, options=("--pcap", "capture.pcapng"))
    assert done.returncode == 0, done.stderr
    frames = rdpcap(str(tmp_path / "capture.pcapng"))
    assert all(isinstance(frame, Ether) for frame in frames)
    assert [str(frame[TCP].flags) for frame in frames if frame.haslayer(TCP)] == ["S", "RA"]
    pid = done.stderr.split(" in pytcp-")[1].split("-")[0]
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    assert f"pytcp-{pid}-" not in left


def test_a_tap_of_the_users_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        textwrap.dedent(
            """
            import trio

            async def main():
                async with await trio.open_tcp_stream("10.0.0.1", 7000) as stream:
                    print((await stream.receive_some()).decode())

            trio.run(main)
            """
        )
    )
    with Namespace() as space:
        for command in ("tuntap add tap0 mode tap vnet_hdr", "addr add 10.0.0.1/24 dev tap0", "link set tap0 up"):
            space.run(["ip", *command.split()])
        with space.socket() as listener:
            listener.bind(("10.0.0.1", 7000))
            listener.listen()
            program = space.popen(
                [sys.executable, "-m", "pytcp", "run", "--tap", "tap0", "--address", "10.0.0.2/24", "program.py"],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            )
            listener.settimeout(30)
            connection, address = listener.accept()
            with connection:
                connection.sendall(b"hello")
            assert address[0] == "10.0.0.2"
            assert program.communicate(timeout=30)[0] == "hello\n"
            assert program.returncode == 0
        assert b"tap0" in space.run(["ip", "-brief", "link"]).stdout

"""`pytcp testbed`: a shell, or a command, on the Linux peer of a stack made for it."""

from __future__ import annotations

import os
import subprocess
from functools import partial

import click

from pytcp.cli import network
from pytcp.cli.files import NewFile


@click.command("testbed", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--pcap", metavar="FILE", type=NewFile(), help="Record the packets as pcapng.")
@click.option("--trace", metavar="FILE", type=NewFile(), help="Record TCP's decisions, for `pytcp trace` and `pytcp explain`.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND] [ARGUMENTS]...")
def command(pcap: str | None, trace: str | None, arguments: tuple[str, ...]) -> int:
    """Run a shell ($SHELL, or COMMAND) in a testbed's namespace, where a stack of pytcp is one hop away.

    The stack answers pings and refuses connections; `pytcp ss` and its kin look into it from a second terminal. In the
    shell, $PYTCP4 and $PYTCP6 are its addresses, $PEER4 and $PEER6 the kernel's. Everything is gone when the shell ends.
    Exit status: the command's; 128 and the signal's number when one ended it.

    \b
    Examples:
      pytcp testbed
      pytcp testbed ip -brief address
      pytcp testbed --pcap scan.pcapng sh -c 'nmap -sT $PYTCP4'
    """
    return network.run(network.Where(None, (), (), None, pcap, trace), partial(_main, argv=arguments or (os.environ.get("SHELL") or "/bin/sh",)))


async def _main(net: network.Network, argv: tuple[str, ...]) -> int:
    import trio

    testbed = net.testbed
    assert testbed is not None
    child: subprocess.Popen[bytes] = testbed.popen(argv, stdin=None, start_new_session=False, env=network.environment(testbed))
    try:
        while child.poll() is None:
            await trio.sleep(0.01)
    finally:
        if child.returncode is None:
            child.terminate()
            child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode

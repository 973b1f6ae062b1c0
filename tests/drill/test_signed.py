"""Scripts on what has nothing to do with MD5 signatures pass just so when every segment is signed, on pytcp and on the kernel.

A script is signed line by line: each socket gets a key, each packet the option in front of its own, and what the peer
says of its MSS 20 bytes more, which the signature takes again. Left out are subjects
where options or bursts are the point, and single scripts in `APART`: whoever writes another one for which signed segments
make a difference, as they do on the kernel, names it there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytcp.drill.run import Settings, run_text

from .test_scripts import HERE, RELAXED

SUBJECTS = (
    "autocork", "close", "delack", "ecn", "eor", "keepalive", "rcvbuf", "rfc5961", "scaling_ratio", "shrink", "timewait", "urgent", "window",
)  # fmt: skip
APART = {
    "urgent/a_listener_has_none.pkt",  # there are no packets in it
    "timewait/a_timestamp_nobody_agreed_on.pkt",  # the signature stands behind them there
    # a SYN with a key offers no timestamps
    "close/disconnect_keeps_what_was_learnt.pkt",
    "window/the_first_byte_does_not_move_wl1.pkt",
}
SCRIPTS = [path for subject in SUBJECTS for path in sorted((HERE / subject).glob("*.pkt")) if f"{subject}/{path.name}" not in APART]
NAMES = [str(path.relative_to(HERE)) for path in SCRIPTS]
OPTION = 'nop,nop,md5 "secret"'

_PACKET = re.compile(r"^(\s*\S+\s+([<>])\s.*?\d+:\d+\(\d+\).*?)\s*(?:<([^<>]*)>)?\s*$")
_SOCKET = re.compile(r"^\s*\S+\s+socket\(.*\)\s*=\s*(\d+)\s*$")


def signed(text: str) -> str:
    """The script with a key on every socket and a signature on every packet."""
    lines = []
    for line in text.split("\n"):
        packet = _PACKET.match(line)
        if packet is not None and packet[3] != "...":
            options = packet[3] or ""
            if packet[2] == "<":
                options = re.sub(r"mss (\d+)", lambda mss: f"mss {int(mss[1]) + 20}", options)
            line = f"{packet[1]} <{OPTION}{',' if options else ''}{options}>"
        lines.append(line)
        opened = _SOCKET.match(line)
        if opened is not None:
            lines.append(f'+0 setsockopt({opened[1]}, SOL_TCP, TCP_MD5SIG, {{tcpm_addr=..., tcpm_key="secret"}}, 216) = 0')
    return "\n".join(lines)


def run(path: Path, target: str, settings: Settings) -> None:
    text = signed(path.read_text())
    assert OPTION in text
    result = run_text(text, str(path), target, "ipv4", settings)
    assert result.verdict == "pass", f"signed (see APART): {result.report}"


@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_script_passes_signed_on_pytcp(path: Path) -> None:
    run(path, "pytcp", Settings())


@pytest.mark.tap
@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_script_passes_signed_on_the_kernel(path: Path) -> None:
    run(path, "kernel", RELAXED)

"""Scripts on what has nothing to do with MD5 signatures pass just so when every segment is signed, on pytcp and on the kernel.

A script is signed line by line: each socket gets a key, each packet the option in front of its own, and what the peer
says of its MSS 20 bytes more, which the signature takes again. Left out are subjects where options or bursts are the
point, and scripts with timestamps, which a SYN with a key does not offer. A new script for which signed segments make
another difference, as they do on the kernel, has its place in another subject.
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
OPTION = 'nop,nop,md5 "secret"'

_PACKET = re.compile(r"^(\s*\S+\s+([<>])\s.*?\d+:\d+\(\d+\).*?)\s*(?:<([^<>]*)>)?\s*$")
_SOCKET = re.compile(r"^\s*\S+\s+socket\(.*\)\s*=\s*(\d+)\s*$")


def can_be_signed(text: str) -> bool:
    """Whether there are packets, and no timestamps in them."""
    return "TS val" not in text and any(map(_PACKET.match, text.split("\n")))


SCRIPTS = [path for subject in SUBJECTS for path in sorted((HERE / subject).glob("*.pkt")) if can_be_signed(path.read_text())]
NAMES = [str(path.relative_to(HERE)) for path in SCRIPTS]


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
    assert result.verdict == "pass", f"signed: {result.report}"


@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_script_passes_signed_on_pytcp(path: Path) -> None:
    run(path, "pytcp", Settings())


@pytest.mark.tap
@pytest.mark.parametrize("path", SCRIPTS, ids=NAMES)
def test_script_passes_signed_on_the_kernel(path: Path) -> None:
    run(path, "kernel", RELAXED)

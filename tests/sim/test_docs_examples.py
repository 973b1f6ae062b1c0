"""The programs in virtual time of docs/sockets.md, docs/congestion-control.md and docs/why.md, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytcp
from pytcp.tcp import cong, gates, trace

DOCS = Path(pytcp.__file__).parents[1] / "docs"


def program(name: str, *marks: str) -> str:
    """The Python blocks of a page that contain one of `marks`, in their order, as one program."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    return "\n".join(block for block in blocks if any(mark in block for mark in marks))


def output(code: str) -> str:
    # in a process of its own: what it registers stays for good
    return subprocess.run([sys.executable, "-c", code], cwd=DOCS.parent, capture_output=True, text=True, check=True, timeout=120).stdout


def test_the_congestion_control_of_the_page_keeps_to_its_ten_packets() -> None:
    said = output(program("congestion-control.md", "@cong.register", "pytcp.run_virtual(main"))
    rates = {name: float(rate) for name, rate in re.findall(r"(\w+) +([\d.]+) Mbit/s", said)}
    assert list(rates) == ["reno", "cubic", "bbr", "timid"]
    # ten packets of 1448 bytes per 40 ms are 2.9 Mbit/s; the others share nothing with anybody: 20 Mbit/s less headers and the start
    assert 2.6 < rates.pop("timid") <= 2.9
    assert all(17 < rate < 20 for rate in rates.values())
    assert re.search(r"timid.*cwnd 10, 0 retransmitted", said)


def test_the_lossy_wire_of_the_page_makes_the_stack_send_again() -> None:
    said = output(program("sockets.md", "pytcp.run_virtual(main)\n"))
    found = re.fullmatch(r"([\d.]+) s, rtt (\d+) ms, (\d+) segments sent again\n", said)
    assert found is not None
    seconds, rtt, again = map(float, found.groups())
    # 200 round trips of twice 21 ms, 200 messages one in fifty of which is lost each way
    assert seconds > 200 * 0.042
    assert rtt >= 42
    assert again > 0


def test_the_guest_of_the_page_hears_the_answer() -> None:
    assert output(program("sockets.md", "start_guest_run")) == "b'HELLO'\n"


def test_the_commands_of_the_page_print_what_stands_there(tmp_path: Path) -> None:
    """`pytcp explain` and `pytcp trace` of a program in virtual time: to the last digit, lines cut at 150 characters."""
    page = (DOCS / "why.md").read_text()
    (tmp_path / "transfer.py").write_text(program("why.md", "pytcp.run_virtual(main)"))
    shown = re.findall(r"^\$ pytcp ([^\n]* transfer\.py)\n(.*?)(?=^\$ |^```)", page, re.MULTILINE | re.DOTALL)
    assert [words.split()[0] for words, _ in shown if "|" not in words] == ["explain", "trace", "trace"]
    for words, text in shown:
        said = subprocess.run([sys.executable, "-m", "pytcp", *words.split()], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120).stdout
        lines = [line[:150].rstrip() for line in said.splitlines()]
        assert lines[: text.count("\n")] == text.splitlines()


def test_the_page_names_every_kind_gate_and_reason() -> None:
    page = (DOCS / "why.md").read_text()
    for name in (*trace.KINDS, *trace.WHY, *gates.NAMES):
        assert f"| `{name}` |" in page


def test_a_name_that_tcp_congestion_cannot_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """TCP_CA_NAME_MAX is 16 bytes, one of them the NUL."""
    monkeypatch.setattr(cong, "_registry", {})

    def named(name: str) -> type[cong.CongestionControl]:
        return type("Named", (cong.CongestionControl,), {"name": name})

    for name in ("", "x" * 16):
        with pytest.raises(ValueError, match="1 to 15 characters"):
            cong.register(named(name))
    cong.register(named("x" * 15))
    assert cong.available() == ["x" * 15]

"""The programs of the tutorial run as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "first-hour.md").read_text()


def program(name: str) -> str:
    """The Python block that follows "Save it as `name`"."""
    match = re.search(rf"Save it as `{name}`:\n\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert match is not None
    return match[1]


def test_the_virtual_program_prints_the_documented_line_twice(tmp_path: Path) -> None:
    path = tmp_path / "dream.py"
    path.write_text(program("dream.py"))
    runs = [subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, timeout=120).stdout for _ in range(2)]
    assert runs[0] == runs[1]
    assert re.fullmatch(r"[\d.]+ s, cwnd \d+, rtt \d+ us, \d+ retransmits\n", runs[0])
    assert f"    {runs[0]}" in TEXT, "the tutorial shows another run: put this line into it"


@pytest.mark.tap
def test_the_httpx_program_fetches_from_a_kernel_peer(tmp_path: Path) -> None:
    (tmp_path / "fetch.py").write_text(program("fetch.py").replace("0.02", "0"))
    (tmp_path / "big.bin").write_bytes(bytes(2_000_000))
    argv = [sys.executable, "-P", "-m", "pytcp", "run", "--pcap", "fetch.pcapng", "--peer", "python3 -m http.server 8000 --bind $PEER4"]
    done = subprocess.run([*argv, "fetch.py", "http://10.99.0.1:8000/big.bin"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "200 HTTP/1.0 2000000 bytes" in done.stdout
    assert (tmp_path / "fetch.pcapng").stat().st_size > 0

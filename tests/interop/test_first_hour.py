"""The tutorial, followed: its programs as they stand there, its commands, and what it says they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "first-hour.md").read_text()
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTCP_STACK": "fetch.py"}  # other stacks may run here


def program(name: str) -> str:
    """The Python block that follows "Save it as `name`"."""
    match = re.search(rf"Save it as `{name}`:\n\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert match is not None
    return match[1]


def commands(section: int) -> list[tuple[str, list[str]]]:
    """(command, lines it is said to print) of a section's blocks."""
    text = TEXT[TEXT.index(f"## {section}. ") : TEXT.index(f"## {section + 1}. ")]
    found: list[tuple[str, list[str]]] = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines() if not language else ():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif found:
                found[-1][1].append(line)
    assert found
    return found


def pattern(line: str) -> str:
    """What a printed line must look like: its words, any number where there is one, anything for "...", any white space."""
    text = re.sub(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", "MAC", line.strip())
    text = re.escape(text).replace(re.escape("..."), ".*").replace("REACHABLE", "(REACHABLE|STALE|DELAY|PROBE)").replace("9775\\ bytes", "9775\\ (bytes|kB)")
    text = re.sub(r"\\\[\d+/\w+/[^]]*\]", r"\\[[^]]*]", text)
    text = re.sub(r"\d+((\\\.|,)\d+)*", r"\\d[\\d.,]*", text)
    return re.sub(r"(\\ )+", r"\\s+", text).replace("MAC", "[0-9a-f:]{17}")


def missing(said: list[str], printed: str) -> list[str]:
    """Lines the page shows that were not printed."""
    lines = [line.strip() for line in printed.splitlines()]
    return [f"{line!r} in {printed}" for line in said if not any(re.fullmatch(pattern(line), one) for one in lines)]


def shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["bash", "-c", command], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


def test_the_first_program_is_the_one_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"```python\n{program('hello.py')}```" in readme


def test_nothing_has_to_be_filled_in() -> None:
    assert "git clone" not in TEXT and "REPOSITORY" not in TEXT


@pytest.mark.tap
def test_the_first_program_greets_a_real_curl(tmp_path: Path, program_: Callable[[str], str]) -> None:
    program_("curl")
    (tmp_path / "hello.py").write_text(program("hello.py"))
    [(command, said)] = [(command, said) for command, said in commands(1) if "hello.py" in command]
    assert shell(command, tmp_path).stdout.splitlines() == said


@pytest.fixture
def program_(program: Callable[[str], str]) -> Callable[[str], str]:
    """The fixture of that name, beside the function of that name."""
    return program


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Section 2: the program that fetches, while it does, and what the page says it prints."""
    (tmp_path / "fetch.py").write_text(program("fetch.py"))
    [(make, _), (run, said)] = commands(2)
    shell(make, tmp_path)
    child = subprocess.Popen(["bash", "-c", f"exec {run}"], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield child, said
    finally:
        child.terminate()
        child.communicate(timeout=20)


def until_it_waits(child: subprocess.Popen[str], cwd: Path) -> None:
    """The transfer is under way, and its reader behind."""
    deadline = time.monotonic() + 20
    while True:
        found = subprocess.run(["bash", "-c", "pytcp ss -Ht"], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False).stdout.split()
        if found[:1] == ["ESTAB"] and int(found[1]) > 10_000:
            return
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.tap
def test_the_fetch_is_looked_into_and_its_capture_read_as_the_page_says(
    tmp_path: Path, running: tuple[subprocess.Popen[str], list[str]], program_: Callable[[str], str]
) -> None:
    child, said = running
    until_it_waits(child, tmp_path)
    for command, shown in commands(3):
        assert not missing(shown, shell(command, tmp_path).stdout)
    assert child.poll() is None, "the transfer was over before everything was looked at"
    printed, _ = child.communicate(timeout=60)
    assert child.returncode == 0, printed
    assert not missing(said, printed)
    program_("tshark")
    for command, shown in commands(4):
        assert not missing(shown, shell(command, tmp_path).stdout)


def test_the_virtual_program_prints_the_documented_line_twice(tmp_path: Path) -> None:
    path = tmp_path / "dream.py"
    path.write_text(program("dream.py"))
    [(command, said)] = commands(5)
    assert [shell(command, tmp_path).stdout.splitlines() for _ in range(2)] == [said, said], "the tutorial shows another run: put its line into it"

"""pytest collects *.pkt files as tests: each is run on the targets and in the modes asked for.

    pytest --drill-target both --drill-ip all tests/drill

Scripts on the kernel have the marker `tap`, and are skipped when the machine cannot run them. What is unsupported,
like what fails, is a failed test: a script nobody can run proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .run import TARGETS, Result, Settings, run_file
from .target import IP_MODES


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line, and `drill_*` in the project's settings."""
    group = parser.getgroup("drill", "packetdrill scripts (pytcp drill)")
    group.addoption("--drill-target", default=None, choices=[*TARGETS, "both", "none"], help="what *.pkt files test; none: they are not collected")
    group.addoption("--drill-ip", default=None, choices=[*IP_MODES, "all"], help="in which mode")
    parser.addini("drill_target", "pytcp, kernel, both or none (the default: *.pkt files are not collected)", default="none")
    parser.addini("drill_ip", "ipv4, ipv6, ipv4-mapped or all", default="ipv4")
    parser.addini("drill_define", "macros, one NAME=VALUE a line", type="linelist", default=[])
    parser.addini("drill_timeout", "seconds of the script's time after which it fails", default="60")


def pytest_configure(config: pytest.Config) -> None:
    """Runs on the kernel are marked, so that a project can leave them out: -m "not tap". Raises UsageError for a setting
    that makes no sense."""
    for name, known in (("target", (*TARGETS, "both", "none")), ("ip", (*IP_MODES, "all"))):
        if _setting(config, name) not in known:
            raise pytest.UsageError(f"drill_{name} = {_setting(config, name)}: there are {', '.join(known)}")
    config.addinivalue_line("markers", "tap: needs root and a usable /dev/net/tun")


def _setting(config: pytest.Config, name: str) -> str:
    return str(config.getoption(f"--drill-{name}") or config.getini(f"drill_{name}"))


def _macros(config: pytest.Config) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in config.getini("drill_define"))}


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A .pkt file, if they are wanted."""
    if file_path.suffix != ".pkt" or _setting(parent.config, "target") == "none":
        return None
    made: pytest.Collector = ScriptFile.from_parent(parent, path=file_path)
    return made


class ScriptFile(pytest.File):
    """One script, with a test for each target and mode."""

    def collect(self) -> Iterator[pytest.Item]:
        target, ip = _setting(self.config, "target"), _setting(self.config, "ip")
        for name in TARGETS if target == "both" else (target,):
            for mode in IP_MODES if ip == "all" else (ip,):
                item: ScriptItem = ScriptItem.from_parent(self, name=f"{name}-{mode}", target=name, ip=mode)
                if name == "kernel":
                    item.add_marker("tap")
                yield item


class ScriptFailed(Exception):
    """A run that was not a pass."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.reason)
        self.result = result


class ScriptItem(pytest.Item):
    """One run."""

    def __init__(self, *, target: str, ip: str, **options: Any) -> None:
        super().__init__(**options)
        self.target = target
        self.ip = ip

    def runtest(self) -> None:
        settings = Settings(macros=_macros(self.config), timeout_s=float(self.config.getini("drill_timeout")))
        result = run_file(self.path, self.target, self.ip, settings)
        if result.verdict == "skipped":
            pytest.skip(result.reason)
        if result.verdict != "pass":
            raise ScriptFailed(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ScriptFailed):
            result = excinfo.value.result
            return f"{result.verdict}: {result.report or result.reason}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name} [{self.name}]"

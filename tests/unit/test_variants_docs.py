"""docs/variants.md against the code: every switch with its values and default, every line of every profile."""

from __future__ import annotations

from pathlib import Path

import pytest

import pytcp
from pytcp.tcp import profiles
from pytcp.tcp.sysctl import TABLE, Entry, TcpSysctl

PAGE = (Path(pytcp.__file__).parents[1] / "docs" / "variants.md").read_text()
NAMES = {entry.attr: entry.name for entry in TABLE}
SWITCHES = [entry for entry in TABLE if entry.name.startswith("pytcp.") and not entry.name.startswith("pytcp.tcp_cubic.")]


def shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else "INT_MAX" if value == 0x7FFFFFFF else str(value)


@pytest.mark.parametrize("entry", SWITCHES, ids=lambda entry: entry.name)
def test_every_switch_is_there_with_its_values_and_default(entry: Entry) -> None:
    values = ", ".join(entry.words) if entry.words else f"{entry.low}..{entry.high}"
    assert f"| `{entry.name}` | {values} | {getattr(TcpSysctl, entry.attr)} | " in PAGE


def test_no_switch_is_there_that_does_not_exist() -> None:
    named = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `pytcp.")}
    assert named <= set(NAMES.values())


def test_the_profile_table_is_the_codes() -> None:
    header = f"| sysctl | {' | '.join(profiles.NAMES)} | source |"
    table = PAGE[PAGE.index(header) :].split("\n\n")[0].splitlines()[2:]
    assert table == [f"| `{NAMES[row.attr]}` | {' | '.join(map(shown, row.values))} | {row.source} |" for row in profiles.ROWS]

"""The layers of the house: imports point down only, and the engine knows neither clock nor system."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytcp
import pytcp.socket

ROOT = Path(pytcp.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

BOTTOM = {"native"}
BELOW: dict[str, set[str]] = {
    "__init__": {"clock", "link", "net", "sockets", "tcp", "wire"} | BOTTOM,
    "native": set(),
    "wire": BOTTOM,
    "tcp": {"wire"},
    "clock": {"link"},
    "link": {"clock", "wire"} | BOTTOM,
    "net": {"clock", "link", "tcp", "wire"} | BOTTOM,
    "sockets": {"clock", "link", "net", "tcp", "wire"} | BOTTOM,
    "socket": {"sockets"},
}
TOP = {"drill", "lab", "cli", "__main__"}  # import anything
ENGINE_FORBIDDEN = {"trio", "socket", "os", "time", "select", "selectors", "asyncio", "threading", "subprocess", "signal", "datetime"}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in a file, function bodies and TYPE_CHECKING included."""
    package = ["pytcp", *path.relative_to(ROOT).with_suffix("").parts][:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            # `from pytcp import native` names a module in its list
            yield from ((node.lineno, f"{module}.{alias.name}" if module == "pytcp" else module) for alias in node.names)


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    wrong = []
    for line, module in imported(path):
        target = layer(module)
        if module.split(".")[0] != "pytcp" or target in (own, ""):
            continue
        if own not in TOP and target not in BELOW[own]:
            wrong.append(f"line {line}: {own} imports {module}")
    assert not wrong


@pytest.mark.parametrize("path", sorted((ROOT / "tcp").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_engine_imports_neither_scheduler_nor_system(path: Path) -> None:
    assert [(line, module) for line, module in imported(path) if module.split(".")[0] in ENGINE_FORBIDDEN] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, pytcp; print(sorted({'trio', 'pyroute2', 'click', 'rich', 'cffi', '_cffi_backend'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("name", pytcp.__all__)
def test_every_public_name_is_there_when_asked_for(name: str) -> None:
    assert getattr(pytcp, name) is not None
    assert name in dir(pytcp)


def test_what_the_package_needs_itself_is_not_offered() -> None:
    assert {name for name in dir(pytcp) if not name.startswith("__")} <= set(pytcp.__all__)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pytcp.nothing


SHARED = sorted(name for name in pytcp.socket.__all__ if isinstance(getattr(socket, name, None), int))


@pytest.mark.parametrize("name", SHARED)
def test_numbers_of_calls_are_those_of_the_standard_library_where_it_has_them(name: str) -> None:
    assert getattr(pytcp.socket, name) == getattr(socket, name)

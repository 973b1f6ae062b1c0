"""Who may assign what: each field of the control block belongs to the rooms its group names.

The table is sock.py itself: the comment above each group of slots says which rooms of the engine own
it. Any room may read any field; an assignment from elsewhere is a hidden coupling, and fails here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytcp.tcp

ROOT = Path(pytcp.tcp.__file__).parent
# what a control block is called where it is assigned
NAMES = ("sk", "child", "lsk", "listener", "who", "parent")
GROUP = re.compile(r"# --- (?P<title>[^(]+)\((?P<owners>[^)]*)\) ---")


def owners() -> dict[str, set[str]]:
    """Field → rooms, read from the slots of Sock."""
    table: dict[str, set[str]] = {}
    current: set[str] = set()
    inside = False
    for line in (ROOT / "sock.py").read_text().splitlines():
        if "__slots__ = (" in line:
            inside = True
        elif inside and line.strip().startswith(")"):
            break
        elif inside:
            match = GROUP.search(line)
            if match:
                current = {name.strip() for name in match["owners"].split(",")}
            for name in re.findall(r'"(\w+)"', line):
                table[name] = current
    return table


def assignments() -> list[tuple[str, str, int]]:
    """(room, field, line) for every `sk.field = ...` of the engine."""
    found = []
    for path in [*ROOT.glob("*.py"), *(ROOT / "cong").glob("*.py")]:
        room = "cong" if path.parent.name == "cong" else path.stem
        if room == "sock":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            stores = (leaf for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Attribute) and isinstance(leaf.ctx, ast.Store))
            found += [(room, leaf.attr, leaf.lineno) for leaf in stores if isinstance(leaf.value, ast.Name) and leaf.value.id in NAMES]
    return found


def test_every_group_names_rooms_that_exist() -> None:
    rooms = {p.stem for p in ROOT.glob("*.py")} | {"cong", "net", "sockets"}
    assert {room for group in owners().values() for room in group} <= rooms


def test_only_the_owning_rooms_assign_a_field() -> None:
    table = owners()
    strangers = {(field, room) for room, field, _ in assignments() if field in table and room not in table[field]}
    assert sorted(strangers) == []

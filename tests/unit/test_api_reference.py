"""docs/api is what the docstrings say now."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytcp

ROOT = Path(pytcp.__file__).parents[1]


def test_the_reference_is_up_to_date() -> None:
    program = [sys.executable, str(ROOT / "tools" / "lib" / "apidocs.py"), "--check"]
    result = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def anchors(page: str) -> set[str]:
    """Where a Markdown viewer lets one jump to: headings in lower case, spaces as hyphens, without punctuation, numbered when they repeat."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#+ +(.*?) *$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE):
        slug = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    targets = {path: anchors(text) for path, text in pages.items()}
    dead = []
    links = 0
    for path, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]*)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
            where, _, anchor = target.partition("#")
            if "://" in target:
                continue
            links += 1
            aim = (path.parent / where).resolve() if where else path
            if not aim.exists() or (anchor and anchor not in targets[aim]):
                dead.append(f"{path.relative_to(ROOT)}: {target}")
    assert links > 500
    assert not dead

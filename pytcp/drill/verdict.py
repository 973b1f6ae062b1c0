"""What a batch of runs amounts to: the table for people, JSON for programs, JUnit for CI, the exit status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from xml.etree import ElementTree

from .report import printable
from .run import VERDICTS, Result

EXIT_PASS, EXIT_FAIL, EXIT_SKIPPED = 0, 1, 77


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many of each verdict, all verdicts named."""
    found = Counter(result.verdict for result in results)
    return {verdict: found[verdict] for verdict in VERDICTS}


def exit_status(results: Sequence[Result]) -> int:
    """0: all that ran passed, some did; 77: nothing ran because the machine cannot (automake's "skipped"); else 1.

    What is unsupported did not pass: 1."""
    found = counts(results)
    if found["fail"] or found["error"] or found["unsupported"]:
        return EXIT_FAIL
    return EXIT_SKIPPED if found["skipped"] and not found["pass"] else EXIT_PASS


def as_json(results: Sequence[Result]) -> str:
    return json.dumps({"results": [result.as_json() for result in results], "counts": counts(results)}, indent=2)


def as_junit(results: Sequence[Result]) -> str:
    """One test case per run, class name = folder and target."""
    found = counts(results)
    suite = ElementTree.Element(
        "testsuite", name="pytcp drill", tests=str(len(results)), failures=str(found["fail"]),
        errors=str(found["error"]), skipped=str(found["skipped"] + found["unsupported"]), time=f"{sum(result.seconds for result in results):.3f}",
    )  # fmt: skip
    for result in results:
        path = PurePath(printable(result.file))
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{path.parent.as_posix()}.{result.target}.{result.ip}", name=path.name, time=f"{result.seconds:.3f}",
        )  # fmt: skip
        tag = {"fail": "failure", "error": "error", "unsupported": "skipped", "skipped": "skipped"}.get(result.verdict)
        if tag is not None:
            ElementTree.SubElement(case, tag, message=printable(result.reason)).text = printable(result.report)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def table(results: Sequence[Result]) -> str:
    """Verdicts by folder, target and mode."""
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for result in results:
        rows.setdefault((printable(PurePath(result.file).parent.as_posix()), result.target, result.ip), Counter())[result.verdict] += 1
    lines: list[tuple[str, ...]] = [("folder", "target", "ip", *VERDICTS)]
    lines += [(*key, *[str(found[verdict] or "") for verdict in VERDICTS]) for key, found in sorted(rows.items())]
    if len(rows) > 1:
        lines.append(("total", "", "", *[str(value or "") for value in counts(results).values()]))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = []
    for line in lines:
        cells = [cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)

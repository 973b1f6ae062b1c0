"""Many random scripts, compared; and one script made smaller as long as it differs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytcp.drill.errors import DrillError
from pytcp.drill.target_kernel import ordinary, urgent

from .compare import Difference, compare
from .generate import random_script
from .kernel import PARALLEL, run_many
from .player import Notes, script_of
from .twin import play

PROCESSES = 4  # each mostly waits


@dataclass(slots=True)
class Case:
    """One script, and what became of it."""

    name: str
    text: str
    ip: str
    kernel: Notes | None = None
    ours: Notes | None = None
    differences: Sequence[Difference] = ()
    failed: str = ""  # why it could not be run

    @property
    def differs(self) -> bool:
        return bool(self.differences or self.failed)


def random_cases(kind: str, seeds: Iterable[int]) -> list[Case]:
    """Scripts by seed."""
    return [Case(f"{kind}-{seed}", *random_script(kind, seed)) for seed in seeds]


def judge(cases: Sequence[Case], processes: int = PROCESSES) -> Iterator[Case]:
    """Run each on the kernel and on pytcp; yields them as they are known. Raises CannotRun where the machine does not let us."""
    batches = [list(cases[at : at + PARALLEL]) for at in range(0, len(cases), PARALLEL)]
    if len(batches) < 2 or processes < 2:
        for batch in batches:
            yield from _judge(batch)
        return
    with multiprocessing.get_context("fork").Pool(min(processes, len(batches))) as pool:
        for batch in pool.imap_unordered(_judge, batches):
            yield from batch


def _judge(cases: list[Case]) -> list[Case]:
    by_name = {case.name: case for case in cases}
    scripts = {case.name: (script_of(case.text.splitlines(), case.name, case.ip), case.ip) for case in cases}
    raised = urgent()
    answers = list(run_many(scripts))
    if raised:
        ordinary()
    for name, answer in answers:
        case = by_name[name]
        if isinstance(answer, str):
            case.failed = answer
        else:
            case.kernel = answer
    for case in cases:
        if case.kernel is not None:
            try:
                case.ours = play(*scripts[case.name], case.kernel)
                case.differences = compare(case.kernel, case.ours)
            except DrillError as error:
                case.failed = f"pytcp: {error}"
    return cases


def settled(cases: Sequence[Case], again: int) -> list[Case]:
    """Those that differ every time, of `again` runs more: a busy machine is late now and then."""
    left = [case for case in cases if case.differs]
    for _ in range(again):
        fresh = [Case(case.name, case.text, case.ip) for case in left]
        left = [case for case in judge(fresh) if case.differs]
    return left


def smaller(case: Case, alike: Callable[[Case], bool], rounds: int = 4) -> Case:
    """The script with every action left out that is not needed for a difference that `alike` knows."""
    for _ in range(rounds):
        lines = case.text.splitlines()
        tries: list[Case] = []
        first = next(i for i, line in enumerate(lines) if line.startswith("0 "))
        for size in (8, 4, 2, 1):
            for at in range(first + 1, len(lines), max(size // 2, 1)):
                kept = lines[:at] + lines[at + size :]
                if len(kept) < len(lines):
                    tries.append(Case(f"{size}/{at}", "\n".join(kept) + "\n", case.ip))
        good = [one for one in _runnable(judge(tries)) if alike(one)]
        if not good:
            return case
        best = min(good, key=lambda one: len(one.text.splitlines()))
        case = Case(case.name, best.text, case.ip, best.kernel, best.ours, best.differences)
    return case


def _runnable(cases: Iterable[Case]) -> Iterator[Case]:
    return (case for case in cases if not case.failed)



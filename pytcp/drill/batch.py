"""Many runs: files found in folders, spread over processes, each with an end to its real time.

A run has a limit of its own (`--timeout`, in the script's time). A process that does not come back is another matter:
a code block may loop, a command may hang. Then the run is killed and reported as failed, and the rest goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic

from .run import Result, Settings, run_file

GRACE_S = 10.0  # real seconds beyond the script's limit


@dataclass(frozen=True, slots=True)
class Job:
    """One script on one target in one mode."""

    file: str
    target: str
    ip: str


def find_scripts(paths: Iterable[str | Path]) -> list[str]:
    """The files named, and all *.pkt in the folders named, sorted. Raises FileNotFoundError."""
    found: list[str] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += sorted(str(file) for file in path.rglob("*.pkt") if file.is_file())
        elif path.exists():
            found.append(str(path))
        else:
            raise FileNotFoundError(2, "no such file", str(path))
    return found


def run_jobs(jobs: Sequence[Job], settings: Settings, processes: int = 1, on_result: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Run all jobs, `processes` at a time; results in the order of the jobs.

    on_result: called as each is known, in that order."""
    results: dict[int, Result] = {}
    told = 0
    for index, result in _spread(jobs, settings, max(processes, 1)):
        results[index] = result
        while told in results:
            on_result(results[told])
            told += 1
    return [results[index] for index in range(len(jobs))]


def _serve(pipe: Connection, settings: Settings) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    os.dup2(2, 1)  # what code blocks print is not our output
    while True:
        try:
            job: Job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            result = run_file(job.file, job.target, job.ip, settings)
        except KeyboardInterrupt:  # not the user's, which is the parent's to hear: a code block's
            result = Result(job.file, job.target, job.ip, "fail", "a code block raised KeyboardInterrupt")
        pipe.send(result)


class _Process:
    """One worker and what it is at."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
        self.process.start()
        theirs.close()
        self.index = -1
        self.job: Job | None = None
        self.deadline = 0.0

    def give(self, index: int, job: Job, limit_s: float) -> None:
        self.index, self.job, self.deadline = index, job, monotonic() + limit_s
        self.pipe.send(job)

    def end(self) -> None:
        self.pipe.close()
        self.process.join(0.5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(2)


def _spread(jobs: Sequence[Job], settings: Settings, processes: int) -> Iterator[tuple[int, Result]]:
    limit_s = settings.timeout_s + GRACE_S
    waiting = list(enumerate(jobs))[::-1]
    workers: list[_Process] = []
    try:
        while waiting or any(worker.job is not None for worker in workers):
            while waiting and len([w for w in workers if w.job is not None]) < processes:
                idle = next((worker for worker in workers if worker.job is None), None)
                if idle is None:
                    idle = _Process(settings)
                    workers.append(idle)
                idle.give(*waiting.pop(), limit_s)
            busy = [worker for worker in workers if worker.job is not None]
            ready = wait([worker.pipe for worker in busy], max(min(worker.deadline for worker in busy) - monotonic(), 0.0))
            for worker in busy:
                job = worker.job
                assert job is not None
                if worker.pipe in ready:
                    try:
                        result = worker.pipe.recv()
                    except (EOFError, OSError):
                        workers.remove(worker)
                        worker.end()
                        result = Result(job.file, job.target, job.ip, "error", f"the process that ran it died (status {worker.process.exitcode})")
                elif monotonic() >= worker.deadline:
                    result = Result(job.file, job.target, job.ip, "fail", f"still running after {limit_s:g} s of real time, killed", limit_s)
                    workers.remove(worker)
                    worker.process.kill()
                    worker.end()
                else:
                    continue
                worker.job = None
                yield worker.index, result
    finally:
        for worker in workers:
            worker.end()


def default_processes(targets: Iterable[str]) -> int:
    """As many as there are processors in virtual time; one in real time, where a busy machine is a late one."""
    return 1 if "kernel" in targets else len(os.sched_getaffinity(0))

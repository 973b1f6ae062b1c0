"""Running the variants of an experiment, each in a process of its own, and what comes out of it together.

A run is a function of its settings and its seed alone, so where it runs cannot show in its figures; the JSON of a result
is the same to the last digit for the same seed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from .experiment import Experiment, Outcome, RunError, Setting, load, run_variant


class Result(NamedTuple):
    """The variants that ran, and what there is to compare them with."""

    experiment: Experiment
    seed: int
    profile: str
    outcomes: dict[str, Outcome]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "experiment": self.experiment.name,
            "seed": self.seed,
            "profile": self.profile,
            "variants": {name: outcome.figures for name, outcome in self.outcomes.items()},
            "published": {name: figures for name, figures in self.experiment.published.items() if name in self.outcomes},
        }


def run_all(
    which: str,
    variants: Sequence[str] = (),
    *,
    seed: int = 0,
    profile: str = "",
    sets: Sequence[tuple[str, Setting]] = (),
    pcap: str = "",
    record: str = "",
    processes: int = 0,
    finished: Callable[[str], object] = lambda variant: None,
) -> Result:
    """Run variants (default: all that differ with these settings) of an experiment given by name or path.

    profile: the kernel whose defaults count, "" = the experiment's. pcap: a capture file; with several variants each gets its
    own, NAME-variant.pcapng. record: the same of records. processes: at a time, 0 = one per
    processor. finished: told of each variant that is through. Raises ExperimentError before anything runs for a
    setting that cannot be."""
    chosen = load(which)
    names = list(dict.fromkeys(variants)) or chosen.distinct(sets, profile)
    for name in names:
        chosen.resolve(name, sets, profile)
    profile = profile or chosen.profile
    files = {name: (file_of(pcap, name, len(names)), file_of(record, name, len(names))) for name in names}
    if len(names) == 1 or processes == 1 or chosen.serial:
        outcomes = {}
        for name in names:
            outcomes[name] = run_variant(which, name, seed, profile, sets, *files[name])
            finished(name)
        return Result(chosen, seed, profile, outcomes)
    with workers(min(processes or processors(), len(names))) as pool:
        with starting():
            futures = {pool.submit(run_variant, which, name, seed, profile, sets, *files[name]): name for name in names}
        done = {}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            finished(futures[future])
    return Result(chosen, seed, profile, {name: done[name] for name in names})


def run_all_real(
    which: str,
    variants: Sequence[str] = (),
    *,
    profile: str = "",
    sets: Sequence[tuple[str, Setting]] = (),
    pcap: str = "",
    record: str = "",
    finished: Callable[[str], object] = lambda variant: None,
) -> Result:
    """Run variants over a TAP, one after the other, as `run_all`. Raises also OSError where there can be no testbed."""
    from .real import run_real

    chosen = load(which)
    names = list(dict.fromkeys(variants)) or chosen.distinct(sets, profile)
    outcomes = {}
    for name in names:
        outcomes[name] = run_real(chosen, name, sets, profile, file_of(pcap, name, len(names)), file_of(record, name, len(names)))
        finished(name)
    return Result(chosen, 0, profile or chosen.profile, outcomes)


def file_of(path: str, variant: str, count: int) -> str:
    """The file of one variant out of `count`: `path` itself for a single one, "" for none."""
    if not path or count == 1:
        return path
    stem, suffix = os.path.splitext(path)
    word = "".join(letter if letter.isalnum() else "-" for letter in variant)
    return f"{stem}-{'-'.join(part for part in word.split('-') if part)}{suffix}"


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Around `submit`, which starts the processes: Ctrl-C waits, and what is started never hears it. One that did, half started, would
    print a traceback and break the pool."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes; none of them outlives the block, however it ends. Raises RunError when one was killed."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_worker)
    done = False
    try:
        yield pool
        done = True
    except BrokenProcessPool as error:
        raise RunError("a process that ran a part of it was killed (out of memory?)") from error
    finally:
        pool.shutdown(wait=done, cancel_futures=True)
        if not done:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
                child.join()


def _worker() -> None:
    """In each process: Ctrl-C is the parent's business, and without a parent there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def orphaned() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=orphaned, daemon=True).start()

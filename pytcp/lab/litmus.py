"""The race of tcp_push and tcp_wfree: every interleaving under two memory models, and real processors.

The push sees data of its socket in the host's queue (P1), sets THROTTLED (P2), looks again (P3) and holds
its data if there still is some (P4). The completion takes the charge back (C1), looks at the flag (C2)
and calls the socket if it is up (C3). Bad is what nobody repairs: held, and not called (linux-tcp §2.4;
Linux 6.8, 7267e8dcad6b, put a fence between P2 and P3).

`explore` runs small programs of loads, stores, locked operations and fences through all orders their steps
can take, by the definition of the model: sequential consistency (one memory, one step at a time) or
total store order (Sewell et al., x86-TSO, CACM 2010: each processor has a FIFO of stores it has made and
others do not see yet; it reads its own from there; fences and locked operations wait until it is empty).
`verdicts` has the variants worth knowing and what becomes of them. `stuck_sockets` has two real
threads do it (csrc/litmus.c) with the functions of the transmit ring, `stuck_in_ring` the ring itself.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pytcp.native import ffi, lib, reason

T = TypeVar("T")

BUSY = 5  # what the socket is charged, in the thread's own litmus test
Registers = dict[str, int]
Guard = Callable[[Registers], bool]


def _always(registers: Registers) -> bool:
    return True


@dataclass(frozen=True)
class Step:
    """One step of a processor. kind: load, store, locked (a store that is a full-barrier read-modify-write), fence, local.

    var: memory it acts on. value: what it writes, or what `local` puts into `register`. register: where a load
    goes. guard: without it the step does nothing."""

    kind: str
    var: str = ""
    value: int = 0
    register: str = ""
    guard: Guard = _always


Program = tuple[Step, ...]


def load(var: str, register: str, guard: Guard = _always) -> Step:
    return Step("load", var, register=register, guard=guard)


def store(var: str, value: int, guard: Guard = _always) -> Step:
    return Step("store", var, value, guard=guard)


def locked(var: str, value: int, guard: Guard = _always) -> Step:
    return Step("locked", var, value, guard=guard)


def fence(guard: Guard = _always) -> Step:
    return Step("fence", guard=guard)


def note(register: str, guard: Guard = _always) -> Step:
    """Set a register: what the processor decided."""
    return Step("local", value=1, register=register, guard=guard)


class State(NamedTuple):
    """Hashable: where each processor is, what it knows, what it has written and nobody sees, and the memory."""

    at: tuple[int, ...]
    registers: tuple[tuple[tuple[str, int], ...], ...]
    buffers: tuple[tuple[tuple[str, int], ...], ...]
    memory: tuple[tuple[str, int], ...]


def explore(programs: tuple[Program, ...], memory: Mapping[str, int], model: str) -> dict[State, int]:
    """All final states and how many executions end in each. model: "SC" or "TSO".

    Under SC an execution is an interleaving of the steps; under TSO the moments at which stores become visible count too."""
    if model not in ("SC", "TSO"):
        raise ValueError(f"memory model {model!r} is neither SC nor TSO")
    buffered = model == "TSO"
    none = tuple(() for _ in programs)
    first = State(tuple(0 for _ in programs), none, none, tuple(sorted(memory.items())))
    known: dict[State, dict[State, int]] = {}

    def finals(state: State) -> dict[State, int]:
        if state not in known:
            total: dict[State, int] = {}
            ended = True
            for successor in _successors(programs, state, buffered):
                ended = False
                for final, count in finals(successor).items():
                    total[final] = total.get(final, 0) + count
            known[state] = {state: 1} if ended else total
        return known[state]

    return finals(first)


def _successors(programs: tuple[Program, ...], state: State, buffered: bool) -> Iterator[State]:
    for cpu, program in enumerate(programs):
        if state.buffers[cpu]:
            # the oldest store becomes visible
            var, value = state.buffers[cpu][0]
            yield state._replace(buffers=_put(state.buffers, cpu, state.buffers[cpu][1:]), memory=_write(state.memory, var, value))
        if state.at[cpu] == len(program):
            continue
        step = program[state.at[cpu]]
        registers = dict(state.registers[cpu])
        after = state._replace(at=_put(state.at, cpu, state.at[cpu] + 1))
        if not step.guard(registers):
            yield after
        elif step.kind == "load":
            own = [value for var, value in state.buffers[cpu] if var == step.var]
            registers[step.register] = own[-1] if own else dict(state.memory)[step.var]
            yield after._replace(registers=_put(state.registers, cpu, tuple(sorted(registers.items()))))
        elif step.kind == "local":
            registers[step.register] = step.value
            yield after._replace(registers=_put(state.registers, cpu, tuple(sorted(registers.items()))))
        elif step.kind == "store" and buffered:
            yield after._replace(buffers=_put(state.buffers, cpu, (*state.buffers[cpu], (step.var, step.value))))
        elif not state.buffers[cpu]:
            yield after if step.kind == "fence" else after._replace(memory=_write(state.memory, step.var, step.value))


def _put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _write(memory: tuple[tuple[str, int], ...], var: str, value: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({**dict(memory), var: value}.items()))


# ---------------------------------------------------------------- the two sides


def _saw(register: str, value: int) -> Guard:
    return lambda registers: registers.get(register) == value


def push(flag: str, barrier: bool, *, swapped: bool = False) -> Program:
    """P1 to P4. flag: how THROTTLED is set, "plain" or "locked". swapped: P3 is done before P2, as a weakly ordered processor may."""
    busy = _saw("P1", BUSY)
    put = store if flag == "plain" else locked
    p2 = (put("flag", 1, busy),)
    p3 = (load("wmem", "P3", busy),)
    middle = p3 + p2 if swapped else p2 + ((fence(busy),) if barrier else ()) + p3
    return (load("wmem", "P1"), *middle, note("held", _saw("P3", BUSY)))


def completion(decrement: str) -> Program:
    """C1 to C3. decrement: "locked", as tcp_wfree does it, or "plain"."""
    take = store if decrement == "plain" else locked
    return (take("wmem", 0), load("flag", "C2"), note("called", _saw("C2", 1)))


def printed(barrier: bool) -> tuple[Program, Program]:
    """The litmus test as the thread of January 2024 prints it: plain accesses but for smp_mb()."""
    busy = _saw("r1", BUSY)
    p0 = (
        load("wmem", "r1"),
        load("flag", "r0", busy),
        store("flag", 1, lambda registers: busy(registers) and registers["r0"] == 0),
        *((fence(busy),) if barrier else ()),
        load("wmem", "r2", busy),
        note("held", _saw("r2", BUSY)),
    )
    p1 = (load("wmem", "r1"), store("wmem", 0), load("flag", "r0"), store("flag", 0, _saw("r0", 1)))
    return p0, p1


def held_and_not_called(final: State) -> bool:
    """The bad state: the push holds its data and the completion has called nobody."""
    return dict(final.registers[0]).get("held") == 1 and dict(final.registers[1]).get("called") != 1


def held_and_flag_up(final: State) -> bool:
    """The bad state as the printed test says it: exists (flag=1 /\\ corked=1)."""
    return dict(final.registers[0]).get("held") == 1 and dict(final.memory)["flag"] == 1


@dataclass(frozen=True)
class Row:
    """A variant, and in how many of its executions the bad state is reached."""

    model: str
    flag: str
    decrement: str
    without: tuple[int, int]  # bad executions, and all of them, without the barrier
    barrier: tuple[int, int]  # the same with it


def verdicts() -> list[Row]:
    """Every variant of `push` and `completion` under both models, the reordered push, and the printed test."""
    rows = []
    for model in ("SC", "TSO"):
        for flag in ("plain", "locked"):
            for decrement in ("locked", "plain"):
                pairs = [(push(flag, barrier), completion(decrement)) for barrier in (False, True)]
                rows.append(Row(model, flag, decrement, *(_count(pair, model, held_and_not_called) for pair in pairs)))
    pairs = [(push("plain", False, swapped=swapped), completion("locked")) for swapped in (True, False)]
    rows.append(Row("SC", "P3 before P2", "locked", *(_count(pair, "SC", held_and_not_called) for pair in pairs)))
    return [*rows, _printed_row("SC"), _printed_row("TSO")]


def _printed_row(model: str) -> Row:
    return Row(model, "as printed", "as printed", *(_count(printed(barrier), model, held_and_flag_up) for barrier in (False, True)))


def _count(programs: tuple[Program, Program], model: str, bad: Callable[[State], bool]) -> tuple[int, int]:
    finals = explore(programs, {"flag": 0, "wmem": BUSY}, model)
    return sum(count for final, count in finals.items() if bad(final)), sum(finals.values())


# ---------------------------------------------------------------- real processors

CHUNK = 100_000  # rounds between two looks at Ctrl-C
SKEW = 100  # loop turns: about as far as two processors drift apart while a store waits in its buffer


def why_no_race() -> str:
    """Why two threads cannot race here; empty when they can."""
    if lib is None:
        return f"no C helpers: {reason}"
    if len(os.sched_getaffinity(0)) < 2:
        return "only one processor may be used, and the race needs two"
    return ""


def stuck_sockets(
    flag: str,
    decrement: str = "locked",
    *,
    rounds: int,
    skew: int = SKEW,
    seed: int = 1,
    stop_at_first: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[int, int]:
    """Let a pushing and a completing thread meet `rounds` times; returns (sockets left stuck, rounds done).

    flag: how the push sets THROTTLED: "plain" (the ring's function without its fence), "fence" (with it), "locked". decrement:
    "locked" (the ring's completion) or "plain". skew: each thread starts up to so many loop turns late, at random. stop_at_first: enough is
    one. progress(rounds done, stuck) is told now and then. Raises RuntimeError where it cannot be done (`why_no_race`), ValueError."""
    why = why_no_race()
    if lib is None or why:
        raise RuntimeError(why)
    p0 = {"plain": lib.PYTCP_P0_STORE, "fence": lib.PYTCP_P0_FENCE, "locked": lib.PYTCP_P0_LOCKED}.get(flag)
    p1 = {"locked": lib.PYTCP_P1_LOCKED, "plain": lib.PYTCP_P1_STORE}.get(decrement)
    if p0 is None or p1 is None or rounds < 0 or skew < 0:
        raise ValueError(f"flag {flag!r} is plain, fence or locked; decrement {decrement!r} is locked or plain; rounds and skew are not negative")
    stuck = done = 0
    while done < rounds and not (stop_at_first and stuck):
        chunk = min(CHUNK, rounds - done)
        found = lib.pytcp_litmus(p0, p1, chunk, skew, seed + done // CHUNK & 0x7FFFFFFF)
        if found < 0:
            raise OSError(-found, os.strerror(-found))
        stuck += found
        done += chunk
        if progress is not None:
            progress(done, stuck)
    return stuck, done


def stuck_in_ring(barrier: bool, *, pushes: int, seed: int = 1, stop_at_first: bool = False) -> tuple[int, int, int]:
    """The same with the transmit ring at work: its thread writes a frame (to /dev/null) while its socket pushes.

    barrier: as `pytcp.push_barrier`. Each push comes up to a few hundred nanoseconds after its frame was handed over, at random. Returns (sockets
    left stuck, pushes that held their data, pushes). Raises RuntimeError where it cannot be done (`why_no_race`), OSError."""
    why = why_no_race()
    if lib is None or why:
        raise RuntimeError(why)
    wait = random.Random(seed).randrange
    error = ffi.new("int *")
    part = ffi.new("struct pytcp_part[1]")
    payload = ffi.from_buffer(bytes(100))
    part[0].base, part[0].len = payload, len(payload)
    called = ffi.new("uint8_t[]", 1)
    with open(os.devnull, "wb") as device:
        ring = lib.pytcp_txq_open(device.fileno(), 1, 1, error)
    if ring == ffi.NULL:
        raise OSError(error[0], os.strerror(error[0]))
    stuck = held = done = 0
    try:
        while done < pushes and not (stop_at_first and stuck):
            done += 1
            lib.pytcp_txq_put(ring, 0, BUSY, 0, b"", 0, part, 1)
            lib.pytcp_txq_publish(ring)
            for _ in range(wait(6)):
                pass
            left = lib.pytcp_txq_throttle(ring, 0, barrier)
            while not lib.pytcp_txq_reap(ring, called, 1):
                pass
            if left:
                held += 1
                stuck += not called[0]
            lib.pytcp_txq_unthrottle(ring, 0)
    finally:
        lib.pytcp_txq_close(ring)
    return stuck, held, done

"""The race of tcp_push: what each memory model allows, and what two real processors do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from pytcp.lab import litmus
from pytcp.lab.litmus import Program, State, explore, fence, load, locked, store, stuck_in_ring, stuck_sockets, verdicts


def reachable(programs: tuple[Program, ...], model: str, registers: dict[str, int]) -> bool:
    def agrees(final: State) -> bool:
        known = {name: value for own in final.registers for name, value in own}
        return all(known[name] == value for name, value in registers.items())

    return any(agrees(final) for final in explore(programs, {"x": 0, "y": 0}, model))


STORE_BUFFERING = ((store("x", 1), load("y", "a")), (store("y", 1), load("x", "b")))
FENCED = ((store("x", 1), fence(), load("y", "a")), (store("y", 1), fence(), load("x", "b")))
HALF_FENCED = ((store("x", 1), fence(), load("y", "a")), (store("y", 1), load("x", "b")))
LOCKED = ((locked("x", 1), load("y", "a")), (locked("y", 1), load("x", "b")))
MESSAGE_PASSING = ((store("x", 1), store("y", 1)), (load("y", "a"), load("x", "b")))
OWN_STORE = ((store("x", 1), load("x", "a"), load("y", "b")), (store("y", 1), load("y", "c"), load("x", "d")))


@pytest.mark.parametrize(
    ("programs", "asked", "sc", "tso"),
    [
        (STORE_BUFFERING, {"a": 0, "b": 0}, False, True),  # SB: the one thing that TSO allows and SC does not
        (FENCED, {"a": 0, "b": 0}, False, False),
        (HALF_FENCED, {"a": 0, "b": 0}, False, True),  # a fence on one side is none
        (LOCKED, {"a": 0, "b": 0}, False, False),
        (MESSAGE_PASSING, {"a": 1, "b": 0}, False, False),  # stores become visible in order, loads are made in order
        (OWN_STORE, {"a": 1, "b": 0, "c": 1, "d": 0}, False, True),  # a processor reads its own store from the buffer
        (OWN_STORE, {"a": 0}, False, False),
    ],
)
def test_the_models_answer_the_known_litmus_tests(programs: tuple[Program, ...], asked: dict[str, int], sc: bool, tso: bool) -> None:
    assert (reachable(programs, "SC", asked), reachable(programs, "TSO", asked)) == (sc, tso)


def test_all_interleavings_are_counted() -> None:
    """Two programs of m and n steps have (m+n)! / m!n! interleavings."""
    steps: Callable[[int], Program] = lambda n: tuple(load("x", f"r{i}") for i in range(n))  # noqa: E731
    assert sum(explore((steps(4), steps(3)), {"x": 0}, "SC").values()) == 35
    assert sum(explore((steps(5), steps(3)), {"x": 0}, "SC").values()) == 56
    assert sum(explore((steps(2), steps(2), steps(2)), {"x": 0}, "SC").values()) == 90


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="'PSO' is neither SC nor TSO"):
        explore((), {}, "PSO")


# model, how the flag is set, how the count is taken back -> is the bad state reachable without, and with the barrier.
# SC: if C2 finds the flag down it comes before P2, so C1 comes before P3, which sees it: never both.
# TSO: P2's store may wait while P3 loads, unless a fence or a locked operation is between; and if C1 is a plain store it
# may wait while C2 loads, which nothing on the other side can help.
EXPECTED = {
    ("SC", "plain", "locked"): (False, False),
    ("SC", "plain", "plain"): (False, False),
    ("SC", "locked", "locked"): (False, False),
    ("SC", "locked", "plain"): (False, False),
    ("TSO", "plain", "locked"): (True, False),
    ("TSO", "plain", "plain"): (True, True),
    ("TSO", "locked", "locked"): (False, False),
    ("TSO", "locked", "plain"): (True, True),
    ("SC", "P3 before P2", "locked"): (True, False),
    ("SC", "as printed", "as printed"): (False, False),
    ("TSO", "as printed", "as printed"): (True, True),
}


def test_the_bad_state_is_reachable_exactly_where_the_model_says_so() -> None:
    rows = {(row.model, row.flag, row.decrement): row for row in verdicts()}
    assert {key: (row.without[0] > 0, row.barrier[0] > 0) for key, row in rows.items()} == EXPECTED
    assert rows["SC", "plain", "locked"].without == (0, 35)
    assert rows["SC", "P3 before P2", "locked"].without == (3, 35)
    assert rows["SC", "P3 before P2", "locked"].barrier == (0, 35)


@pytest.mark.parametrize(("order", "bad"), [("P1 P2 P3 P4", 0), ("P1 P3 P2 P4", 3)])
def test_the_bad_interleavings_counted_another_way(order: str, bad: int) -> None:
    """In one memory the push holds iff P3 comes before C1, and nobody is called iff C2 comes before P2."""
    push, completion = order.split(), ["C1", "C2", "C3"]
    count = 0
    for places in combinations(range(7), 4):
        sources = {True: iter(push), False: iter(completion)}
        at = {next(sources[n in places]): n for n in range(7)}
        count += at["P3"] < at["C1"] and at["C2"] < at["P2"]
    assert count == bad
    row = next(row for row in verdicts() if row.flag == "P3 before P2")
    assert (row.without if bad else row.barrier) == (bad, 35)


# ---------------------------------------------------------------- real processors


@pytest.fixture
def two_processors() -> None:
    why = litmus.why_no_race()
    if why:
        pytest.skip(why)


@pytest.mark.alone
@pytest.mark.usefixtures("two_processors")
def test_without_the_fence_a_socket_is_left_stuck() -> None:
    stuck, rounds = stuck_sockets("plain", rounds=5_000_000, stop_at_first=True)
    assert stuck > 0, f"none in {rounds} rounds"


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize(("flag", "rounds"), [("fence", 10_000_000), ("locked", 500_000)])
def test_with_the_fence_or_a_locked_flag_none_is(flag: str, rounds: int) -> None:
    """Of half a million rounds the unfenced store spoils hundreds."""
    assert stuck_sockets(flag, rounds=rounds) == (0, rounds)


@pytest.mark.alone
@pytest.mark.usefixtures("two_processors")
def test_a_fence_does_not_help_against_a_decrement_that_is_no_barrier() -> None:
    stuck, rounds = stuck_sockets("fence", "plain", rounds=5_000_000, skew=2000, stop_at_first=True)
    assert stuck > 0, f"none in {rounds} rounds"


@pytest.mark.alone
@pytest.mark.usefixtures("two_processors")
def test_the_ring_itself_leaves_a_socket_stuck_without_the_fence_only() -> None:
    stuck, held, pushes = stuck_in_ring(False, pushes=3_000_000, stop_at_first=True)
    assert stuck > 0, f"none in {pushes} pushes, {held} of them held"
    stuck, held, pushes = stuck_in_ring(True, pushes=50_000)
    assert (stuck, pushes) == (0, 50_000)
    assert held > 0


def test_where_it_cannot_race_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    if litmus.lib is None:
        with pytest.raises(RuntimeError, match="no C helpers"):
            stuck_sockets("plain", rounds=1)
        return
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    with pytest.raises(RuntimeError, match="only one processor"):
        stuck_sockets("plain", rounds=1)


@pytest.mark.usefixtures("two_processors")
@pytest.mark.parametrize("bad", [{"flag": "soft"}, {"decrement": "fence"}, {"rounds": -1}, {"skew": -1}])
def test_unknown_variants_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        stuck_sockets(**({"flag": "plain", "rounds": 1} | bad))  # type: ignore[arg-type]

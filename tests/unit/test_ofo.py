"""The out-of-order queue's two faces: a sorted list and a red-black tree of the kernel's shape."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pytcp.tcp.memory import RxChunk
from pytcp.tcp.ofo import OfoQueue
from pytcp.wire.tcp import Segment


def chunk(seq: int, size: int = 1) -> RxChunk:
    seg = Segment(payload=bytes(size))
    seg.seq, seg.end_seq, seg.truesize = seq, seq + size, 704
    return RxChunk(seg)


def black_height(node: RxChunk | None) -> int:
    """Height in black nodes; fails where the tree is not a red-black tree."""
    if node is None:
        return 1
    for child in (node.left, node.right):
        if child is not None:
            assert child.up is node
            assert not (node.red and child.red), "a red chunk has black children"
    left, right = black_height(node.left), black_height(node.right)
    assert left == right, "every path has as many black chunks"
    return left + (not node.red)


def in_order(node: RxChunk | None) -> list[RxChunk]:
    return [] if node is None else [*in_order(node.left), node, *in_order(node.right)]


def check(queue: OfoQueue) -> None:
    assert in_order(queue.root) == list(queue)
    assert all(a.seq < b.seq for a, b in itertools.pairwise(queue))
    if queue.root is not None:
        assert queue.root.up is None
        assert not queue.root.red
    black_height(queue.root)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(["add", "add", "add", "first", "last", "middle", "replace"]), st.integers(0, 400)), max_size=120))
def test_list_and_tree_agree_and_the_tree_stays_balanced(steps: list[tuple[str, int]]) -> None:
    queue = OfoQueue()
    for what, number in steps:
        if what == "add":
            if all(have.seq != number for have in queue):
                queue.add_anew(chunk(number))
        elif queue:
            at = {"first": 0, "last": len(queue) - 1}.get(what, number % len(queue))
            if what == "replace":
                new = chunk(queue[at].seq, 5)
                old = queue.replace(at, new)
                assert old is not new
                assert queue[at] is new
            else:
                (gone,) = queue.take(at, at + 1)
                assert gone.up is gone.left is gone.right is None
        check(queue)
    queue.clear()
    check(queue)


def test_substituting_keeps_what_is_in_both() -> None:
    queue = OfoQueue()
    for seq in range(0, 100, 10):
        queue.add_anew(chunk(seq))
    kept = queue[3]
    queue.substitute(2, 6, [kept, chunk(45)])
    assert [c.seq for c in queue] == [0, 10, 30, 45, 60, 70, 80, 90]
    assert queue[2] is kept
    check(queue)


def test_a_chunk_added_between_two_others_comes_to_the_top() -> None:
    """Which is why a repetition of the last one meets it first (recorded, see test_reassembly)."""
    queue = OfoQueue()
    for seq in (10, 30, 20):
        queue.add_anew(chunk(seq))
    assert queue.root is queue[1]

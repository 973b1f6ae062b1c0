"""The out-of-order queue: chunks behind a hole, sorted, and the search tree the kernel finds places with.

Linux keeps them in a red-black tree (4.9, 9f5afeae5152), and what it does with a duplicate depends on
which chunk the search meets first: one that ends where the segment begins takes it in, one that covers it
drops it and reports a D-SACK. So the tree has to have the kernel's shape, and this is the textbook
algorithm (bottom-up insertion, deletion by successor), which gives it. For all else there is the sorted
list: first, last, neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .memory import RxChunk

_by_seq = attrgetter("seq")


class OfoQueue(list["RxChunk"]):
    """Chunks in order of `seq` (no two alike); change it by its own methods only."""

    __slots__ = ("root",)

    def __init__(self) -> None:
        self.root: RxChunk | None = None

    def add(self, chunk: RxChunk, parent: RxChunk | None) -> int:
        """Put `chunk` in, as a leaf under `parent` (None: the queue is empty); returns its index."""
        at = bisect_left(self, chunk.seq, key=_by_seq)
        self.insert(at, chunk)
        chunk.left = chunk.right = None
        chunk.up = parent
        chunk.red = True
        if parent is None:
            self.root = chunk
        elif chunk.seq < parent.seq:
            parent.left = chunk
        else:
            parent.right = chunk
        self._balance_after_add(chunk)
        return at

    def add_anew(self, chunk: RxChunk) -> None:
        """The same where the place has to be looked for."""
        parent = None
        node = self.root
        while node is not None:
            parent = node
            node = node.left if chunk.seq < node.seq else node.right
        self.add(chunk, parent)

    def replace(self, at: int, chunk: RxChunk) -> RxChunk:
        """`chunk`, of the same seq, takes the place of the one at index `at`, which is returned."""
        old = self[at]
        self[at] = chunk
        chunk.left, chunk.right, chunk.up, chunk.red = old.left, old.right, old.up, old.red
        if chunk.left is not None:
            chunk.left.up = chunk
        if chunk.right is not None:
            chunk.right.up = chunk
        self._put_below(old.up, old, chunk)
        old.left = old.right = old.up = None
        return old

    def take(self, start: int, stop: int) -> list[RxChunk]:
        """Remove and return the chunks at indexes start..stop-1."""
        taken = self[start:stop]
        for chunk in taken:
            self._erase(chunk)
        del self[start:stop]
        return taken

    def clear(self) -> None:
        for chunk in self:
            chunk.left = chunk.right = chunk.up = None
        self.root = None
        super().clear()

    def index_of(self, chunk: RxChunk) -> int:
        return bisect_left(self, chunk.seq, key=_by_seq)

    def substitute(self, start: int, stop: int, new: Iterable[RxChunk]) -> None:
        """The chunks start..stop-1 become `new`, some of which may be the old ones."""
        wanted = list(new)
        kept = {id(chunk) for chunk in wanted}
        for chunk in self[start:stop]:
            if id(chunk) not in kept:
                at = self.index_of(chunk)
                self.take(at, at + 1)
        present = {id(chunk) for chunk in self}
        for chunk in wanted:
            if id(chunk) not in present:
                self.add_anew(chunk)

    # ------------------------------------------------------------ the tree

    def _put_below(self, parent: RxChunk | None, old: RxChunk, new: RxChunk | None) -> None:
        """`new` hangs where `old` hung."""
        if parent is None:
            self.root = new
        elif parent.left is old:
            parent.left = new
        else:
            parent.right = new

    def _rotate(self, node: RxChunk, to_left: bool) -> None:
        """The child on the other side comes up, `node` goes down to `to_left`'s side."""
        rising = node.right if to_left else node.left
        assert rising is not None
        middle = rising.left if to_left else rising.right
        if to_left:
            node.right = middle
            rising.left = node
        else:
            node.left = middle
            rising.right = node
        if middle is not None:
            middle.up = node
        rising.up = node.up
        self._put_below(node.up, node, rising)
        node.up = rising

    def _balance_after_add(self, node: RxChunk) -> None:
        while (parent := node.up) is not None and parent.red:
            grand = parent.up
            assert grand is not None
            on_left = parent is grand.left
            uncle = grand.right if on_left else grand.left
            if uncle is not None and uncle.red:
                parent.red = uncle.red = False
                grand.red = True
                node = grand
                continue
            if node is (parent.right if on_left else parent.left):
                self._rotate(parent, on_left)
                parent = node
            parent.red = False
            grand.red = True
            self._rotate(grand, not on_left)
            break
        root = self.root
        assert root is not None
        root.red = False

    def _erase(self, chunk: RxChunk) -> None:
        if chunk.left is not None and chunk.right is not None:
            heir = chunk.right
            while heir.left is not None:
                heir = heir.left
            lost_black = not heir.red
            below = heir.right
            parent = heir.up
            if parent is chunk:
                parent = heir
            else:
                assert parent is not None
                parent.left = below
                if below is not None:
                    below.up = parent
                heir.right = chunk.right
                heir.right.up = heir
            heir.left = chunk.left
            heir.left.up = heir
            heir.up = chunk.up
            heir.red = chunk.red
            self._put_below(chunk.up, chunk, heir)
        else:
            below = chunk.left if chunk.left is not None else chunk.right
            parent = chunk.up
            lost_black = not chunk.red
            if below is not None:
                below.up = parent
            self._put_below(parent, chunk, below)
        chunk.left = chunk.right = chunk.up = None
        if lost_black:
            self._balance_after_erase(below, parent)

    def _balance_after_erase(self, node: RxChunk | None, parent: RxChunk | None) -> None:
        """The paths through `node` (below `parent`) lack a black one."""
        while parent is not None and (node is None or not node.red):
            on_left = node is parent.left
            sibling = parent.right if on_left else parent.left
            assert sibling is not None
            if sibling.red:
                sibling.red = False
                parent.red = True
                self._rotate(parent, on_left)
                sibling = parent.right if on_left else parent.left
                assert sibling is not None
            near, far = (sibling.left, sibling.right) if on_left else (sibling.right, sibling.left)
            if (far is None or not far.red) and (near is None or not near.red):
                sibling.red = True
                node, parent = parent, parent.up
                continue
            if far is None or not far.red:
                assert near is not None
                near.red = False
                sibling.red = True
                self._rotate(sibling, not on_left)
                sibling = near
                far = sibling.right if on_left else sibling.left
            sibling.red = parent.red
            parent.red = False
            assert far is not None
            far.red = False
            self._rotate(parent, on_left)
            return
        if node is not None:
            node.red = False

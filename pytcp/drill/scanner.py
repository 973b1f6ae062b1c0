"""Reading a script's text: position, white space, comments, and errors that say where.

There are no tokens: what a run of characters means depends on the place (`.` is a flag, `...` an argument, `.25` a
time), so the parser asks for the pattern it wants. Macros (`-D NAME=value`) are looked up where a word is read.
"""

from __future__ import annotations

import re
from typing import NoReturn

from .errors import ScriptError, Where

_BLANK = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|\d+")
_TIME = re.compile(r"\d+(?:\.\d+)?|\.\d+")

MAX_INTEGER = 1 << 64


class Scanner:
    """A cursor over one script."""

    def __init__(self, text: str, macros: dict[str, str] | None = None) -> None:
        self.text = text
        self.pos = 0
        self.macros = macros or {}
        self._lines = [0]
        for match in re.finditer("\n", text):
            self._lines.append(match.end())

    # --- places ---

    def where(self, pos: int | None = None) -> Where:
        """The place of an offset (the cursor's, if none is given)."""
        offset = self.pos if pos is None else pos
        low, high = 0, len(self._lines) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._lines[middle] <= offset:
                low = middle
            else:
                high = middle - 1
        start = self._lines[low]
        end = self.text.find("\n", start)
        line = self.text[start:] if end < 0 else self.text[start:end]
        return Where(low + 1, offset - start + 1, line.rstrip("\r"))

    def fail(self, reason: str, pos: int | None = None) -> NoReturn:
        """Raises ScriptError at a place."""
        raise ScriptError(reason, self.where(pos))

    # --- moving ---

    def skip(self) -> None:
        """Pass over white space and comments."""
        match = _BLANK.match(self.text, self.pos)
        if match:
            self.pos = match.end()
        if self.text.startswith("/*", self.pos):
            self.fail("a comment that does not end")

    def done(self) -> bool:
        self.skip()
        return self.pos >= len(self.text)

    def looking_at(self, literal: str) -> bool:
        """Whether `literal` comes next."""
        self.skip()
        return self.text.startswith(literal, self.pos)

    def accept(self, literal: str) -> bool:
        """Pass over `literal` if it comes next."""
        if self.looking_at(literal):
            self.pos += len(literal)
            return True
        return False

    def expect(self, literal: str, what: str = "") -> None:
        if not self.accept(literal):
            self.fail(f"expected {literal!r}{' ' + what if what else ''}, found {self.next_text()}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Take what matches `pattern` here, after blanks; None if nothing does."""
        self.skip()
        found = pattern.match(self.text, self.pos)
        if found is not None:
            self.pos = found.end()
        return found

    def next_text(self) -> str:
        """What comes next, for messages."""
        self.skip()
        if self.pos >= len(self.text):
            return "the end of the script"
        found = re.compile(r"[A-Za-z0-9_.]+|\S").match(self.text, self.pos)
        assert found is not None
        return repr(found[0][:30])

    # --- small things ---

    def peek_word(self) -> str:
        """The next word as written, "" if none comes."""
        self.skip()
        found = _WORD.match(self.text, self.pos)
        return found[0] if found else ""

    def word(self, what: str = "a word") -> str:
        """A word, after macros. Raises ScriptError."""
        found = self.match(_WORD)
        if found is None:
            self.fail(f"expected {what}, found {self.next_text()}")
        return self.macros.get(found[0], found[0])

    def accept_word(self, word: str) -> bool:
        """Pass over exactly this word."""
        if self.peek_word() == word:
            self.pos += len(word)
            return True
        return False

    def integer(self, what: str = "a number") -> int:
        """A decimal or 0x number, or a macro that is one. Raises ScriptError."""
        self.skip()
        start = self.pos
        found = self.match(_INTEGER)
        text = found[0] if found is not None else ""
        if found is None and self.peek_word() in self.macros:
            text = self.word()
            if not _INTEGER.fullmatch(text):
                self.fail(f"expected {what}, and the macro is {text!r}", start)
        if len(text) > 30:
            self.fail(f"a number of {len(text)} digits", start)
        if not text:
            self.fail(f"expected {what}, found {self.next_text()}", start)
        value = int(text, 16) if text[:2] in ("0x", "0X") else int(text)
        if value >= MAX_INTEGER:
            self.fail(f"{text} does not fit 64 bits", start)
        return value

    def bounded(self, what: str, high: int, low: int = 0) -> int:
        """An integer in low..high."""
        self.skip()
        start = self.pos
        value = self.integer(what)
        if not low <= value <= high:
            self.fail(f"{what} {value} is outside {low}..{high}", start)
        return value

    def seconds(self) -> int:
        """A decimal number of seconds, as ns. Raises ScriptError."""
        found = self.match(_TIME)
        if found is None:
            self.fail(f"expected a time, found {self.next_text()}")
        whole, _, fraction = found[0].partition(".")
        if len(whole) > 7:
            self.fail("a time of more than 9999999 seconds", found.start())
        return int(whole or "0") * 1_000_000_000 + int(fraction[:9].ljust(9, "0") or "0")

    def quoted(self, open_: str, close: str, what: str) -> str:
        """The text between two marks, as it stands."""
        self.skip()
        start = self.pos
        if not self.text.startswith(open_, start):
            self.fail(f"expected {what}, found {self.next_text()}")
        end = self.text.find(close, start + len(open_))
        if end < 0:
            self.fail(f"{what} that does not end", start)
        self.pos = end + len(close)
        return self.text[start + len(open_) : end]

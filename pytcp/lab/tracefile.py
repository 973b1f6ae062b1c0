"""A trace on disk, written while it happens: the record's format (`record`), so that plots, the report and `pytcp explain` read it.

The first line says which flows there are, which is known at the end only: it is written with room to spare and once more at the
end. A file whose writer was killed is whole but for that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytcp import __version__
from pytcp.net.tracer import Listener, Row

from .record import FORMAT

ROOM = 4096  # bytes of the first line
BUFFER = 1 << 18


class TraceFile:
    """Events of stacks as JSON lines. `listener` is what hears of them (`net.tracer.attach`)."""

    def __init__(self, path: str | Path, **meta: Any) -> None:
        """Create `path`, or overwrite it. meta: of the record. Raises OSError."""
        self.path = Path(path)
        self.events = 0
        self.error: OSError | None = None  # the disk's; nothing more is written then
        self.listener = Listener(self._write)
        self._meta = {"versions": {"pytcp": __version__}, **meta}
        self._flows: dict[str, None] = {}
        self._last = 0
        self._file = open(self.path, "w", encoding="utf-8", buffering=BUFFER)  # noqa: SIM115  # closed by `close`
        self._head()

    def _head(self) -> None:
        flows = list(self._flows)
        while True:
            line = json.dumps({"record": FORMAT, "meta": self._meta, "flows": flows, "left_out": {}})
            if len(line) < ROOM:
                break
            flows.pop()
        self._file.write(line.ljust(ROOM - 1) + "\n")

    def _write(self, row: Row) -> None:
        if self.error is not None:
            return
        self._flows.setdefault(row["flow"])
        # several stacks of a process look at the clock at moments of their own
        row["t_ns"] = self._last = max(self._last, row["t_ns"])
        try:
            self._file.write(json.dumps({"events": row}, separators=(",", ":")) + "\n")
        except OSError as error:
            self.error = error
            return
        self.events += 1

    def close(self) -> None:
        """Write what is left, and the names of the flows. Does not raise: see `error`."""
        try:
            if self.error is None and self._file.seekable():
                self._file.seek(0)
                self._head()
            self._file.close()
        except OSError as error:
            self.error = self.error or error

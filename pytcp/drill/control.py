"""Control data of recvmsg: what a script expects of each message, field by field.

`{cmsg_level=..., cmsg_type=..., cmsg_data={...}}`, where the data is a number, an extended error (`ee_*`) or a
struct scm_timestamping (`scm_sec`, `scm_nsec`).
"""

from __future__ import annotations

from struct import Struct as Layout

from .constants import NAMES, number
from .errors import Mismatch, ScriptError, Where
from .script import Dots, ListOf, Struct
from .target import Setup

_EXTENDED = Layout("=IBBBBII")  # struct sock_extended_err
_EXTENDED_FIELDS = ("ee_errno", "ee_origin", "ee_type", "ee_code", "ee_pad", "ee_info", "ee_data")
_TIMESPEC = Layout("=qq")

Message = tuple[int, int, bytes]


def check_control(want: ListOf, found: list[Message], setup: Setup, epoch_ns: int, where: Where) -> None:
    """Compare the control messages of one call; `epoch_ns` is the wall clock at the script's 0. Raises Mismatch."""
    if len(want.items) != len(found):
        raise Mismatch(f"recvmsg() brought {len(found)} control messages, expected {len(want.items)}", where)
    for item, (level, kind, data) in zip(want.items, found, strict=True):
        if not isinstance(item, Struct) or not {"cmsg_level", "cmsg_type"} <= item.fields.keys():
            raise ScriptError("expected a control message: {cmsg_level=..., cmsg_type=..., cmsg_data=...}", where)
        names = ("cmsg_level", "cmsg_type")
        wanted = tuple(number(item.fields[name], where) for name in names)
        if wanted != (level, kind):
            raise Mismatch(f"control message of level {level} and type {kind}, expected {wanted[0]} and {wanted[1]}", where)
        data_wanted = item.fields.get("cmsg_data", Dots())
        if isinstance(data_wanted, Struct) and "scm_sec" in data_wanted.fields:
            _check_stamp(data_wanted, data, setup, epoch_ns, where)
        else:
            _check_data(data_wanted, level, kind, data, where)


def _check_stamp(want: Struct, data: bytes, setup: Setup, epoch_ns: int, where: Where) -> None:
    """A time stamp counts from the start of the script, and may be off as a packet may."""
    if len(data) < _TIMESPEC.size:
        raise Mismatch(f"a time stamp of {len(data)} bytes", where)
    sec, nsec = _TIMESPEC.unpack_from(data)
    got = sec * 1_000_000_000 + nsec - epoch_ns
    expected = number(want.fields["scm_sec"], where) * 1_000_000_000 + number(want.fields.get("scm_nsec", 0), where)
    if abs(got - expected) > max(setup.tolerance_ns, round(expected * setup.tolerance_percent / 100)):
        raise Mismatch(f"a time stamp of {got / 1e9:.6f}, expected {expected / 1e9:.6f}", where)


def _check_data(want: object, level: int, kind: int, data: bytes, where: Where) -> None:
    if isinstance(want, Dots):
        return
    if not isinstance(want, Struct):
        value = number(want, where, "control data")  # type: ignore[arg-type]
        got = int.from_bytes(data[:4], "little", signed=True)
        if got != value:
            raise Mismatch(f"control data {got}, expected {value}", where)
        return
    fields = decode(level, data)
    for name, expr in want.fields.items():
        if name not in fields:
            raise ScriptError(f"control data of level {level}, type {kind} has no {name}", where)
        if not isinstance(expr, Dots) and number(expr, where) != fields[name]:
            raise Mismatch(f"control data: {name} is {fields[name]}, expected {number(expr, where)}", where)


def decode(level: int, data: bytes) -> dict[str, int]:
    """The fields of one message's data that scripts can name."""
    if len(data) >= _EXTENDED.size and level in (NAMES["SOL_IP"], NAMES["SOL_IPV6"]):
        return dict(zip(_EXTENDED_FIELDS, _EXTENDED.unpack_from(data), strict=True))
    return {}

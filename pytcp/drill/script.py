"""A parsed script: options, commands and timed events, as values.

Times are integer nanoseconds. Sequence numbers are the script's own, relative to whatever initial numbers the two
ends choose. Expressions of system calls keep their names (`SOL_TCP`, `EPOLLIN|EPOLLET`): what a name is worth is
the target's business (`constants`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .errors import Where

# ---- expressions of system calls ---------------------------------------------------------------


class Dots:
    """`...`: the tool fills this in."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


DOTS = Dots()


@dataclass(frozen=True, slots=True)
class Name:
    """A symbolic constant."""

    name: str
    where: Where


@dataclass(frozen=True, slots=True)
class Or:
    """Alternatives joined by `|`."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """`~value`."""

    value: Expr


@dataclass(frozen=True, slots=True)
class Call:
    """A function of constants: htons(), inet_addr()."""

    name: str
    args: tuple[Expr, ...]
    where: Where


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[a, b]`."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Struct:
    """`{name=value, ...}`; positional members have the names "0", "1", ..."""

    fields: dict[str, Expr]


Expr = int | bytes | Dots | Name | Or | Not | Call | ListOf | Struct | None  # None is NULL

# ---- packets ------------------------------------------------------------------------------------


class Any_:
    """`<...>`: do not look at the options."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


ANY = Any_()


@dataclass(frozen=True, slots=True)
class Opt:
    """One TCP option: its kind by name, and the numbers or bytes that belong to it.

    mss N; wscale N; sackOK; nop; eol; sack ((left, right), ...); TS (val, ecr); FO and FOEXP cookie; md5 digest, or the key to
    make and to check it with;
    ECN ((name, value), ...); raw bytes."""

    kind: str
    value: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    data: bytes = b""
    names: tuple[str, ...] = ()
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class IpInfo:
    """What a packet says about its IP header; None: nothing."""

    ecn: str | None = None  # noecn, ect0, ect1, ect01, ce
    tos: int | None = None
    ttl: int | None = None
    flowlabel: int | None = None


@dataclass(frozen=True, slots=True)
class TcpPacket:
    """A TCP segment of the script."""

    flags: int  # nine bits, AE to FIN; without those of `ace` when that is given
    ace: int | None  # the AccECN counter written as a digit
    seq: int
    length: int
    ack: int | None
    window: int | None
    urg: int | None
    options: tuple[Opt, ...] | Any_ | None  # None: not written
    ip: IpInfo = IpInfo()
    ports: tuple[int, int] | None = None  # as written: source, destination


@dataclass(frozen=True, slots=True)
class IcmpPacket:
    """An ICMP error about the connection's own segments."""

    type: str  # unreachable, packet_too_big, time_exceeded, parameter_problem, source_quench, redirect
    code: str | int | None
    mtu: int | None
    seq: int | None  # of the quoted segment, the script's numbers
    length: int
    ip: IpInfo = IpInfo()


Packet = TcpPacket | IcmpPacket

# ---- events -------------------------------------------------------------------------------------


class TimeKind(Enum):
    """How a time is meant."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class When:
    """When an event is due. `late_ns`: the end of a window `a~b`; `until_ns`: when a blocking call returns."""

    kind: TimeKind
    at_ns: int = 0
    late_ns: int | None = None
    until_ns: int | None = None
    until_relative: bool = False


@dataclass(frozen=True, slots=True)
class Inject:
    packet: Packet


@dataclass(frozen=True, slots=True)
class Expect:
    packet: Packet


@dataclass(frozen=True, slots=True)
class Syscall:
    """A call and what it returns: `result` (None: not looked at), and the errno's name when it is to fail."""

    name: str
    args: tuple[Expr, ...]
    result: Expr | Dots
    error: str | None


@dataclass(frozen=True, slots=True)
class Code:
    source: str


@dataclass(frozen=True, slots=True)
class Command:
    text: str


Action = Inject | Expect | Syscall | Code | Command


@dataclass(frozen=True, slots=True)
class Event:
    when: When
    action: Action
    where: Where
    source: str = ""  # the action as it was written


@dataclass(slots=True)
class Script:
    """A whole script."""

    name: str
    options: dict[str, str | None] = field(default_factory=dict)
    option_places: dict[str, Where] = field(default_factory=dict)
    init: Command | None = None
    init_where: Where | None = None
    events: list[Event] = field(default_factory=list)
    cleanup: Command | None = None
    cleanup_where: Where | None = None

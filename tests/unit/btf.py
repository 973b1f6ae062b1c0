"""The layout of a struct of the running kernel, from its own type information (BTF, linux/btf.h)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import iter_unpack, unpack_from
from typing import NamedTuple

VMLINUX = Path("/sys/kernel/btf/vmlinux")
INT, ARRAY, STRUCT, UNION, ENUM, FUNC_PROTO, VAR, DATASEC, DECL_TAG, ENUM64 = 1, 3, 4, 5, 6, 13, 14, 15, 17, 19


class Member(NamedTuple):
    """One field: where it begins, in bits, and how many of them it has when it is a bit field."""

    name: str
    bit: int
    bits: int


def members(struct_name: str) -> tuple[int, list[Member]]:
    """(size in bytes, fields) of a struct. Raises LookupError when the kernel has none of that name, OSError without BTF."""
    data = VMLINUX.read_bytes()
    header_len, type_off, type_len, str_off = unpack_from("<IIII", data, 4)
    strings = header_len + str_off

    def text(offset: int) -> str:
        start = strings + offset
        return data[start : data.index(b"\0", start)].decode()

    wanted = data.find(b"\0" + struct_name.encode() + b"\0", strings) + 1 - strings
    for at, name, kind, flag, vlen, size in _types(data, header_len + type_off, type_len):
        if kind == STRUCT and name == wanted:
            body = data[at + 12 : at + 12 + 12 * vlen]
            return size, [Member(text(n), place & 0xFFFFFF if flag else place, place >> 24 if flag else 0) for n, _, place in iter_unpack("<III", body)]
    raise LookupError(f"no struct {struct_name}")


def _types(data: bytes, at: int, length: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """(offset, name, kind, kind_flag, vlen, size) of each type."""
    end = at + length
    behind = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}
    each = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, DATASEC: 12, ENUM64: 12}
    while at < end:
        name, info, size = unpack_from("<III", data, at)
        kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
        yield at, name, kind, info >> 31, vlen, size
        at += 12 + behind.get(kind, 0) + each.get(kind, 0) * vlen

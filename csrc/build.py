"""Builds `pytcp._native`: cffi writes the glue, the compiler does the rest.

setuptools is told about the hand-written sources in pyproject.toml; this command adds the C that
cffi (API mode) emits for the declarations in pytcp.h. The extension is optional: where nothing can
compile it the package runs on its Python twins, unless PYTCP_REQUIRE_C=1 says that this is an error.
PYTCP_CFLAGS adds compiler and linker flags (a sanitizer, say).
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext as _build_ext

HERE = Path(__file__).resolve().parent
MODULE = "pytcp._native"


def declarations() -> str:
    """The part of pytcp.h that cffi parses."""
    text = (HERE / "pytcp.h").read_text()
    return text.partition("/* cffi: from here */")[2].partition("/* cffi: to here */")[0]


def emit(path: Path) -> None:
    """Write the C of the extension module to `path`."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(declarations())
    ffi.set_source(MODULE, '#include "pytcp.h"\n')
    path.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(path))


class build_ext(_build_ext):
    """build_ext that generates the module's source first, and can insist on the result."""

    def build_extension(self, ext: Extension) -> None:
        # never take an earlier build for this one: not its objects, nor its result when this one fails
        self.force = True
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        extra = shlex.split(os.environ.get("PYTCP_CFLAGS", ""))
        generated = Path(self.build_temp) / "_native.c"
        try:
            emit(generated)
            ext.sources = [*ext.sources, str(generated)]
            ext.extra_compile_args = [*ext.extra_compile_args, *extra]
            ext.extra_link_args = [*ext.extra_link_args, *extra]
            super().build_extension(ext)
        except Exception as error:
            if os.environ.get("PYTCP_REQUIRE_C") == "1":
                raise SystemExit(f"pytcp: the C helpers could not be built and PYTCP_REQUIRE_C=1: {error}") from error
            print(f"pytcp: WARNING: no C helpers ({error}); pure Python will be used, slower per byte", file=sys.stderr)

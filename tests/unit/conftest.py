"""Fixtures that several unit tests take."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from .real_rig import SocketLink


@pytest.fixture
def pair() -> Iterator[tuple[SocketLink, socket.socket]]:
    """A link, and the socket at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    yield SocketLink(ours), theirs
    ours.close()
    theirs.close()

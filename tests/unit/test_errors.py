"""The texts of errors that wait on a socket."""

from __future__ import annotations

import errno
import os

import pytest

from pytcp.tcp import api, errors

from .endpoint import connection


@pytest.mark.parametrize("code", errors.TEXTS)
def test_a_text_is_that_of_the_c_library(code: int) -> None:
    assert errors.TEXTS[code] == os.strerror(code)


def test_a_reset_is_told_by_its_name_to_reader_and_writer() -> None:
    for call in (lambda sk: api.recv(sk, 1), lambda sk: api.sendmsg(sk, b"x")):
        _, peer, sk = connection()
        peer.send("R", 1)
        with pytest.raises(OSError, match="Connection reset by peer") as caught:
            call(sk)
        assert caught.value.errno == errno.ECONNRESET

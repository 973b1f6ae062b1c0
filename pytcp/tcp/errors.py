"""Errors that wait on a socket (sk_err), as a call raises them: with the text that Linux's libc has for the number.

`tcp` knows no `os.strerror`; these are the numbers that segments, timers and ICMP messages can leave behind.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from .sock import Sock

TEXTS = {
    errno.EPIPE: "Broken pipe",
    errno.EACCES: "Permission denied",
    errno.ENONET: "Machine is not on the network",
    errno.EPROTO: "Protocol error",
    errno.EMSGSIZE: "Message too long",
    errno.ENOPROTOOPT: "Protocol not available",
    errno.EOPNOTSUPP: "Operation not supported",
    errno.ENETDOWN: "Network is down",
    errno.ENETUNREACH: "Network is unreachable",
    errno.ECONNABORTED: "Software caused connection abort",
    errno.ECONNRESET: "Connection reset by peer",
    errno.ETIMEDOUT: "Connection timed out",
    errno.ECONNREFUSED: "Connection refused",
    errno.EHOSTDOWN: "Host is down",
    errno.EHOSTUNREACH: "No route to host",
}


def pending(code: int) -> OSError:
    """The error of a socket whose sk_err was `code`."""
    return OSError(code, TEXTS.get(code, "connection error"))


def raise_pending(sk: Sock) -> NoReturn:
    """Raise what waits on the socket; it waits no longer."""
    code = sk.sk_err
    sk.sk_err = 0
    raise pending(code)

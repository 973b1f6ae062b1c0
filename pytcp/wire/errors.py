"""The one family of exceptions parsing may raise, whatever the bytes.

Peers send what they like; a caller that counts and drops wants one `except`. The subclasses exist
because Linux counts their causes apart (`IpExtInTruncatedPkts`, `*InCsumErrors`).
"""

from __future__ import annotations


class WireError(ValueError):
    """Bytes from the wire that are not a valid header.

    `offset` is the position of the offending byte from the start of the header that was parsed:
    what an ICMP parameter problem points to.
    """

    def __init__(self, what: str, offset: int = 0) -> None:
        super().__init__(what)
        self.offset = offset


class TruncatedError(WireError):
    """The header promises more bytes than there are."""


class ChecksumError(WireError):
    """A checksum that the parser itself verifies does not match."""

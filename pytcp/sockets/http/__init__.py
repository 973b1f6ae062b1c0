"""HTTP/1.1 as two trio programs on any stream: a file server and a client.

Heads are parsed and written by h11 (pure Python, RFC 9112); bodies of known length go round it, so
that a transfer costs one `send_all` or `receive_some` per large piece and nothing per byte.
"""

from .client import Connection, HttpError, Response, get
from .server import Access, FileServer

__all__ = ["Access", "Connection", "FileServer", "HttpError", "Response", "get"]

"""iperf3 in trio: a client and a server that understand the real ones, over streams of ours.

`protocol` knows what goes over the control connection, `session` moves the data and measures, `udp` knows the datagrams, `report` prints
as iperf3 does, `client` and `server` are the two roles. Learnt from what two iperf3 3.12 say to each other.
"""

from __future__ import annotations

from .client import run_client
from .protocol import COOKIE_SIZE, PORT, Iperf3Error, Settings, State
from .server import Server

__all__ = ["COOKIE_SIZE", "PORT", "Iperf3Error", "Server", "Settings", "State", "run_client"]

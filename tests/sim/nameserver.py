"""A name server for tests: answers from a table, by UDP and TCP, on a stack of ours."""

from __future__ import annotations

from collections.abc import Callable

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import trio

from pytcp.sockets.open import TrioStack
from pytcp.sockets.streams import TcpStream


class NameServer:
    """records: (lower-case name, type) -> lines. rcodes: name -> response code.

    asked: (name, type, "udp" or "tcp") of each query. limit: bytes that fit a datagram; more is truncated.
    forge: makes messages that are sent before the answer, from the query.
    silent: queries that get no answer, by name."""

    def __init__(self, records: dict[tuple[str, str], list[str]], *, rcodes: dict[str, int] | None = None, limit: int = 512) -> None:
        self.records = records
        self.rcodes = rcodes or {}
        self.limit = limit
        self.asked: list[tuple[str, str, str]] = []
        self.times: list[float] = []
        self.forge: Callable[[dns.message.Message], list[bytes]] = lambda query: []
        self.silent: set[str] = set()

    def answer(self, wire: bytes, transport: str) -> bytes | None:
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind, transport))
        self.times.append(trio.current_time())
        if name in self.silent:
            return None
        response = dns.message.make_response(query, recursion_available=True)
        known = {known for known, _ in self.records}
        response.set_rcode(dns.rcode.Rcode(self.rcodes.get(name, dns.rcode.NOERROR if name in known else dns.rcode.NXDOMAIN)))
        for line in self.records.get((name, kind), []):
            owner, ttl, klass, rtype, *data = line.split()
            response.answer.append(dns.rrset.from_text(owner, int(ttl), klass, rtype, " ".join(data)))
        full = response.to_wire()
        if transport == "udp" and len(full) > self.limit:
            response.answer.clear()
            response.flags |= dns.flags.TC
            return response.to_wire()
        return full

    async def serve(self, stack: TrioStack, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async def by_tcp(stream: TcpStream) -> None:
            received = bytearray()
            async for data in stream:
                received += data
                while len(received) >= 2 and len(received) >= 2 + int.from_bytes(received[:2], "big"):
                    size = int.from_bytes(received[:2], "big")
                    answer = self.answer(bytes(received[2 : 2 + size]), "tcp")
                    del received[: 2 + size]
                    if answer is not None:
                        await stream.send_all(len(answer).to_bytes(2, "big") + answer)

        async with await stack.open_udp(53) as endpoint, trio.open_nursery() as nursery:
            await nursery.start(stack.serve_tcp, by_tcp, 53)
            task_status.started()
            while True:
                wire, who = await endpoint.receive_from()
                for forged in self.forge(dns.message.from_wire(wire)):
                    await endpoint.send_to(forged, who)
                answer = self.answer(wire, "udp")
                if answer is not None:
                    await endpoint.send_to(answer, who)


def a_records(name: str, *addresses: str, kind: str = "A") -> list[str]:
    return [f"{name}. 60 IN {kind} {address}" for address in addresses]

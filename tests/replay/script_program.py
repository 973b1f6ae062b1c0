"""The program of a recorded conversation: its sockets, its calls, and what it did without writing it down."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

from pytcp.clock.virtual import VirtualRuntime
from pytcp.net import sysctl
from pytcp.net.stack import Stack
from pytcp.tcp import api, const
from pytcp.tcp.sock import Sock
from pytcp.wire.addr import parse_ip

from . import script_calls as calls
from . import script_wire as wire
from .script_world import MS, OURS, PEER, Conn, ScriptLink

# states in which a reset by SO_LINGER sends nothing
SILENT = (const.CLOSE, const.SYN_SENT, const.CLOSING, const.LAST_ACK, const.TIME_WAIT)

# calls before the first recorded step of each connection, by the kind of script
PREPARED: dict[str, list[str]] = {
    "p_bound": ["bind()"],
    "s01_syncnt": ["bind()", "setsockopt(TCP_SYNCNT,{n})"],
    "u04_user_timeout_syn": ["bind()", "setsockopt(TCP_USER_TIMEOUT,2500)"],
    "d03_defer_accept_client": ["bind()", "setsockopt(TCP_DEFER_ACCEPT,3)"],
    "v10_hoplimit": ["bind()", "setsockopt(IPV6_UNICAST_HOPS,7)"],
    "k08_cookie": ["listen(5)"],
    "n02_synack": ["listen(5)"],
    "k09_cookie": ["sysctl(net.ipv4.tcp_syncookies,2)"],
    "q01_third_ack_delayed": ["bind()", "setsockopt(TCP_QUICKACK,0)"],
}
# calls after a recorded one: (script, call, the calls the script did not write down)
HIDDEN: tuple[tuple[str, str, list[str]], ...] = (
    ("p_disconnected", "accept()", ["connect(AF_UNSPEC)"]),
    ("d01_defer_accept", "listen(5)", ["setsockopt(TCP_DEFER_ACCEPT,{n})"]),
    ("y06_rto_min", "listen(5)", ["setsockopt(TCP_RTO_MIN_US,20000)"]),
)
# scripts whose client leaves the port to connect()
UNBOUND = ("p_fresh",)
# connections whose frames a script let pass without reading them
UNREAD = (("t26_client_connect_opt", 1),)
# scripts in which each SYN comes from another port
MANY_PEERS = ("k05_synq_full",)
# calls that a note tells of: (script, what the note says, the calls)
TOLD: tuple[tuple[str, str, list[str]], ...] = (
    ("i01_", r"RECVERR 1", ["bind()", "setsockopt(RECVERR,1)"]),
    ("i02_", r"RECVERR 1", ["bind()", "setsockopt(RECVERR,1)"]),
    ("f23_", r"connecting", ["setsockopt(RECVERR,1)"]),
    # a send buffer of fixed size: the kernel's did not grow with its cwnd
    ("f23_", r"send buffer pressure", ["listener setsockopt(SO_SNDBUF,20000)"]),
    ("t", r"TCP_FASTOPEN=(\d+) on the listener", ["setsockopt(TCP_FASTOPEN,{n})"]),
    ("t02_", r"listener TCP_FASTOPEN (\d+)", ["listener setsockopt(TCP_FASTOPEN,{n})"]),
    ("t28_", r"tcp_fastopen=(\d)", ["sysctl(net.ipv4.tcp_fastopen,{n})"]),
    ("f17_", r"on a listener (\d+)", ["listener setsockopt(TCP_MAXSEG,{n})"]),
    ("d03_", r"TCP_QUICKACK 0 instead", ["setsockopt(TCP_DEFER_ACCEPT,0)", "setsockopt(TCP_QUICKACK,0)"]),
)


class Program:
    """A fresh stack, and the program of one case on it."""

    def __init__(self, case: dict[str, Any], phase_ns: int = 0) -> None:
        self.case = case
        self.name: str = case["name"]
        number = re.search(r"_(\d+)$", self.name)
        self.number = number[1] if number else ""
        self.steps: list[dict[str, Any]] = case["steps"]
        self.setup: dict[str, Any] = case["setup"]
        self.family = int(self.setup.get("ip", 4))
        self.runtime = VirtualRuntime()
        self.runtime.heap.now_ns = 98_304 * MS + phase_ns
        self.start = self.runtime.heap.now_ns
        self.stack = Stack(self.runtime, seed=79)
        for name, value in self._sysctls():
            sysctl.set_(self.stack.sysctl, name, value)
        self.link = ScriptLink(self.runtime, self.setup.get("mtu", 1500))
        self.dev = self.stack.add_interface(self.link, ["10.79.0.1/24", "fd00:79::1/64"] if self.link.mtu >= 1280 else ["10.79.0.1/24"], tx_mode="orphan")
        for family, table in ((4, self.dev.neigh4), (6, self.dev.neigh6)):
            table.add_permanent(PEER[family], wire.PEER_MAC)
        self.runtime.run_for(0)
        self.link.sent.clear()
        self.conns: dict[int, Conn] = {}
        self.local: Sock | None = None  # a listener on the loopback
        self.current = 0  # the connection of a step that names none
        self.history: deque[str] = deque(maxlen=10)

    def _sysctls(self) -> list[tuple[str, Any]]:
        # (tcp_no_metrics_save 0 let the kernel remember RTTs, which play no part in the recordings)
        found = list(self.setup.get("sysctl", {}).items()) + [(name, value) for name, value in self.setup.items() if name.startswith("tcp_")]
        return [(name if name.startswith("net.") else f"net.ipv4.{name}", value) for name, value in found if name != "tcp_no_metrics_save"]

    # ------------------------------------------------------------ connections

    def conn(self, step: dict[str, Any]) -> Conn:
        number = step.get("conn", self.current)
        conn = self.conns.get(number)
        if conn is None:
            conn = self.conns[number] = Conn(number, self.family)
            own = any(s.get("conn", 0) == number and re.match(r"listen|connect|setsockopt", str(s.get("app"))) for s in self.steps)
            shared = next((c for c in reversed(list(self.conns.values())) if c.listener is not None), None)
            if not own and shared is not None:
                conn.port = shared.port
            family = re.match(r"IPv([46]) (?:active|passive)", str(step.get("note")))
            if family:
                conn.family = int(family[1])
            if self.name.startswith("v10") and number == 1:
                self._dual_stack(conn)
            else:
                self.prepare(conn)
        return conn

    def _dual_stack(self, conn: Conn) -> None:
        """An IPv6 listener on the wildcard that an IPv4 peer will connect to."""
        conn.family = 4
        sk = conn.listener = self.stack.new_sock(6)
        api.bind(sk, b"", conn.port)
        api.listen(sk, 5)

    def prepare(self, conn: Conn) -> None:
        for prefix, texts in PREPARED.items():
            if self.name.startswith(prefix):
                for text in texts:
                    self.call(conn, text.format(n=self.number), None)

    def abort(self, conn: Conn) -> None:
        """What the script does with a connection it is done with."""
        for sk in (conn.sk, conn.listener):
            if sk is not None:
                api.setsockopt(sk, *calls.option_key("SO_LINGER", 4), b"\1\0\0\0\0\0\0\0")
                api.close(sk)
        conn.sk = conn.listener = None
        self.stack.flush()

    # ------------------------------------------------------------ the steps

    def socket(self, conn: Conn) -> Sock:
        """The socket the script works with; made when there is none."""
        sk = conn.sk or conn.listener
        if sk is None:
            sk = conn.sk = self.stack.new_sock(conn.family)
            sk.reuseaddr = True
            sk.v6only = conn.family == 6
        return sk

    def call(self, conn: Conn, text: str, want: Any) -> Any:
        match = re.match(r"(\w+)(?:\(([^)]*)\))?(.*)", text)
        assert match is not None
        name, args, rest = match[1], [part.strip() for part in (match[2] or "").split(",")], match[3].strip()
        self.stack.now()
        self.history.append(f"{(self.runtime.heap.now_ns - self.start) / 1e9:.6f} [{conn.number}] {text}")
        try:
            special: Callable[[Conn, list[str], str, Any], Any] | None = getattr(self, f"_call_{name}", None)
            got = special(conn, args, rest, want) if special else calls.plain(self.socket(conn), self.family, name, args)
        except OSError as error:
            got = calls.error_name(error.errno or 0)
        self.stack.flush()
        self.runtime.run_for(0)
        if name == "send" and isinstance(got, int):
            conn.written += got
            if "MORE" not in text:
                conn.ends.add(conn.written)
        return got

    def _call_bind(self, conn: Conn, args: list[str], rest: str, want: Any) -> str:
        # the tested call asks for another port than the one the script took itself
        api.bind(self.socket(conn), OURS[conn.family], conn.port if want is None else 20000 + conn.number)
        return "ok"

    def _call_sysctl(self, conn: Conn, args: list[str], rest: str, want: Any) -> str:
        sysctl.set_(self.stack.sysctl, args[0], args[1])
        return "ok"

    def _call_listen(self, conn: Conn, args: list[str], rest: str, want: Any) -> str:
        if want is None:
            if conn.listener is not None:
                api.close(conn.listener)
            sk = conn.listener = self.stack.new_sock(conn.family)
            sk.reuseaddr = True
            sk.v6only = conn.family == 6
            conn.sk = None
            for name, value in self.setup.items():
                if name.endswith(" before listen") and value is not None:
                    calls.set_option(sk, name.split()[0], str(value))
            api.bind(sk, OURS[conn.family], conn.port)
            for text in conn.before_listen:
                self.call(conn, text, None)
        api.listen(self.socket(conn), int(args[0]))
        return "ok"

    def _call_accept(self, conn: Conn, args: list[str], rest: str, want: Any) -> Any:
        lsk = conn.listener
        if lsk is None and conn.sk is None:
            lsk = next((c.listener for c in reversed(list(self.conns.values())) if c.listener is not None), None)
        if lsk is None or lsk.state != const.LISTEN or (conn.sk is not None and want in ("EINVAL", "ok")):
            # a call that is tried on the socket under test
            lsk = self.socket(conn)
        child = api.accept(lsk)
        if want == "ok":
            # the script did not keep it
            api.close(child)
            return "ok"
        conn.sk = child
        for other in self.conns.values():
            if other.sk is None and other.peer_port == child.dport:
                # the call was written down without its connection
                other.sk = child
        return 0

    def _call_connect(self, conn: Conn, args: list[str], rest: str, want: Any) -> str:
        if args[0] == "AF_UNSPEC":
            api.disconnect(self.socket(conn))
            return "ok"
        if args[0].startswith("127.0.0.1:"):
            return self._call_connect_loopback(int(args[0].split(":")[1]))
        if len(args) == 2:
            api.connect(self.socket(conn), parse_ip(args[0]) if args[0] != "0.0.0.0" else b"", int(args[1]))
            return "ok"
        sk = conn.sk or conn.listener
        if sk is None or (conn.sk is not None and conn.sk.state == const.CLOSE and not sk.bound_port and not self.name.startswith("p_")):
            sk = self.socket(conn)
            for name, value in self.setup.items():
                if name.endswith(" before connect") and value is not None:
                    calls.set_option(sk, name.split()[0], str(value))
            if "ip_local_port_range" not in self.setup.get("sysctl", {}) and not self.name.startswith(UNBOUND):
                api.bind(sk, OURS[conn.family], conn.port)
        try:
            api.connect(sk, PEER[conn.family], conn.peer_port)
        finally:
            if "ip_local_port_range" in self.setup.get("sysctl", {}):
                conn.port = sk.sport or conn.port
        return "ok"

    def _call_sendto(self, conn: Conn, args: list[str], rest: str, want: Any) -> int:
        """sendto(n, MSG_FASTOPEN) of a socket bound to the script's port."""
        sk = self.socket(conn)
        if not sk.bound_port:
            api.bind(sk, OURS[conn.family], conn.port)
        return api.send_fastopen(sk, bytes(int(args[0])), calls.flags_of(args[1]), PEER[conn.family], conn.peer_port)

    def _call_connect_loopback(self, port: int) -> str:
        """A client and a server on this host: the client closes first, then the server."""
        if self.local is None:
            self.local = self.stack.new_sock(4)
            api.bind(self.local, parse_ip("127.0.0.1"), port)
            api.listen(self.local, 5)
        client = self.stack.new_sock(4)
        try:
            api.connect(client, parse_ip("127.0.0.1"), port)
        except BlockingIOError:
            self.stack.flush()
            self.runtime.run_for(MS // 10)
        api.connect(client, b"", 0)
        server = api.accept(self.local)
        for sk in (client, server):
            api.close(sk)
            self.stack.flush()
            self.runtime.run_for(MS // 10)
        return "ok"

    def _call_close(self, conn: Conn, args: list[str], rest: str, want: Any) -> Any:
        if rest:
            seconds = int(conn.lingered_ns / 1e8 + 0.5) / 10
            return f"after about {seconds} s"
        sk = self.socket(conn)
        wait = api.close(sk)
        if wait:
            now = self.runtime.heap.now_ns
            conn.linger = (sk, now, now + wait)
            self.runtime.heap.call_later(wait, self.runtime.kick)
        conn.sk = None
        if sk is conn.listener:
            conn.listener = None
        return "ok"

    def _call_epoll_wait(self, conn: Conn, args: list[str], rest: str, want: Any) -> str:
        if conn.edges is None:
            conn.edges = calls.Edges(self.socket(conn))
        return conn.edges.wait()

    # ------------------------------------------------------------ what is said of the connection

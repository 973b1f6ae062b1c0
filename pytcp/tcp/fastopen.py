"""TCP Fast Open (RFC 7413): data in the SYN. Cookies, what the host remembers, and the server's side.

A client that shows the cookie this host once gave to its address need not prove the address again: the data of its
SYN is delivered, and answered, before the handshake's last ACK. The accepted child is in SYN_RECV then, beside its
request (`request`), which still repeats the SYN-ACK by the child's own timer. A listener bounds how many such children there
are; one that ended in a reset after accept() keeps its place for 60 s, which slows a spoofer down. The client's side is in
`fastopen_client`.

Linux 3.7; cookies are SipHash of the two addresses since 5.3. Sysctls: tcp_fastopen (bits below), tcp_fastopen_key,
tcp_fastopen_blackhole_timeout_sec. Options: TCP_FASTOPEN, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE. Counters:
TCPFastOpenCookieReqd, TCPFastOpenPassive, TCPFastOpenPassiveFail, TCPFastOpenPassiveAltKey, TCPFastOpenListenOverflow.
"""

from __future__ import annotations

import errno
from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING

from . import handshake, input, reassembly, retransmit, timers, undo
from .const import CA_LOSS, CLOSE, FIN, LISTEN, NSEC_PER_MSEC, NSEC_PER_SEC, PENDING_RETRANS
from .siphash import siphash

if TYPE_CHECKING:
    from pytcp.wire.tcp import Segment

    from .request import Request
    from .skb import Buffer
    from .sock import Host, Sock

# bits of tcp_fastopen
CLIENT = 1
SERVER = 2
CLIENT_NO_COOKIE = 4
SERVER_NO_COOKIE = 0x200
SERVER_ALL = 0x400

KEY_LEN = 16
COOKIE_LEN = 8
RESET_HOLD_NS = 60 * NSEC_PER_SEC  # how long a child that was reset keeps its place
MAX_CACHED = 1024  # peers whose cookies are remembered


class Cached:
    """What a client knows of one path."""

    __slots__ = ("cookie", "exp", "mss", "try_exp")

    def __init__(self) -> None:
        self.mss = 0  # the peer's; 0: nothing is known
        self.cookie = b""
        self.exp = False  # the cookie came in the experimental option
        self.try_exp = 0  # 1: ask next time by the experimental option, 2: that has been tried


class HostState:
    """Fast Open's memory of a whole host: cookies by (own, peer's) address, and the pause after a black hole."""

    __slots__ = ("cache", "disable_ns", "disable_times")

    def __init__(self) -> None:
        self.cache: dict[tuple[bytes, bytes], Cached] = {}
        self.disable_times = 0
        self.disable_ns = 0

    def entry(self, saddr: bytes, daddr: bytes) -> Cached:
        """The entry of a path, made when there is none; the oldest gives way."""
        found = self.cache.get((saddr, daddr))
        if found is None:
            if len(self.cache) >= MAX_CACHED:
                del self.cache[next(iter(self.cache))]
            found = self.cache[saddr, daddr] = Cached()
        return found


class FastOpen:
    """What Fast Open adds to one socket; made when the socket first has to do with it (`sk.fastopen`)."""

    __slots__ = (
        # what the program set
        "connect", "no_cookie", "keys",
        # a listener: places for children before their last ACK, taken ones, and when those of reset ones become free
        "max_qlen", "qlen", "resets",
        # a child: its half-open connection, until the last ACK
        "request", "is_child",
        # a client: connect() is put off until there is data; a SYN with the option is wanted; the data for it, how much went
        "deferred", "wanted", "data", "copied",
        # more is to be written as soon as the connection is open
        "write_pending",
        # the option of the SYN being sent (None: none, b"": a request)
        "cookie", "exp",
        # what the SYN carried, what became of it
        "syn_option", "syn_exp", "syn_data", "syn_data_acked", "client_fail", "check_pause",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connect = 0
        self.no_cookie = 0
        self.keys = b""
        self.max_qlen = 0
        self.qlen = 0
        self.resets: deque[int] = deque()
        self.request: Request | None = None
        self.is_child = False
        self.forget()

    def forget(self) -> None:
        """No connection is being opened."""
        self.deferred = False
        self.wanted = False
        self.data: Buffer | None = None
        self.copied = 0
        self.write_pending = False
        self.cookie: bytes | None = None
        self.exp = False
        self.syn_option = False
        self.syn_exp = False
        self.syn_data = False
        self.syn_data_acked = False
        self.client_fail = 0
        self.check_pause = False


def of(sk: Sock) -> FastOpen:
    """The socket's Fast Open state, made if it has none."""
    state: FastOpen | None = sk.fastopen
    if state is None:
        state = sk.fastopen = FastOpen()
    return state


# ---------------------------------------------------------------- keys and cookies


def parse_key(text: str) -> bytes:
    """One or two keys (32 bytes: the second is still accepted) as tcp_fastopen_key writes them. Raises ValueError."""
    keys = text.split(",")
    if len(keys) > 2:
        raise ValueError("at most two keys")
    out = b""
    for key in keys:
        words = key.strip().split("-")
        if len(words) != 4 or not all(0 < len(word) <= 8 for word in words):
            raise ValueError(f"{key.strip()!r} is not four hexadecimal numbers with dashes between")
        out += b"".join(int(word, 16).to_bytes(4, "little") for word in words)
    return out


def format_key(keys: bytes) -> str:
    """The inverse of `parse_key`."""
    words = [f"{int.from_bytes(keys[at : at + 4], 'little'):08x}" for at in range(0, len(keys), 4)]
    return ",".join("-".join(words[at : at + 4]) for at in range(0, len(words), 4))


def init_key(host: Host) -> None:
    """A host has a key from the first time it needs one."""
    if not host.sysctl.fastopen_key_known:
        host.sysctl.fastopen_key_known = True
        host.sysctl.tcp_fastopen_key = format_key(blake2b(host.secret(), digest_size=KEY_LEN, person=b"fastopen").digest())


def keys_of(sk: Sock) -> bytes:
    """The key that makes a listener's cookies, and behind it the one that is accepted as well, if there is one."""
    return (sk.fastopen.keys if sk.fastopen is not None else b"") or parse_key(sk.sysctl.tcp_fastopen_key)


def own_keys(sk: Sock) -> bytes:
    """TCP_FASTOPEN_KEY reads what it has set, and nothing of the host's."""
    return sk.fastopen.keys if sk.fastopen is not None else b""


def make_cookie(key: bytes, client: bytes, server: bytes) -> bytes:
    """The cookie of a client's address at a server's."""
    return siphash(key, client + server).to_bytes(COOKIE_LEN, "little")


def set_max_qlen(sk: Sock, places: int) -> None:
    """TCP_FASTOPEN: how many children may wait for their last ACK, at most somaxconn.

    Raises OSError EINVAL for a negative number, and but for closed and listening sockets."""
    if places < 0 or sk.state not in (CLOSE, LISTEN):
        raise OSError(errno.EINVAL, "Invalid argument")
    init_key(sk.host)
    of(sk).max_qlen = min(places, sk.sysctl.somaxconn)


def listen(sk: Sock) -> None:
    """A socket begins to listen: where the host wants it, every listener takes Fast Open."""
    if sk.sysctl.tcp_fastopen & (SERVER | SERVER_ALL) == SERVER | SERVER_ALL and not (sk.fastopen is not None and sk.fastopen.max_qlen):
        set_max_qlen(sk, sk.backlog)


# ---------------------------------------------------------------- a SYN


def try_fastopen(sk: Sock, seg: Segment, req: Request) -> Sock | None:
    """The child of a SYN that may have its data delivered, not yet in any queue; None: an ordinary handshake.

    Either way `req.tfo_cookie` is the cookie the SYN-ACK gives, if any."""
    mib = sk.mib
    cookie = seg.options.tfo_cookie
    if cookie == b"":
        mib.TCPFastOpenCookieReqd += 1
    flags = sk.sysctl.tcp_fastopen
    data = bool(seg.length or seg.flags & FIN)
    if not (flags & SERVER and (data or cookie is not None) and _has_room(sk)):
        return None
    req.tfo_exp = seg.options.tfo_exp
    keys = keys_of(sk)
    ours: bytes | None = None
    other_key = False
    if not (flags & SERVER_NO_COOKIE or sk.fastopen.no_cookie):
        if cookie is None:
            return None
        ours = make_cookie(keys[:KEY_LEN], req.daddr, req.saddr)
        if cookie != ours:
            other_key = bool(cookie) and len(keys) > KEY_LEN and cookie == make_cookie(keys[KEY_LEN:], req.daddr, req.saddr)
            if not other_key:
                req.tfo_cookie = ours
                if cookie:
                    mib.TCPFastOpenPassiveFail += 1
                return None
    child = _child(sk, seg, req)
    if child is None:
        req.tfo_cookie = ours
        mib.TCPFastOpenPassiveFail += 1
        return None
    if other_key:
        req.tfo_cookie = ours
        mib.TCPFastOpenPassiveAltKey += 1
    mib.TCPFastOpenPassive += 1
    return child


def _has_room(sk: Sock) -> bool:
    """Whether the listener takes one more child before its last ACK."""
    state = sk.fastopen
    if state is None or not state.max_qlen:
        return False
    if state.qlen >= state.max_qlen:
        if not state.resets or state.resets[0] > sk.host.now_ns:
            sk.mib.TCPFastOpenListenOverflow += 1
            return False
        state.resets.popleft()
        state.qlen -= 1
    return True


def _child(sk: Sock, seg: Segment, req: Request) -> Sock | None:
    child = req.spawn(seg)
    if child is None:
        return None
    state = FastOpen()
    state.request = req
    state.is_child = True
    state.no_cookie = sk.fastopen.no_cookie
    child.fastopen = state
    sk.fastopen.qlen += 1
    # the window of a SYN is not scaled
    child.snd_wnd = child.max_window = seg.window
    timers.arm_rtx(child, PENDING_RETRANS, handshake.TIMEOUT_INIT_NS, False)
    handshake.init_transfer(child)
    take_data(child, seg)
    req.rcv_nxt = child.rcv_wup = child.rcv_nxt
    return child


def take_data(sk: Sock, seg: Segment) -> None:
    """Deliver what a SYN or SYN-ACK carries behind its own number, a FIN included."""
    seg.seq = sk.rcv_nxt
    seg.end_seq = seg.seq + seg.length + (seg.flags & FIN)
    if seg.end_seq == seg.seq:
        return
    of(sk).syn_data_acked = True
    sk.segs_in = seg.nsegs
    if seg.length:
        sk.data_segs_in += seg.nsegs
    reassembly.take_syn_data(sk, seg)
    sk.bytes_received = seg.length


# ---------------------------------------------------------------- a child before its last ACK


def waiting(sk: Sock) -> bool:
    """Whether `sk` is a child whose handshake's last ACK has not come (it may send and receive all the same)."""
    return sk.fastopen is not None and sk.fastopen.request is not None


def acceptable(sk: Sock, seg: Segment) -> bool:
    """A segment for such a child: whether its request lets it pass."""
    req: Request = sk.fastopen.request
    return req.judge(seg, sk)


def reset_by_peer(sk: Sock) -> None:
    """An acceptable RST before the last ACK."""
    release(sk, True)
    input.reset(sk)


def established(sk: Sock) -> None:
    """The last ACK: the SYN-ACK's repetitions say nothing about the data, and the timer is the data's now."""
    if sk.ca_state == CA_LOSS and not sk.packets_out:
        undo.try_undo_recovery(sk)
    handshake.undo_spurious_syn(sk)
    sk.retrans_stamp = 0
    sk.retransmits = 0
    release(sk, False)
    timers.rearm_rto(sk)


def release(sk: Sock, reset: bool) -> None:
    """The child needs its request no longer. `reset`: the peer's RST is why; an accepted child then keeps its place for a while."""
    state = sk.fastopen
    req: Request = state.request
    state.request = None
    lsk = req.listener
    if lsk.fastopen is None:
        return
    lsk.fastopen.qlen -= 1
    accepted = sk.parent is None
    if reset and accepted and lsk.state == LISTEN:
        lsk.fastopen.resets.append(sk.host.now_ns + RESET_HOLD_NS)
        lsk.fastopen.qlen += 1


def synack_timer(sk: Sock) -> None:
    """The SYN-ACK was not answered: repeat it, one time more than for an ordinary request."""
    req: Request = sk.fastopen.request
    sk.mib.TCPTimeouts += 1
    if req.num_timeout >= (sk.syn_retries or sk.sysctl.tcp_synack_retries + 1):
        from . import close

        close.write_err(sk)
        return
    if not sk.retransmits:
        retransmit.enter_loss(sk)
    req.resend_synack()
    req.num_timeout += 1
    sk.retransmits += 1
    if not sk.retrans_stamp:
        sk.retrans_stamp = sk.host.now_ns // NSEC_PER_MSEC
    timers.arm_retrans(sk, handshake.TIMEOUT_INIT_NS << req.num_timeout)



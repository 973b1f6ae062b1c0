"""Readiness beyond the table of states (`test_api`): watermarks, urgent data, send space, errors."""

from __future__ import annotations

from pytcp.tcp import api, const, sockopt_socket, sockopt_tcp

from .endpoint import connection

IN, PRI, OUT, ERR, RDHUP = const.POLLIN, const.POLLPRI, const.POLLOUT, const.POLLERR, const.POLLRDHUP
SOL_SOCKET, IPPROTO_TCP = 1, 6


def test_so_rcvlowat_holds_in_back_until_enough_or_the_end() -> None:
    _, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_RCVLOWAT, 50)
    peer.send("P.", 1, 49, ack=1, win=511)
    assert api.poll(sk) == OUT
    peer.send("P.", 50, 1, ack=1, win=511)
    assert api.poll(sk) == IN | OUT
    api.recv(sk, 10)
    assert api.poll(sk) == OUT
    peer.send("F.", 51, ack=1, win=511)
    assert api.poll(sk) == IN | OUT | RDHUP


def test_the_urgent_byte_alone_is_priority_not_input() -> None:
    _, peer, sk = connection()
    peer.send("PU.", 1, 1, ack=1, win=511, urg=1)
    assert api.poll(sk) == PRI | OUT
    assert api.recv(sk, 1, const.MSG_OOB) == b"\0"
    assert api.poll(sk) & PRI == 0


def test_in_line_the_urgent_byte_is_input() -> None:
    _, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_OOBINLINE, 1)
    peer.send("PU.", 1, 1, ack=1, win=511, urg=1)
    assert api.poll(sk) == IN | PRI | OUT


def test_out_needs_a_third_of_the_buffer_free() -> None:
    _, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_SNDBUF, 30_000)
    peer.send(".", 1, ack=1, win=0)
    while api.poll(sk) & OUT:
        api.sendmsg(sk, bytes(1000))
    assert sk.wmem_queued * 3 > sk.sndbuf * 2
    assert sk.nospace, "who found no room asked to be told"


def test_tcp_notsent_lowat_1000_is_writable_with_499_unsent_bytes_not_with_500() -> None:
    _, peer, sk = connection()
    api.setsockopt(sk, IPPROTO_TCP, sockopt_tcp.TCP_NOTSENT_LOWAT, 1000)
    peer.send(".", 1, ack=1, win=0)
    api.sendmsg(sk, bytes(499))
    assert api.poll(sk) & OUT
    api.sendmsg(sk, bytes(1))
    assert not api.poll(sk) & OUT


def test_a_pending_error_shows_until_it_is_fetched() -> None:
    _, _, sk = connection()
    sk.sk_err = 113
    assert api.poll(sk) == OUT | ERR
    assert api.take_error(sk) == 113
    assert api.poll(sk) == OUT


def test_a_closing_window_makes_less_than_the_watermark_readable() -> None:
    _, peer, sk = connection()
    api.setsockopt(sk, SOL_SOCKET, sockopt_socket.SO_RCVLOWAT, 60_000)
    peer.send("P.", 1, 1000, ack=1, win=511)
    assert api.poll(sk) == OUT
    sk.rcv_wnd = sk.rcv_nxt - sk.rcv_wup + sk.rcv_mss
    assert api.poll(sk) == IN | OUT, "waiting for more would stop the sender for ever"

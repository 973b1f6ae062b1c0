"""Names the engine shares: header flags, states, and the small enumerations Linux keeps per socket.

Plain integers, not enums: these are compared on every super-segment, and an Enum member costs an
attribute lookup and a hash where an int costs nothing. `STATE_NAMES` and friends give people names.
"""

from __future__ import annotations

# TCP header flags (RFC 9293 §3.1, RFC 3168; AE from draft-ietf-tcpm-accurate-ecn)
FIN = 0x01
SYN = 0x02
RST = 0x04
PSH = 0x08
ACK = 0x10
URG = 0x20
ECE = 0x40
CWR = 0x80
AE = 0x100

# Socket states, numbered as tcp_info's tcpi_state
ESTABLISHED = 1
SYN_SENT = 2
SYN_RECV = 3
FIN_WAIT1 = 4
FIN_WAIT2 = 5
TIME_WAIT = 6
CLOSE = 7
CLOSE_WAIT = 8
LAST_ACK = 9
LISTEN = 10
CLOSING = 11

STATE_NAMES = {
    ESTABLISHED: "ESTABLISHED",
    SYN_SENT: "SYN_SENT",
    SYN_RECV: "SYN_RECV",
    FIN_WAIT1: "FIN_WAIT1",
    FIN_WAIT2: "FIN_WAIT2",
    TIME_WAIT: "TIME_WAIT",
    CLOSE: "CLOSE",
    CLOSE_WAIT: "CLOSE_WAIT",
    LAST_ACK: "LAST_ACK",
    LISTEN: "LISTEN",
    CLOSING: "CLOSING",
}

# Sets of states as bit masks: `SF[state] & mask` would be slower than `1 << state & mask`
SF_ESTABLISHED = 1 << ESTABLISHED
SF_SYN_SENT = 1 << SYN_SENT
SF_SYN_RECV = 1 << SYN_RECV
SF_FIN_WAIT1 = 1 << FIN_WAIT1
SF_FIN_WAIT2 = 1 << FIN_WAIT2
SF_TIME_WAIT = 1 << TIME_WAIT
SF_CLOSE = 1 << CLOSE
SF_CLOSE_WAIT = 1 << CLOSE_WAIT
SF_LAST_ACK = 1 << LAST_ACK
SF_LISTEN = 1 << LISTEN
SF_CLOSING = 1 << CLOSING

# Congestion state (tcpi_ca_state)
CA_OPEN = 0
CA_DISORDER = 1
CA_CWR = 2
CA_RECOVERY = 3
CA_LOSS = 4

# Congestion-control events (`CongestionControl.cwnd_event`)
CA_EVENT_TX_START = 0
CA_EVENT_CWND_RESTART = 1
CA_EVENT_COMPLETE_CWR = 2
CA_EVENT_LOSS = 3

# sk.nonagle: TCP_NODELAY, TCP_CORK, and the one-shot override
NAGLE_OFF = 1
NAGLE_CORK = 2
NAGLE_PUSH = 4

# skb.sacked: the scoreboard's tags
SACKED_ACKED = 0x01
SACKED_RETRANS = 0x02
LOST = 0x04
TAGBITS = 0x07
EVER_RETRANS = 0x80
RETRANS = SACKED_RETRANS | EVER_RETRANS
REPAIRED = 0x10

# What the one retransmission timer currently stands for (icsk_pending)
PENDING_NONE = 0
PENDING_RETRANS = 1
PENDING_PROBE0 = 3
PENDING_LOSS_PROBE = 5
PENDING_REO_TIMEOUT = 6

# sk.ack_pending bits (icsk_ack.pending)
ACK_SCHED = 1
ACK_TIMER = 2
ACK_PUSHED = 4
ACK_PUSHED2 = 8
ACK_NOW = 16
ACK_NOMEM = 32  # the last segment found no memory: the next ACK offers a zero window

# sk.shutdown bits
RCV_SHUTDOWN = 1
SEND_SHUTDOWN = 2
SHUTDOWN_MASK = 3

# sk.sock_flags bits
SF_DEAD = 1  # closed by the program: an orphan
SF_DONE = 2  # the peer's FIN came in order: reading ends in 0, not in an error

# send/recv flags, Linux's numbers (socket.MSG_*)
MSG_OOB = 0x01
MSG_PEEK = 0x02
MSG_TRUNC = 0x20
MSG_DONTWAIT = 0x40
MSG_EOR = 0x80
MSG_WAITALL = 0x100
MSG_MORE = 0x8000

# Readiness bits, Linux's numbers (select.POLL*)
POLLIN = 0x001
POLLPRI = 0x002
POLLOUT = 0x004
POLLERR = 0x008
POLLHUP = 0x010
POLLRDHUP = 0x2000

INFINITE_SSTHRESH = 0x7FFFFFFF
MAX_TCP_WINDOW = 32767
MAX_WSCALE = 14
MIN_MSS_DEFAULT = 536
MAX_QUICKACKS = 16

NSEC_PER_SEC = 1_000_000_000
NSEC_PER_MSEC = 1_000_000
NSEC_PER_USEC = 1_000

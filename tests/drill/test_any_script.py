"""Whatever a script that parses says, running it ends in a verdict."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytcp.drill.errors import DrillError
from pytcp.drill.parser import parse
from pytcp.drill.run import VERDICTS, Settings, record_file, run_text

FD = st.sampled_from(["3", "4", "5", "99", "-1", "..."])
SIZE = st.sampled_from(["0", "1", "1000", "70000", "-1", "99999999999", "...", "NULL"])
FLAG = st.sampled_from(["0", "MSG_PEEK", "MSG_OOB", "MSG_DONTWAIT|MSG_WAITALL", "MSG_MORE", "MSG_FASTOPEN", "-1", "[1]", "0xffffffff"])
BUFFER = st.sampled_from(["...", "NULL", '"abc"', "[1]", "{fd=1}", "5"])
RESULT = st.sampled_from(["0", "1", "3", "4", "5", "-1 EAGAIN", "-1 EINPROGRESS", "...", "[1]", "-1", "99999999999999999999"])
TIME = st.sampled_from(["+0", "+.01", "+1", "0.5", "*", "+.1~+.2", "+0...0.05", "+90", "9"])
OPTION = st.sampled_from([
    "SOL_SOCKET, SO_RCVBUF", "SOL_TCP, TCP_INFO", "SOL_SOCKET, SO_LINGER", "SOL_TCP, TCP_MAXSEG", "-5, 900000", "SOL_IP, IP_TOS", "1, ...",
])  # fmt: skip
VALUE = st.sampled_from(["[1]", "[0]", "[-1]", "{onoff=1, linger=1}", '"cubic"', "...", "[9999999999]", "[...]", "NULL", "{}"])
NOWHERE = '{sa_family=AF_INET, sin_port=htons(9), sin_addr=inet_addr("nowhere")}'
ADDRESSES = ["...", "AF_UNSPEC", NOWHERE]
FLAGS = st.sampled_from(["S", "S.", ".", "P.", "F.", "R", "-", "UP.", "SF", "P7."])
RANGES = st.sampled_from(["0:0(0)", "1:1(0)", "1:1001(1000)", "4294967295:1(2)"])
TCP_OPTIONS = st.sampled_from(["", "<mss 0>", "<wscale 255>", "<TS val 1 ecr 9>", "<sack 9:1>", "<eol>"])
ICMP = st.sampled_from(["unreachable", "unreachable frag_needed mtu 0", "packet_too_big mtu 5", "time_exceeded", "unreachable 99 [0:0(0)]", "redirect"])


def joined(*parts: st.SearchStrategy[str] | str) -> st.SearchStrategy[str]:
    """A line of fixed and chosen parts."""
    return st.tuples(*[st.just(part) if isinstance(part, str) else part for part in parts]).map("".join)


CALLS = st.one_of(
    joined("socket(..., SOCK_STREAM, IPPROTO_TCP) = ", RESULT),
    joined("socket(", SIZE, ", ", SIZE, ", 6) = ", RESULT),
    joined("bind(", FD, ", ", st.sampled_from(["...", "{sa_family=AF_INET, sin_port=htons(70000)}", "AF_UNSPEC", "7"]), ", ...) = 0"),
    joined("listen(", FD, ", ", SIZE, ") = ", RESULT),
    joined("accept(", FD, ", ..., ...) = ", RESULT),
    joined("connect(", FD, ", ", st.sampled_from(ADDRESSES), ", ...) = ", RESULT),
    joined("write(", FD, ", ", BUFFER, ", ", SIZE, ") = ", RESULT),
    joined("read(", FD, ", ", BUFFER, ", ", SIZE, ") = ", RESULT),
    joined("send(", FD, ", ..., ", SIZE, ", ", FLAG, ") = ", RESULT),
    joined("recv(", FD, ", ..., ", SIZE, ", ", FLAG, ") = ", RESULT),
    joined("sendmsg(", FD, ", {msg_iov(1)=[", BUFFER, "]}, ", FLAG, ") = ", RESULT),
    joined("recvmsg(", FD, ", {msg_iov(1)=[{..., 10}], msg_flags=", FLAG, ", msg_control=[{}]}, ", FLAG, ") = ", RESULT),
    joined("setsockopt(", FD, ", ", OPTION, ", ", VALUE, ", ", SIZE, ") = ", RESULT),
    joined("getsockopt(", FD, ", ", OPTION, ", ", VALUE, ", [", SIZE, "]) = ", RESULT),
    joined("shutdown(", FD, ", ", st.sampled_from(["SHUT_RDWR", "9", "-1"]), ") = ", RESULT),
    joined("close(", FD, ") = ", RESULT),
    joined("fcntl(", FD, ", ", st.sampled_from(["F_GETFL", "F_SETFL, O_NONBLOCK", "F_SETFL, -1", "77"]), ") = ", RESULT),
    joined("ioctl(", FD, ", ", st.sampled_from(["SIOCINQ", "SIOCOUTQ", "SIOCATMARK", "1"]), ", [0]) = ", RESULT),
    joined("poll([{fd=", FD, ", events=POLLIN, revents=-1}], 1, ", SIZE, ") = ", RESULT),
    joined("epoll_create(1) = ", RESULT),
    joined("epoll_ctl(", FD, ", ", st.sampled_from(["EPOLL_CTL_ADD", "EPOLL_CTL_DEL", "9"]), ", ", FD, ", {events=EPOLLIN|EPOLLET, fd=4}) = ", RESULT),
    joined("epoll_wait(", FD, ", {events=0, ptr=0}, ", SIZE, ", ", st.sampled_from(["0", "10", "-1"]), ") = ", RESULT),
    joined("pipe([", FD, ", ", FD, "]) = 0"),
    joined("splice(", FD, ", NULL, ", FD, ", NULL, 5, 0) = 0"),
    joined("sendfile(", FD, ", ", FD, ", [0], ", SIZE, ") = ", RESULT),
    joined('open("/etc/passwd", 0) = ', RESULT),
)
PACKETS = st.one_of(
    joined("< ", FLAGS, " ", RANGES, " ack ", st.sampled_from(["0", "1", "4294967295"]), " win 100 ", TCP_OPTIONS),
    joined("> ", FLAGS, " ", RANGES, " ack 1 ", st.sampled_from(["", "<...>", "<TS val ... ecr ...>"])),
    joined("< icmp ", ICMP),
)
OTHERS = st.sampled_from(["%{ assert tcpi_state }%", "%{ x }%", "`true`", "`false`", "`frob`", "`sleep 1`", "`ip route change 192.0.2.1 mtu 1`"])
LISTENING = ["0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3", "+0 bind(3, ..., ...) = 0", "+0 listen(3, 1) = 0"]
OPEN = [*LISTENING, "+0 < S 0:0(0) win 65535 <mss 1000>", "+0 > S. 0:0(0) ack 1 <...>", "+0 < . 1:1(0) ack 1 win 99", "+0 accept(3, ..., ...) = 4"]


@settings(max_examples=300)
@given(
    st.sampled_from([LISTENING[:1], LISTENING, OPEN]),
    st.lists(joined(TIME, " ", st.one_of(CALLS, CALLS, PACKETS, OTHERS)), min_size=1, max_size=6),
    st.sampled_from(["ipv4", "ipv6", "ipv4-mapped"]),
)
def test_every_run_ends_in_a_verdict(start: list[str], lines: list[str], ip: str) -> None:
    result = run_text("\n".join(start + lines), "any.pkt", "pytcp", ip, Settings(timeout_s=20))
    assert result.verdict in VERDICTS
    assert result.verdict == "pass" or result.reason


@settings(max_examples=100)
@given(st.sampled_from([LISTENING, OPEN]), st.lists(joined(TIME, " ", st.one_of(CALLS, CALLS, PACKETS)), min_size=1, max_size=6))
@example(LISTENING, [f"+0 connect(3, {NOWHERE}, ...) = 0"])
@example(LISTENING, ["+0 getsockopt(3, SOL_SOCKET, SO_RCVBUF, [1], [70000]) = 0"])
def test_what_is_recorded_can_be_read(start: list[str], lines: list[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "any.pkt")
        path.write_text("\n".join(start + lines))
        try:
            text = record_file(path, settings=Settings(timeout_s=20))
        except DrillError:
            return
    assert parse(text).events

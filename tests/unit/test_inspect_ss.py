"""`pytcp ss` prints what iproute2's ss printed for the same facts.

Every expected line here was printed by ss (iproute2 6.1.0) for sockets of a Linux 6.18 kernel in a
namespace; `·` stands for a space. The facts were read from the same sockets.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytcp.cli.inspect import ssfilter, ssinfo
from pytcp.cli.inspect.ss import Wanted, summarize, table
from pytcp.tcp.info import TcpInfo

Facts = dict[str, Any]


def facts(state: str, local: str, remote: str, *, recv_q: int = 0, send_q: int = 0, protocol: str = "tcp", **more: Any) -> Facts:
    """One socket; `local` and `remote` like "10.5.0.1 7000"."""
    sides: dict[str, object] = {}
    for side, text in (("local", local), ("remote", remote)):
        address, _, port = text.partition(" ")
        sides |= {side: address, f"{side}_port": int(port or 0)}
    return {
        "protocol": protocol, "family": 6 if ":" in local else 4, "state": state, "recv_q": recv_q, "send_q": send_q, **sides,
        "device": None, "mark": 0, "cookie": 0, "inode": 0, "fd": None, "timer": None, "v6only": False, "shutdown": 0, **more,
    }  # fmt: skip


LISTENERS = [
    facts("LISTEN", "0.0.0.0 7002", "0.0.0.0", send_q=5),
    facts("LISTEN", "10.5.0.1 7000", "0.0.0.0", send_q=16),
    facts("LISTEN", ":: 7002", "::", send_q=128, v6only=True),
    facts("LISTEN", ":: 7001", "::", recv_q=36, send_q=128),
]
SOCKETS = [
    *LISTENERS[:2],
    facts("ESTABLISHED", "10.5.0.1 7000", "10.5.0.2 55830"),
    facts("ESTABLISHED", "10.5.0.1 7000", "10.5.0.2 55832"),
    facts("CLOSE_WAIT", "10.5.0.1 7000", "10.5.0.2 55844"),
    LISTENERS[2],
    LISTENERS[3] | {"recv_q": 2},
    facts("ESTABLISHED", "::ffff:10.5.0.1 7001", "::ffff:10.5.0.2 60844", recv_q=6),
    facts("ESTABLISHED", "fd05::1 7001", "fd05::2 39422", recv_q=5),
]
DATAGRAMS = [
    facts("CLOSE", "10.5.0.1 5353", "0.0.0.0", protocol="udp"),
    facts("ESTABLISHED", "10.5.0.1 52144", "10.5.0.2 53", protocol="udp"),
    facts("CLOSE", "fd05::1 5353", "::", protocol="udp", v6only=True),
    facts("CLOSE", ":: 6000", "::", protocol="udp"),
]


def printed(sockets: list[Facts], screen: int | None = None, **wanted: bool) -> str:
    return "\n".join(table(sockets, Wanted(**{"numeric": True, **wanted}), "python3", 25351, screen)).replace(" ", "·")


def test_a_table_in_a_pipe_is_as_wide_as_its_entries() -> None:
    assert (
        printed(SOCKETS)
        == """\
State······Recv-Q·Send-Q·····Local·Address:Port······Peer·Address:Port·Process
LISTEN·····0······5················0.0.0.0:7002···········0.0.0.0:*···········
LISTEN·····0······16··············10.5.0.1:7000···········0.0.0.0:*···········
ESTAB······0······0···············10.5.0.1:7000··········10.5.0.2:55830·······
ESTAB······0······0···············10.5.0.1:7000··········10.5.0.2:55832·······
CLOSE-WAIT·0······0···············10.5.0.1:7000··········10.5.0.2:55844·······
LISTEN·····0······128·················[::]:7002··············[::]:*···········
LISTEN·····2······128····················*:7001·················*:*···········
ESTAB······6······0······[::ffff:10.5.0.1]:7001·[::ffff:10.5.0.2]:60844·······
ESTAB······5······0··············[fd05::1]:7001·········[fd05::2]:39422·······"""
    )


def test_two_protocols_are_told_apart_by_the_first_column() -> None:
    assert (
        printed(DATAGRAMS + SOCKETS[2:5], netid=True)
        == """\
Netid·State······Recv-Q·Send-Q·Local·Address:Port··Peer·Address:Port·Process
udp···UNCONN·····0······0···········10.5.0.1:5353·······0.0.0.0:*···········
udp···ESTAB······0······0···········10.5.0.1:52144·····10.5.0.2:53··········
udp···UNCONN·····0······0··········[fd05::1]:5353··········[::]:*···········
udp···UNCONN·····0······0··················*:6000·············*:*···········
tcp···ESTAB······0······0···········10.5.0.1:7000······10.5.0.2:55830·······
tcp···ESTAB······0······0···········10.5.0.1:7000······10.5.0.2:55832·······
tcp···CLOSE-WAIT·0······0···········10.5.0.1:7000······10.5.0.2:55844·······"""
    )


def test_without_headings_only_the_queues_keep_their_width() -> None:
    first_two = [LISTENERS[0], facts("LISTEN", "127.0.0.1 8000", "0.0.0.0", send_q=128), LISTENERS[1]]
    assert (
        printed(first_two, header=False)
        == """\
LISTEN·0······5········0.0.0.0:7002·0.0.0.0:*
LISTEN·0······128····127.0.0.1:8000·0.0.0.0:*
LISTEN·0······16······10.5.0.1:7000·0.0.0.0:*"""
    )


def test_the_last_entry_of_all_is_not_measured() -> None:
    mine = facts("LISTEN", "127.0.0.1 8000", "0.0.0.0", send_q=128, fd=3)
    assert (
        printed([mine], processes=True).replace("25351", "19961")
        == """\
State··Recv-Q·Send-Q·Local·Address:Port·Peer·Address:PortProcess
LISTEN·0······128········127.0.0.1:8000······0.0.0.0:*····users:(("python3",pid=19961,fd=3))"""
    )
    assert (
        printed([mine], processes=True, header=False).replace("25351", "19961")
        == """\
LISTEN·0······128····127.0.0.1:8000·0.0.0.0:*·users:(("python3",pid=19961,fd=3))"""
    )
    assert (
        printed([mine | {"local_port": 8001, "fd": 4}, mine], processes=True).replace("25351", "19961")
        == """\
State··Recv-Q·Send-Q·Local·Address:Port·Peer·Address:PortProcess····························
LISTEN·0······128········127.0.0.1:8001······0.0.0.0:*····users:(("python3",pid=19961,fd=4))
LISTEN·0······128········127.0.0.1:8000······0.0.0.0:*····users:(("python3",pid=19961,fd=3))"""
    )
    assert printed([], state=False) == "Recv-Q·Send-Q·Local·Address:Port·Peer·Address:PortProcess"


def test_one_state_asked_for_is_not_repeated_in_every_line() -> None:
    socket = facts("SYN_SENT", "10.5.0.2 48592", "10.5.0.77 80", send_q=1)
    assert (
        printed([socket], state=False)
        == """\
Recv-Q·Send-Q·Local·Address:Port··Peer·Address:PortProcess
0······1···········10.5.0.2:48592····10.5.0.77:80·········"""
    )


@pytest.mark.parametrize(
    ("screen", "lines"),
    [
        (
            40,
            """\
State··Recv-Q·Send-Q·Local·Address:Port·······Peer·Address:Port·····Process·····
LISTEN·0······5············0.0.0.0:7002············0.0.0.0:*····················
LISTEN·0······16··········10.5.0.1:7000············0.0.0.0:*····················
LISTEN·0······128·············[::]:7002···············[::]:*····················
LISTEN·36·····128················*:7001··················*:*····················""",
        ),
        (
            60,
            """\
State··Recv-Q·Send-Q·Local·Address:Port···Peer·Address:Port·Process·····················································
LISTEN·0······5············0.0.0.0:7002········0.0.0.0:*································································
LISTEN·0······16··········10.5.0.1:7000········0.0.0.0:*································································
LISTEN·0······128·············[::]:7002···········[::]:*································································
LISTEN·36·····128················*:7001··············*:*································································""",
        ),
        (
            64,
            """\
State··Recv-Q·Send-Q·Local·Address:Port·Peer·Address:PortProcess
LISTEN·0······5············0.0.0.0:7002······0.0.0.0:*··········
LISTEN·0······16··········10.5.0.1:7000······0.0.0.0:*··········
LISTEN·0······128·············[::]:7002·········[::]:*··········
LISTEN·36·····128················*:7001············*:*··········""",
        ),
        (
            79,
            """\
State···Recv-Q···Send-Q·····Local·Address:Port·····Peer·Address:Port··Process··
LISTEN··0········5················0.0.0.0:7002··········0.0.0.0:*··············
LISTEN··0········16··············10.5.0.1:7000··········0.0.0.0:*··············
LISTEN··0········128·················[::]:7002·············[::]:*··············
LISTEN··36·······128····················*:7001················*:*··············""",
        ),
        (
            90,
            """\
State·····Recv-Q····Send-Q·······Local·Address:Port·······Peer·Address:Port····Process····
LISTEN····0·········5··················0.0.0.0:7002············0.0.0.0:*··················
LISTEN····0·········16················10.5.0.1:7000············0.0.0.0:*··················
LISTEN····0·········128···················[::]:7002···············[::]:*··················
LISTEN····36········128······················*:7001··················*:*··················""",
        ),
    ],
)
def test_on_a_terminal_the_columns_fill_the_lines(screen: int, lines: str) -> None:
    assert printed(LISTENERS, screen) == lines


# --- what belongs to one socket ---

# a connection in FIN-WAIT-1 whose peer went silent, 2.5 s after its last write
SILENT = TcpInfo(
    state=4, ca_state=4, retransmits=3, backoff=3, options=7, snd_wscale=7, rcv_wscale=10, delivery_rate_app_limited=1, rto=1_600_000, snd_mss=1448,
    rcv_mss=536, unacked=5, lost=5, retrans=1, last_data_sent=1052, last_data_recv=2512, last_ack_recv=2512, pmtu=1500, rcv_ssthresh=64088, rtt=12, rttvar=6,
    snd_ssthresh=5, snd_cwnd=1, advmss=1448, reordering=3, rcv_space=14480, total_retrans=4, pacing_rate=12_500_000, max_pacing_rate=12_500_000,
    bytes_acked=1, segs_out=11, segs_in=1, min_rtt=12, data_segs_out=7, busy_time=2_504_000, delivered=1, bytes_sent=9344, bytes_retrans=4344, snd_wnd=65160,
)  # fmt: skip
SILENT_FACTS = facts(
    "FIN_WAIT1", "10.5.0.2 44710", "10.5.0.1 7000", send_q=5001, timer={"kind": "on", "ms": 548, "retrans": 3}, cookie=0x1024, mark=0x2A, shutdown=3,
    memory={"rmem_alloc": 0, "rcvbuf": 131072, "wmem_alloc": 0, "sndbuf": 46080, "forward_alloc": 696, "wmem_queued": 7496},
    congestion="reno", info={name: getattr(SILENT, name) for name in TcpInfo.__slots__},
)  # fmt: skip


def test_everything_about_a_connection_that_retransmits() -> None:
    head, _, tail = printed([SILENT_FACTS], info=True, options=True, extended=True, memory=True).replace("·", " ").partition("\n")
    assert head.split() == ["State", "Recv-Q", "Send-Q", "Local", "Address:Port", "Peer", "Address:PortProcess"]
    assert tail == (
        "FIN-WAIT-1 0      5001        10.5.0.2:44710     10.5.0.1:7000 timer:(on,548ms,3) ino:0 sk:1024 fwmark:0x2a ---\n"
        "\t skmem:(r0,rb131072,t0,tb46080,f696,w7496,o0,bl0,d0) ts sack reno wscale:7,10 rto:1600 backoff:3 rtt:0.012/0.006 mss:1448 pmtu:1500 rcvmss:536 "
        "advmss:1448 cwnd:1 ssthresh:5 bytes_sent:9344 bytes_retrans:4344 bytes_acked:1 segs_out:11 segs_in:1 data_segs_out:7 send 965333333bps lastsnd:1052 "
        "lastrcv:2512 lastack:2512 pacing_rate 100000000bps/100000000bps delivered:1 app_limited busy:2504ms unacked:5 retrans:1/4 lost:5 rcv_space:14480 "
        "rcv_ssthresh:64088 minrtt:0.012 snd_wnd:65160"
    )


def test_rates_are_short_unless_numbers_are_asked_for() -> None:
    short = ssinfo.info(SILENT_FACTS, options=False, numeric=False)
    assert short.startswith("reno wscale:7,10 rto:1600")
    assert "send 965Mbps lastsnd:" in short
    assert "pacing_rate 100Mbps/100Mbps delivered:" in short


def test_a_line_for_each_socket_on_request() -> None:
    [_, line] = table([SILENT_FACTS], Wanted(info=True, oneline=True, numeric=True), "python3", 1)
    assert "10.5.0.1:7000 reno wscale:7,10 rto:1600 " in line
    assert "\n" not in line


def test_what_a_connection_waits_for_is_a_line_of_its_own_and_only_when_asked_for() -> None:
    gated = SILENT_FACTS | {"gate": "rwnd", "gates": {"app": [3_500_000_000, 1000], "rwnd": [6_500_000_000, 9000]}}
    plain = printed([gated], info=True, options=True, extended=True, memory=True)
    assert plain == printed([SILENT_FACTS], info=True, options=True, extended=True, memory=True), "ss's own words are not touched"
    assert table([gated], Wanted(why=True, info=True, numeric=True), "python3", 1)[1] == "\n\t".join(
        [*table([SILENT_FACTS], Wanted(info=True, numeric=True), "python3", 1)[1].split("\n\t"), " gate:rwnd rwnd:6500ms(65.0%)/9000 app:3500ms(35.0%)/1000"]
    )
    assert " gate:rwnd" in printed([gated], why=True).replace("·", " ")
    assert "gate" not in printed([SILENT_FACTS], why=True), "a stack of another version says nothing of gates"


def test_the_receivers_limit_is_a_share_of_the_time_busy() -> None:
    limited = SILENT_FACTS["info"] | {"busy_time": 728_000, "rwnd_limited": 684_000, "notsent_bytes": 1886552, "min_rtt": 16, "rcv_rtt": 28}
    limited["max_pacing_rate"] = 2**64 - 1
    words = ssinfo.info(SILENT_FACTS | {"info": limited}, options=False, numeric=True)
    assert " busy:728ms rwnd_limited:684ms(94.0%) unacked:5 " in words
    assert " rcv_rtt:0.028 rcv_space:14480 rcv_ssthresh:64088 notsent:1886552 minrtt:0.016 snd_wnd:65160" in words
    assert " pacing_rate 100000000bps delivered:1 " in words


def test_what_nobody_knows_yet_is_not_printed() -> None:
    fresh = TcpInfo(rto=3_000_000, pacing_rate=2**64 - 1, min_rtt=0xFFFFFFFF, snd_ssthresh=0x7FFFFFFF, reordering=3, snd_cwnd=10)
    info = {name: getattr(fresh, name) for name in TcpInfo.__slots__}
    assert ssinfo.info(SILENT_FACTS | {"info": info}, options=True, numeric=True) == "reno cwnd:10"


def test_a_listener_shows_who_waits_and_not_its_backlog_twice() -> None:
    info = dict.fromkeys(TcpInfo.__slots__, 0) | {"snd_cwnd": 10, "unacked": 31, "sacked": 128, "reordering": 3}
    listener = LISTENERS[3] | {"congestion": "bbr", "info": info}
    assert ssinfo.info(listener, options=True, numeric=True) == "bbr cwnd:10 unacked:31"


@pytest.mark.parametrize(
    ("state", "shutdown", "arrows"),
    [("ESTABLISHED", 0, "<->"), ("CLOSE_WAIT", 1, "-->"), ("FIN_WAIT2", 2, "<--"), ("FIN_WAIT1", 3, "---")],
)
def test_arrows_show_which_directions_are_open(state: str, shutdown: int, arrows: str) -> None:
    assert ssinfo.details(facts(state, "10.5.0.1 1", "10.5.0.2 2", shutdown=shutdown, inode=606992, cookie=0x100D)) == f"ino:606992 sk:100d {arrows}"


def test_only_unconnected_ipv6_sockets_say_whether_they_exclude_ipv4() -> None:
    assert ssinfo.details(LISTENERS[2]) == "ino:0 sk:0 v6only:1 <->"
    assert ssinfo.details(DATAGRAMS[3]) == "ino:0 sk:0 v6only:0 <->"
    assert ssinfo.details(SOCKETS[8]) == "ino:0 sk:0 <->"


def test_what_is_left_of_a_connection_has_a_timer_and_nothing_else() -> None:
    left = {key: value for key, value in facts("TIME_WAIT", "127.0.0.1 40682", "127.0.0.1 8000").items() if key not in ("v6only", "shutdown")}
    left |= {"timer": {"kind": "timewait", "ms": 59_970, "retrans": 0}, "cookie": 0x47}
    [_, line] = table([left], Wanted(numeric=True, options=True, extended=True, info=True, memory=True, processes=True), "python3", 1)
    assert line.split("\n\t")[0].split() == ["TIME-WAIT", "0", "0", "127.0.0.1:40682", "127.0.0.1:8000", "timer:(timewait,59sec,0)", "ino:0", "sk:47"]
    assert line.split("\n\t")[1].strip() == ""


def test_the_process_is_named_for_sockets_that_a_program_holds() -> None:
    assert ssinfo.users(facts("LISTEN", "0.0.0.0 7002", "0.0.0.0", fd=6), "python3", 25351) == 'users:(("python3",pid=25351,fd=6))'
    assert ssinfo.users(SOCKETS[7], "python3", 25351) == ""


# keepalive timers of different lengths, read just after they were started
@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, ""), (988, "988ms"), (1988, "1.988ms"), (8988, "8.988ms"), (9988, "9.988ms"), (10_988, "10sec"), (29_988, "29sec"), (59_988, "59sec"),
        (60_988, "1min"), (69_988, "1min9sec"), (118_988, "1min58sec"), (299_988, "4min59sec"), (599_988, "9min59sec"), (600_988, "10min"), (659_988, "10min"),
        (3_599_988, "59min"), (3_699_988, "61min"), (7_199_988, "119min"), (32_766_988, "546min"),
    ],
)  # fmt: skip
def test_time_left_is_the_finer_the_shorter(ms: int, text: str) -> None:
    assert ssinfo.span(ms) == text


# SO_MAX_PACING_RATE in bytes per second, and what `ss -i` made of it
@pytest.mark.parametrize(("rate", "text"), [(124, "992bps"), (12_499, "100kbps"), (125_000, "1Mbps"), (12_500_000, "100Mbps"), (125_000_000, "1Gbps")])
def test_rates_have_three_digits(rate: int, text: str) -> None:
    assert ssinfo.rate(rate * 8, numeric=False) == text


def test_ports_have_names_unless_numbers_are_asked_for() -> None:
    web = facts("ESTABLISHED", "10.5.0.1 40000", "10.5.0.2 80")
    assert "10.5.0.2:http" in printed([web], numeric=False)
    assert "10.5.0.2:80" in printed([web])


def test_a_socket_bound_to_a_device_names_it() -> None:
    assert "0.0.0.0%eth0:68" in printed([facts("CLOSE", "0.0.0.0 68", "0.0.0.0", protocol="udp", device="eth0")])


def test_the_summary_has_the_shape_of_ss_s() -> None:
    totals = {"tcp": {"4": 8, "6": 33}, "udp": {"4": 2, "6": 2}, "frag": {"4": 0, "6": 0}, "estab": 36, "orphaned": 10, "timewait": 1, "synrecv": 0}
    assert (
        summarize(totals).replace(" ", "·")
        == """\
Total:·45
TCP:···42·(estab·36,·closed·11,·orphaned·10,·timewait·1)

Transport·Total·····IP········IPv6
RAW\t··0·········0·········0········
UDP\t··4·········2·········2········
TCP\t··41········8·········33·······
INET\t··45········10········35·······
FRAG\t··0·········0·········0········"""
    )


# --- filters: what ss 6.1.0 showed of SOCKETS for each ---


def matching(text: str) -> list[int]:
    states, test = ssfilter.parse(text.split())
    return [number for number, socket in enumerate(SOCKETS) if socket["state"] in (ssfilter.USUAL if states is None else states) and test(socket)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", [2, 3, 4, 7, 8]),
        ("sport 7000", [2, 3, 4]),
        ("sport = :7000", [2, 3, 4]),
        ("sport eq :7000", [2, 3, 4]),
        ("sport=:7000", [2, 3, 4]),
        ("sport != 7000", [7, 8]),
        ("! sport 7000", [7, 8]),
        ("src 10.5.0.1:7000", [2, 3, 4]),
        ("src = 10.5.0.0/24", [2, 3, 4, 7]),
        ("src 10.5.0.1:*", [2, 3, 4, 7]),
        ("src :7000", [2, 3, 4]),
        ("src *:7001", [7, 8]),
        ("dst [fd05::2]", [8]),
        ("dst [fd05::2]:39422", [8]),
        ("dst fd05::/64", [8]),
        ("dst != fd05::2", [2, 3, 4, 7]),
        ("not dst 10.5.0.2", [8]),
        ("sport 7000 dport 55830", [2]),
        ("dport 55830 | dport 55832", [2, 3]),
        ("state established sport = :7001 or dport = 55830", [2, 7, 8]),
        ("state listening sport ge 7001", [0, 5, 6]),
        ("state all sport gt 7000 and sport lt 7002", [6, 7, 8]),
        ("exclude established", [0, 1, 4, 5, 6]),
        ("state established state close-wait", [2, 3, 4, 7, 8]),
        ("state connected exclude close-wait", [2, 3, 7, 8]),
        ("( dport 55830 or dport 60844 ) and src 10.5.0.1", [2, 7]),
        ("not ( dport 55830 or dport 60844 )", [3, 4, 8]),
    ],
)
def test_filters(text: str, shown: list[int]) -> None:
    assert matching(text) == shown


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("state bogus", "no state 'bogus'; there are established,"),
        ("state", "state what"),
        ("sport = :abc", "'abc' is neither a port nor a service"),
        ("sport = 70000", "port 70000 is above 65535"),
        ("dport", "the filter ends where a port is expected"),
        ("( sport = :7000", "a parenthesis is not closed"),
        ("sport = 7000 )", "')' is not expected here"),
        ("src 10.5.0.300", "'10.5.0.300' is not an IPv4 or IPv6 address or prefix"),
        ("sport = 1 or", "the filter ends where a condition is expected"),
        ("sport 1 state listening", "state comes first"),
    ],
)
def test_a_filter_that_makes_no_sense_says_where(text: str, complaint: str) -> None:
    with pytest.raises(ssfilter.FilterError) as caught:
        ssfilter.parse(text.split())
    assert complaint in str(caught.value)

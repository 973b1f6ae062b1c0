"""iperf3: what is on the control connection, and how figures are printed. The lines are those iperf3 3.12 printed for the same figures."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from pytcp.lab.iperf3 import COOKIE_SIZE, Iperf3Error, Server, Settings, State, udp
from pytcp.lab.iperf3.client import _harmless
from pytcp.lab.iperf3.protocol import Control, Result, Results, new_cookie, stream_number
from pytcp.lab.iperf3.report import amount, rate

# as a real client sent them: -n 10M -l 8K -b 200M -N -C reno -M 1000 -w 200K --get-server-output -T tit
PARAMETERS = (
    '{"tcp":true,"omit":0,"time":0,"num":10485760,"blockcount":0,"MSS":1000,"nodelay":true,"parallel":1,"window":204800,"len":8192,'
    '"bandwidth":200000000,"pacing_timer":1000,"title":"tit","congestion":"reno","get_server_output":1,"client_version":"3.12"}'
)
# as a real client in reverse mode sent them
RESULTS = (
    '{"cpu_util_total":16.48,"cpu_util_user":1.07,"cpu_util_system":15.4,"sender_has_retransmits":18446744073709551615,"congestion_used":"bbr",'
    '"streams":[{"id":1,"bytes":1307574272,"retransmits":18446744073709551615,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":1.992004}]}'
)


def test_what_a_real_client_asks_for_is_understood_and_said_the_same_way() -> None:
    asked = json.loads(PARAMETERS)
    settings = Settings.decode(asked)
    assert (settings.limit, settings.length, settings.bitrate, settings.window) == (10 << 20, 8192, 200_000_000, 200 << 10)
    assert (settings.mss, settings.nodelay, settings.congestion, settings.server_output) == (1000, True, "reno", True)
    said = settings.encode()
    assert said.pop("client_version").startswith("pytcp ")
    del asked["client_version"]
    assert said == asked


def test_what_a_real_client_found_is_understood() -> None:
    results = Results.decode(json.loads(RESULTS))
    assert results.streams == {1: Result(1307574272, None, 1.992004)}
    assert results.congestion == "bbr"
    assert not results.has_retransmits


@pytest.mark.parametrize(
    ("key", "value"),
    [("parallel", 129), ("parallel", 0), ("len", (1 << 20) + 1), ("len", 0), ("time", -1), ("num", "many"), ("omit", None), ("congestion", 7), ("MSS", 10_000)],
)
def test_parameters_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(Iperf3Error, match=key):
        Settings.decode({"tcp": True, "time": 1, key: value})


@pytest.mark.parametrize(
    "found", [{"streams": {}}, {"streams": [{"id": 1, "bytes": -1}]}, {"streams": [{"id": 1, "end_time": "late"}]}, {"streams": [], "congestion_used": 1}]
)
def test_results_that_are_none_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(Iperf3Error):
        Results.decode(found)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5)
NAMES = ("tcp", "omit", "time", "num", "parallel", "len", "bandwidth", "congestion", "streams", "id", "bytes", "end_time", "retransmits", "cpu_util_total")


@given(st.dictionaries(st.sampled_from(NAMES), JSON | st.lists(st.dictionaries(st.sampled_from(NAMES), JSON), max_size=3)))
def test_whatever_object_the_other_side_sends_it_is_understood_or_refused(found: dict[str, object]) -> None:
    for decode in (Settings.decode, Results.decode):
        with suppress(Iperf3Error):
            decode(found)


def test_what_a_server_printed_cannot_steer_our_terminal() -> None:
    assert _harmless("50 %\tdone\n\x1b[2J\x9b") == "50 %\tdone\n\ufffd[2J\ufffd"


def test_streams_are_numbered_as_iperf3_numbers_them() -> None:
    assert [stream_number(index) for index in range(4)] == [1, 3, 4, 5]


def test_a_cookie_is_36_characters_and_a_zero() -> None:
    cookie = new_cookie()
    assert len(cookie) == COOKIE_SIZE == 37
    assert cookie[-1:] == b"\0"
    assert cookie[:-1].decode().isalnum()


@pytest.mark.parametrize(
    ("size", "text"),
    [(10477568, "9.99 MBytes"), (348651520, " 332 MBytes"), (10485760, "10.0 MBytes"), (1364459520, "1.27 GBytes"), (0, "0.00 Bytes"), (131072, " 128 KBytes")],
)
def test_sizes_have_three_digits_and_count_by_1024(size: int, text: str) -> None:
    assert amount(size, bits=False) == text


@pytest.mark.parametrize(
    ("bps", "form", "text"),
    [
        (10477568 * 8 / 0.466245, "", " 180 Mbits/sec"),
        (348651520 * 8 / 1.008344, "", "2.77 Gbits/sec"),
        (0, "", "0.00 bits/sec"),
        (2_500_000, "k", "2500 Kbits/sec"),
        (8 << 20, "M", "1.00 MBytes/sec"),
    ],
)
def test_bitrates_count_by_1000_unless_a_capital_asks_for_bytes(bps: float, form: str, text: str) -> None:
    assert rate(bps, form) == text


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"\xff", "the server is busy"),
        (b"\x0b", "the server has terminated"),
        (b"\x0c", "the client has terminated"),
        (b"\xfe\0\0\0\x86\0\0\0\x02", "unable to set TCP_CONGESTION: No such file"),
        (b"\xfe\0\0\0\x0d\0\0\0\0", "not implemented yet"),
        (b"\x63", "unknown control message"),
        (b"", "closed unexpectedly"),
    ],
)
def test_bad_news_on_the_control_connection_says_what_it_is(said: bytes, reason: str) -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()
        await theirs.send_all(said)
        await theirs.send_eof()
        with pytest.raises(Iperf3Error, match=reason):
            await Control(ours).heard()

    trio.run(main)


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n",  # shorter than a cookie
        b"c" * COOKIE_SIZE + b"\xff\xff\xff\xff{}",  # a length beyond all reason
        b"c" * COOKIE_SIZE + b"\0\0\0\2[]",  # JSON, but no object
        b"c" * COOKIE_SIZE + b"\0\0\0\3{,}",  # no JSON
    ],
)
def test_a_client_that_does_not_speak_iperf3_only_loses_its_connection(junk: bytes) -> None:
    async def main() -> None:
        server = Server()
        for _ in range(2):  # the server is ready for the next one
            ours, theirs = memory_stream_pair()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.handle, ours)
                await theirs.send_all(junk)
                await theirs.send_eof()
        assert server.tests == 0

    trio.run(main)


def test_a_second_client_during_a_test_is_sent_away() -> None:
    async def main() -> None:
        server = Server()
        first, first_theirs = memory_stream_pair()
        second, second_theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handle, first)
            await first_theirs.send_all(b"a" * COOKIE_SIZE)
            assert await first_theirs.receive_some(1) == bytes((State.PARAM_EXCHANGE,))
            nursery.start_soon(server.handle, second)
            await second_theirs.send_all(b"b" * COOKIE_SIZE)
            assert await second_theirs.receive_some(1) == b"\xff"
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_client_that_wants_udp_is_told_that_there_is_none() -> None:
    async def main() -> None:
        server = Server()
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.handle, ours)
            control = Control(theirs)
            await theirs.send_all(new_cookie())
            await control.expect(State.PARAM_EXCHANGE)
            await control.send_json({"udp": True, "time": 1})
            with pytest.raises(Iperf3Error, match="not implemented"):
                await control.heard()
            await theirs.aclose()

    trio.run(main)


# --- UDP ---


def test_gaps_are_losses_and_what_comes_late_is_not() -> None:
    counts = udp.Counts()
    for number in (1, 2, 5, 6, 4, 7, 7):
        counts.received(number, 0.0, 0.0)
    # 3 is missing; 4 came late; the second 7 counts as late, too, as in iperf3
    assert (counts.packets, counts.late, counts.lost) == (7, 2, 0)
    counts.received(11, 0.0, 0.0)
    assert counts.lost == 3


def test_jitter_is_a_sixteenth_of_each_change_of_the_transit_time() -> None:
    counts = udp.Counts()
    transit = [0.010, 0.026, 0.026, 0.010]
    for number, late in enumerate(transit, 1):
        counts.received(number, number * 1.0, number * 1.0 + late)
    # RFC 1889: J += (|D| - J) / 16 with D = 16 ms, 0, 16 ms
    expected = 0.001
    expected += (0 - expected) / 16
    expected += (0.016 - expected) / 16
    assert counts.jitter == pytest.approx(expected)


@pytest.mark.parametrize("long", [False, True])
def test_a_datagram_says_when_it_was_sent_and_its_number(long: bool) -> None:
    assert udp.parse(udp.header(5, 1234.5, long) + bytes(100), long) == (5, 1234.5)
    assert udp.header(5, 1234.5, long)[:8].hex() == "000004d20007a120"
    assert udp.parse(b"9876", long) is None

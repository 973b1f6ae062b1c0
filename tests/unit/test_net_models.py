"""Small models behind the host: ticks, skb sizes, ICMP buckets, reassembly queues."""

from __future__ import annotations

from random import Random

import pytest

from pytcp.net.ratelimit import HostLimit, PeerLimit
from pytcp.net.ticks import expiry
from pytcp.net.truesize import rx_truesize, tx_truesize

MS = 1_000_000
S = 1_000_000_000
TICK = 4 * MS


@pytest.mark.parametrize("phase", [0, 1, TICK - 1, 17 * TICK, 17 * TICK + 1])
@pytest.mark.parametrize("delay", [1, TICK, 40 * MS, 62 * TICK, 63 * TICK, S, 5 * S, 30 * S, 60 * S])
def test_a_timer_is_never_early_and_late_by_at_most_its_bucket(phase: int, delay: int) -> None:
    ticks = -(-delay // TICK)
    bucket = 1 if ticks < 63 else 8 if ticks < 504 else 64 if ticks < 4032 else 512
    took = expiry(phase, delay, TICK) - phase
    assert delay <= took + TICK * (phase % TICK == 0 and delay % TICK == 0)
    assert took <= (ticks + bucket) * TICK


def test_thirty_and_sixty_seconds_fire_on_the_wheels_coarse_marks() -> None:
    # measured 31.3..31.5 s for 30 s and 61.6..61.7 s for 60 s: multiples of 512 ticks (2.048 s)
    assert expiry(0, 30 * S, TICK) % (512 * TICK) == 0
    assert 30 * S < expiry(0, 30 * S, TICK) <= 32.048 * S
    assert expiry(0, 60 * S, TICK) % (512 * TICK) == 0


def test_a_received_frame_costs_what_the_kernel_was_seen_to_charge() -> None:
    # linux-host §6: 302 datagrams of 10 bytes or 97 of 1472 in 212992 bytes
    assert 212992 // rx_truesize(52) == 302
    assert 212992 // rx_truesize(1514) == 97


@pytest.mark.parametrize(("segments", "ratio"), [(2, 203), (4, 164), (10, 215), (44, 245)])
def test_a_super_frame_costs_its_pages_and_a_head(segments: int, ratio: int) -> None:
    # linux-tcp §14: payload/truesize in 256ths of GSO frames from a TAP
    payload = segments * 1448
    assert payload * 256 // rx_truesize(payload + 66) == ratio


def test_a_sent_packet_costs_what_the_kernel_was_seen_to_charge() -> None:
    # linux-host §1: 256 datagrams of 100 bytes or 92 of 1472 in 212992 bytes, in IPv4 and IPv6 alike
    for header in (28, 48):
        assert 212992 // tx_truesize(100 + header) == 256
        assert 212992 // tx_truesize(1472 + header) == 92


def test_a_destinations_bucket_is_six_deep_and_refills_steadily() -> None:
    limit = PeerLimit()
    peer, other = b"\n\0\0\2", b"\n\0\0\3"
    assert [limit.allow(peer, 0, 1000) for _ in range(8)] == [True] * 6 + [False] * 2
    assert limit.allow(other, 0, 1000)
    assert not limit.allow(peer, 999 * MS, 1000)
    assert limit.allow(peer, 1000 * MS, 1000)
    assert [limit.allow(peer, 60 * S, 1000) for _ in range(8)] == [True] * 6 + [False] * 2
    assert all(limit.allow(peer, 0, 0) for _ in range(100))


def test_the_memory_of_destinations_is_bounded() -> None:
    limit = PeerLimit()
    for i in range(10_000):
        limit.allow(i.to_bytes(4, "big"), 0, 1000)
    assert len(limit._peers) == 4096


def test_the_hosts_bucket_pays_one_credit_a_message_on_average_and_hides_the_exact_number() -> None:
    sent = []
    for seed in range(50):
        limit = HostLimit(Random(seed))
        count = 0
        while limit.allow(0, 1000, 50):
            limit.consume()
            count += 1
        sent.append(count)
    assert 45 <= sum(sent) / 50 <= 55
    assert len(set(sent)) > 5
    limit.allow(20 * MS, 1000, 50)
    assert limit.credit == 20
    limit.allow(10 * S, 1000, 50)
    assert limit.credit == 50


@pytest.mark.parametrize(
    ("length", "truesize"),
    [
        (3456, 3520 + 576),  # the largest frame in a piece of a shared page: align64(3456 + 64) + overhead
        (3457, 4096 + 256),  # a slab of 4096 holds align64(3457 + 64) = 3584 and the shared info of 320
        (3712, 4096 + 256),  # align64(3776) + 320 = 4096: just
        (3713, 8192 + 256),
        (4031, 8192 + 256),
        (4032, 832 + 4096),  # from here on in whole pages: 3966 bytes of payload in one
    ],
)
def test_frames_around_a_page_get_the_slab_the_kernel_gives_them(length: int, truesize: int) -> None:
    assert rx_truesize(length) == truesize


@pytest.mark.parametrize(("length", "truesize"), [(3456, 4096), (4031, 8448), (4032, 8448), (7808, 8448), (7809, 12544), (9014, 12544)])
def test_a_large_single_segment_fills_an_object_of_4_kib_and_pages(length: int, truesize: int) -> None:
    # SO_MEMINFO of 6.18 for every length up to 9014, MTU 9000, a virtio header of zeros
    assert rx_truesize(length, length - 54, 0) == truesize

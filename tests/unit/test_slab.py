"""Memory for copied payload: who holds a slab, and when it may be used again."""

from __future__ import annotations

from pytcp.tcp import const, input, sendmsg, slab, tso

from .harness import FakeHost, established, segment


def pattern(n: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(n))


def test_a_slab_comes_with_one_reference_and_is_used_again_when_the_last_is_gone() -> None:
    first = slab.get()
    assert (first.refs, first.used) == (1, 0)
    first.used = 100
    first.refs += 1
    first.put()
    assert slab.get() is not first
    first.put()
    again = slab.get()
    assert again is first, "the warm one first"
    assert (again.refs, again.used) == (1, 0)


def test_the_pool_is_bounded() -> None:
    slabs = [slab.Slab() for _ in range(slab.POOL_LIMIT + 10)]
    for s in slabs:
        s.refs = 1
        s.put()
    assert len(slab._pool) == slab.POOL_LIMIT


def test_small_writes_share_one_fragment() -> None:
    sk = established(mss=1000)
    sk.nonagle = const.NAGLE_CORK
    for i in range(9):
        sendmsg.sendmsg(sk, bytearray([i]) * 100)
    skb = sk.write_queue.head
    assert skb is not None
    assert (skb.length, len(skb.frags), sk.slab.refs) == (900, 1, 2)


def test_a_small_write_of_bytes_is_copied_only_behind_another() -> None:
    sk = established(mss=1000)
    sk.nonagle = const.NAGLE_CORK
    writes = [bytes([i]) * 100 for i in range(5)]
    sendmsg.sendmsg(sk, writes[0])
    assert sk.slab is None, "one message takes no slab, however long the connection is idle behind it"
    for data in writes[1:]:
        sendmsg.sendmsg(sk, data)
    skb = sk.write_queue.head
    assert skb is not None
    assert skb.frags[0] is writes[0]
    assert (len(skb.frags), b"".join(skb.frags)) == (2, b"".join(writes))


def test_a_callers_buffer_may_be_overwritten_at_once() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 1
    data = pattern(3000)
    buf = bytearray(data)
    sendmsg.sendmsg(sk, memoryview(buf))
    buf[:] = bytes(3000)
    for upto in (1000, 2000):
        input.receive(sk, segment(sk, ack=1 + upto))
    assert b"".join(s.payload for s in host.sent) == data


def test_large_bytes_are_kept_by_reference_and_small_ones_copied() -> None:
    sk = established(mss=1000)
    sk.nonagle = const.NAGLE_CORK
    sk.snd_cwnd = 0
    large, small = pattern(sendmsg.BY_REFERENCE), pattern(sendmsg.BY_REFERENCE - 1)
    sendmsg.sendmsg(sk, large)
    sendmsg.sendmsg(sk, small)
    skb = sk.write_queue.head
    assert skb is not None
    assert skb.frags[0] is large
    assert all(f is not small and (f is large or f.obj is not small) for f in skb.frags)
    assert b"".join(skb.frags) == large + small


def test_a_small_write_behind_a_large_one_does_not_run_into_it() -> None:
    """Copied, by reference, copied again: the slab's last fragment is no longer the skb's last."""
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.nonagle = const.NAGLE_CORK
    sk.snd_cwnd = 0
    parts = [pattern(100), pattern(5000)[::-1], pattern(77)]
    for part in parts:
        sendmsg.sendmsg(sk, part)
    sk.snd_cwnd = 20
    input.receive(sk, segment(sk))
    sk.nonagle = 0
    input.receive(sk, segment(sk))
    assert b"".join(s.payload for s in host.sent) == b"".join(parts)


def test_every_second_byte_of_bytes_is_copied_as_the_view_shows_it() -> None:
    host = FakeHost()
    sk = established(host, mss=1000)
    sk.snd_cwnd = 20
    data = pattern(20_000)
    assert sendmsg.sendmsg(sk, memoryview(data)[::2]) == 10_000
    assert b"".join(s.payload for s in host.sent) == data[::2]


def test_memory_is_free_when_its_last_byte_is_acknowledged_and_has_left_the_ring() -> None:
    host = FakeHost(complete="manual")
    sk = established(host, mss=1000)
    sendmsg.sendmsg(sk, bytearray(500))
    held = sk.slab
    held.used = slab.SLAB_SIZE  # the next write takes another slab
    sendmsg.sendmsg(sk, bytearray(500))
    assert held.refs == 1, "the first write's skb"
    input.receive(sk, segment(sk, ack=501))
    assert held.refs == 1, "a clone in the TX ring still shows the bytes"
    host.complete_all()
    assert held.refs == 0


def test_a_cut_leaves_each_part_with_the_slabs_its_bytes_lie_in() -> None:
    sk = established(mss=1000)
    sk.snd_cwnd = 0
    sendmsg.sendmsg(sk, bytearray(1500))
    first = sk.slab
    first.used = slab.SLAB_SIZE
    sendmsg.sendmsg(sk, bytearray(1500))
    second = sk.slab
    skb = sk.write_queue.head
    assert skb is not None
    assert skb.slabs == [first, second]
    rest = tso.fragment(sk, skb, 1000, 1000)
    assert (skb.slabs, rest.slabs) == ([first], [first, second])
    last = tso.fragment(sk, rest, 1000, 1000)
    assert (rest.slabs, last.slabs) == ([first, second], [second])
    assert (first.refs, second.refs) == (2, 2 + 1), "the second is still being filled"


def test_a_stream_of_copied_writes_does_not_hold_on_to_old_slabs() -> None:
    """Splitting and growing the same skbs over and over (writes by 2000 bytes, bursts of 3000 into a window
    that opens segment by segment) must hold only the slabs that unacknowledged bytes lie in."""
    host = FakeHost()
    sk = established(host, mss=1000, srtt_us=20_000)
    sk.snd_cwnd = 7
    held: set[int] = set()
    slabs: dict[int, slab.Slab] = {}
    for _ in range(600):
        sendmsg.sendmsg(sk, bytearray(2000))
        slabs[id(sk.slab)] = sk.slab
        for _ in range(2):
            input.receive(sk, segment(sk, ack=min(sk.snd_una + 1000, sk.snd_nxt) - sk.iss))
            sk.snd_cwnd = 7
        held = {key for key, s in slabs.items() if s.refs}
        for skb in [*sk.rtx_queue, *sk.write_queue]:
            assert len(skb.slabs or ()) <= 2
    backlog = sk.write_seq - sk.snd_una
    assert len(held) <= backlog // slab.SLAB_SIZE + 2

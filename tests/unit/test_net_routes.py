"""Routes, the cached way to a destination, and the choice of a source address."""

from __future__ import annotations

import errno

import pytest

from pytcp.clock.virtual import VirtualRuntime
from pytcp.link.pipe import pipe_pair
from pytcp.net import addr as A
from pytcp.net.stack import Stack
from pytcp.wire.addr import format_ip, parse_ip


def _stack(*addresses: str, second: tuple[str, ...] = ()) -> Stack:
    runtime = VirtualRuntime()
    stack = Stack(runtime, seed=1)
    left, right = pipe_pair(runtime.heap, names=("eth0", "eth1"))
    stack.add_interface(left, addresses)
    if second:
        stack.add_interface(right, second)
    return stack


def _source(stack: Stack, dst: str) -> str:
    return format_ip(stack.dst(parse_ip(dst)).saddr)


def test_the_longest_prefix_wins_and_then_the_lower_metric() -> None:
    stack = _stack("10.0.0.1/24")
    stack.add_route("203.0.113.0/24", via="10.0.0.2")
    stack.add_route("203.0.113.128/25", via="10.0.0.3", metric=50)
    stack.add_route("203.0.113.128/25", via="10.0.0.4", metric=10)
    stack.add_route("default", via="10.0.0.9")
    gateways = [format_ip(stack.dst(parse_ip(dst)).gateway) for dst in ("203.0.113.5", "203.0.113.200", "192.0.2.1")]
    assert gateways == ["10.0.0.2", "10.0.0.4", "10.0.0.9"]


@pytest.mark.parametrize(
    ("kind", "code"),
    [("unreachable", errno.EHOSTUNREACH), ("prohibit", errno.EACCES), ("blackhole", errno.EINVAL), ("throw", errno.ENETUNREACH)],
)
@pytest.mark.parametrize(("prefix", "dst"), [("203.0.113.0/24", "203.0.113.1"), ("2001:db8::/32", "2001:db8::1")])
def test_a_route_may_refuse(kind: str, code: int, prefix: str, dst: str) -> None:
    # linux-host §7
    stack = _stack("10.0.0.1/24", "fd00::1/64")
    stack.add_route(prefix, kind=kind)
    with pytest.raises(OSError) as caught:
        stack.dst(parse_ip(dst))
    assert caught.value.errno == code


def test_no_route_is_enetunreach_and_so_is_a_device_that_is_down_but_not_the_own_address() -> None:
    stack = _stack("10.0.0.1/24")
    for dst in ("192.0.2.1", "2001:db8::1"):
        with pytest.raises(OSError) as caught:
            stack.dst(parse_ip(dst))
        assert caught.value.errno == errno.ENETUNREACH
    stack.dst(parse_ip("10.0.0.2"))
    stack.interface("eth0").set_up(False)
    with pytest.raises(OSError) as caught:
        stack.dst(parse_ip("10.0.0.2"))
    assert caught.value.errno == errno.ENETUNREACH
    assert stack.dst(parse_ip("10.0.0.1")).dev is stack.lo


def test_the_source_is_the_primary_address_of_the_matching_subnet() -> None:
    stack = _stack("10.0.0.1/24", "10.0.0.9/24", "172.16.0.1/16", second=("192.168.1.1/24",))
    stack.add_route("default", via="172.16.0.254")
    assert _source(stack, "10.0.0.77") == "10.0.0.1"
    assert _source(stack, "172.16.5.5") == "172.16.0.1"
    assert _source(stack, "192.168.1.7") == "192.168.1.1"
    assert _source(stack, "198.51.100.1") == "172.16.0.1"
    assert _source(stack, "127.0.0.5") == "127.0.0.1"
    assert _source(stack, "172.16.0.1") == "172.16.0.1"


def test_the_next_address_becomes_primary_when_the_first_goes() -> None:
    stack = _stack("10.0.0.1/24", "10.0.0.9/24")
    stack.remove_address(stack.interface("eth0"), "10.0.0.1/24")
    assert _source(stack, "10.0.0.77") == "10.0.0.9"
    stack.remove_address(stack.interface("eth0"), "10.0.0.9/24")
    with pytest.raises(OSError, match="no route"):
        stack.dst(parse_ip("10.0.0.77"))


def test_an_ipv6_source_has_the_right_scope_and_the_longest_common_prefix() -> None:
    # RFC 6724 §5 rules 2 and 8
    stack = _stack("fd00:1::1/64", "2001:db8:1::1/64")
    stack.add_route("default6", via="2001:db8:1::254")
    assert _source(stack, "fd00:1::77") == "fd00:1::1"
    assert _source(stack, "2001:db8:9::1") == "2001:db8:1::1"
    assert _source(stack, "fe80::77").startswith("fe80::")
    assert _source(stack, "ff02::1").startswith("fe80::")


def test_a_deprecated_address_is_avoided() -> None:
    stack = _stack("fd00:1::1/64", "fd00:1::2/64")
    dev = stack.interface("eth0")
    assert _source(stack, "fd00:1::3") == "fd00:1::2"  # of equals the address added last
    entry = next(entry for entry in dev.addresses6 if entry.addr == parse_ip("fd00:1::2"))
    entry.preferred_until_ns = 0
    stack.routes_changed()
    assert _source(stack, "fd00:1::3") == "fd00:1::1"


def test_a_cached_way_is_shared_and_stale_after_any_change() -> None:
    stack = _stack("10.0.0.1/24")
    dst = stack.dst(parse_ip("10.0.0.2"))
    assert stack.dst(parse_ip("10.0.0.2")) is dst
    stack.add_route("192.0.2.0/24", via="10.0.0.3")
    assert dst.gen != stack.gen
    assert stack.dst(parse_ip("10.0.0.2")) is not dst


def test_the_advertised_mss_follows_the_path_mtu_within_its_limits() -> None:
    stack = _stack("10.0.0.1/24", "fd00::1/64")
    four, six = stack.dst(parse_ip("10.0.0.2")), stack.dst(parse_ip("fd00::2"))
    assert (four.advmss, six.advmss) == (1460, 1440)
    stack.pmtu.update(four, 1000)
    four = stack.dst(parse_ip("10.0.0.2"))
    assert four.advmss == 960
    four.set_mtu(200, True)
    six.set_mtu(1270, False)
    assert (four.advmss, six.advmss) == (256, 1220)  # min_adv_mss
    assert stack.dst(A.LOOPBACK4).advmss == 65495


def test_a_path_mtu_is_never_raised_and_a_locked_route_learns_none() -> None:
    stack = _stack("10.0.0.1/24")
    stack.add_route("192.0.2.0/24", via="10.0.0.2", mtu=1200, mtu_lock=True)
    dst = stack.dst(parse_ip("10.0.0.2"))
    assert [stack.pmtu.update(dst, mtu) for mtu in (1600, 1000, 1400)] == [False, True, False]
    assert stack.dst(parse_ip("10.0.0.2")).mtu == 1000
    locked = stack.dst(parse_ip("192.0.2.1"))
    assert (locked.mtu, locked.mtu_lock, stack.pmtu.update(locked, 600), locked.mtu) == (1200, True, False, 1200)


def test_a_learnt_mtu_survives_a_change_of_routes() -> None:
    stack = _stack("10.0.0.1/24")
    stack.pmtu.update(stack.dst(parse_ip("10.0.0.2")), 1000)
    stack.add_route("192.0.2.0/24", via="10.0.0.3")
    assert stack.dst(parse_ip("10.0.0.2")).mtu == 1000
    stack.pmtu.flush()
    assert stack.dst(parse_ip("10.0.0.2")).mtu == 1500


def test_routes_and_addresses_exist_once() -> None:
    stack = _stack("10.0.0.1/24", "fd00::1/64")
    dev = stack.interface("eth0")
    stack.add_route("default", via="10.0.0.2")
    for again in (
        lambda: stack.add_route("default", via="10.0.0.2"),
        lambda: stack.add_address(dev, "10.0.0.1/24"),
        lambda: stack.add_address(dev, "fd00::1/64"),
        lambda: stack.add_interface(dev.link),
    ):
        with pytest.raises(OSError) as caught:
            again()
        assert caught.value.errno == errno.EEXIST
    with pytest.raises(OSError) as caught:
        stack.remove_route(stack.add_route("192.0.2.0/24", via="10.0.0.2", metric=5))
        stack.remove_route(stack.routes4.routes()[-1])
        stack.remove_route(stack.routes4.routes()[-1].__class__(bytes(4), 0, dev))
    assert caught.value.errno == errno.ESRCH


def test_a_gateway_must_be_on_a_link() -> None:
    stack = _stack("10.0.0.1/24")
    with pytest.raises(OSError, match="not on a link") as caught:
        stack.add_route("default", via="192.0.2.1")
    assert caught.value.errno == errno.ENETUNREACH


@pytest.mark.parametrize(
    ("addr", "scope"), [("fe80::1", 2), ("fec0::1", 5), ("fd00::1", 14), ("::1", 2), ("ff02::1", 2), ("ff01::1", 1), ("ff0e::1", 14), ("2001:db8::1", 14)]
)
def test_scopes_are_those_of_rfc_4007(addr: str, scope: int) -> None:
    assert A.scope6(parse_ip(addr)) == scope

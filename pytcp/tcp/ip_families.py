"""What an IPv6 socket has twice: TOS, TTL, path MTU discovery, error queue, least TTL.

Each has an option of IPv4 and one of IPv6 (`sockopt_ip`). The fields of the Sock are those of the family it speaks (`sk.family`); the
other five are kept in `sk.optmem`, and take their place when it turns to a mapped address (`speak`), or has a child that speaks
IPv4 (`inherit_other`).
"""

from __future__ import annotations

from .sock import Sock

IPPROTO_IP = 0
IPPROTO_IPV6 = 41

IP_TOS = 1
IP_TTL = 2
IP_MTU_DISCOVER = 10
IP_RECVERR = 11
IP_MINTTL = 21

IPV6_UNICAST_HOPS = 16
IPV6_MTU_DISCOVER = 23
IPV6_RECVERR = 25
IPV6_TCLASS = 67
IPV6_MINHOPCOUNT = 73

PMTUDISC_DONT = 0
PMTUDISC_WANT = 1

# what there is of each family: field of the Sock -> key of IPv4 and of IPv6
OF_BOTH: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "tos": ((IPPROTO_IP, IP_TOS), (IPPROTO_IPV6, IPV6_TCLASS)),
    "ttl": ((IPPROTO_IP, IP_TTL), (IPPROTO_IPV6, IPV6_UNICAST_HOPS)),
    "pmtu_disc": ((IPPROTO_IP, IP_MTU_DISCOVER), (IPPROTO_IPV6, IPV6_MTU_DISCOVER)),
    "recverr": ((IPPROTO_IP, IP_RECVERR), (IPPROTO_IPV6, IPV6_RECVERR)),
    "min_ttl": ((IPPROTO_IP, IP_MINTTL), (IPPROTO_IPV6, IPV6_MINHOPCOUNT)),
}


def _first(sk: Sock, name: str, level: int) -> int:
    """What a socket begins with."""
    if name == "ttl":
        return sk.sysctl.ip_default_ttl if level == IPPROTO_IP else sk.sysctl.hop_limit
    if name == "pmtu_disc":
        return PMTUDISC_DONT if level == IPPROTO_IP and sk.sysctl.ip_no_pmtu_disc else PMTUDISC_WANT
    return 0


def _spoken(sk: Sock, level: int) -> bool:
    return (sk.family == 4) == (level == IPPROTO_IP)


def of_family(sk: Sock, name: str, level: int) -> int:
    """One of these values of the family with the options of `level`, whether the socket speaks it or not."""
    if _spoken(sk, level):
        return int(getattr(sk, name))
    key = OF_BOTH[name][level == IPPROTO_IPV6]
    return (sk.optmem or {}).get(key, _first(sk, name, level))


def put(sk: Sock, name: str, level: int, value: int) -> None:
    """Set one of them."""
    if _spoken(sk, level):
        setattr(sk, name, bool(value) if name == "recverr" else value)
    elif value != of_family(sk, name, level):
        if sk.optmem is None:
            sk.optmem = {}
        sk.optmem[OF_BOTH[name][level == IPPROTO_IPV6]] = value


def speak(sk: Sock, family: int) -> None:
    """From now on the socket speaks IPv4 or IPv6, with the values of that family."""
    if family == sk.family:
        return
    values = [(name, level, of_family(sk, name, level)) for name in OF_BOTH for level in (IPPROTO_IP, IPPROTO_IPV6)]
    sk.family = family
    for name, level, value in values:
        put(sk, name, level, value)


def inherit_other(child: Sock, listener: Sock) -> None:
    """Of a child that does not speak its listener's family."""
    for name in OF_BOTH:
        for level in (IPPROTO_IP, IPPROTO_IPV6):
            put(child, name, level, of_family(listener, name, level))

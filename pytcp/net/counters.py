"""All counters of a stack, named as `nstat -a` prints them: Ip, Icmp, Ip6, Icmp6, Udp, Udp6, IpExt.

One attribute per counter (`mib.IpInReceives += 1`); TCP's come from `tcp.mib`. The per-type counters
of ICMP (`IcmpMsgInType8`, `Icmp6InType128`) exist only once counted, as in the kernel's files.
"""

from __future__ import annotations

from pytcp.tcp.mib import TcpMib, nstat_name


class Mib(TcpMib):
    """Counters of one stack, all from zero."""

    # group Ip (RFC 4293)
    IpInReceives: int = 0
    IpInHdrErrors: int = 0
    IpInAddrErrors: int = 0
    IpInUnknownProtos: int = 0
    IpInDiscards: int = 0
    IpInDelivers: int = 0
    IpOutRequests: int = 0
    IpOutTransmits: int = 0
    IpOutDiscards: int = 0
    IpOutNoRoutes: int = 0
    IpReasmTimeout: int = 0
    IpReasmReqds: int = 0
    IpReasmOKs: int = 0
    IpReasmFails: int = 0
    IpFragOKs: int = 0
    IpFragFails: int = 0
    IpFragCreates: int = 0
    # group IpExt
    IpExtInNoRoutes: int = 0
    IpExtInTruncatedPkts: int = 0
    IpExtInMcastPkts: int = 0
    IpExtOutMcastPkts: int = 0
    IpExtInBcastPkts: int = 0
    IpExtOutBcastPkts: int = 0
    IpExtInOctets: int = 0
    IpExtOutOctets: int = 0
    IpExtInMcastOctets: int = 0
    IpExtOutMcastOctets: int = 0
    IpExtInBcastOctets: int = 0
    IpExtOutBcastOctets: int = 0
    IpExtInCsumErrors: int = 0
    IpExtInNoECTPkts: int = 0
    IpExtInECT1Pkts: int = 0
    IpExtInECT0Pkts: int = 0
    IpExtInCEPkts: int = 0
    IpExtReasmOverlaps: int = 0
    # group TcpExt, counted by IP
    IPReversePathFilter: int = 0
    # group Icmp
    IcmpInMsgs: int = 0
    IcmpInErrors: int = 0
    IcmpInCsumErrors: int = 0
    IcmpInDestUnreachs: int = 0
    IcmpInTimeExcds: int = 0
    IcmpInParmProbs: int = 0
    IcmpInSrcQuenchs: int = 0
    IcmpInRedirects: int = 0
    IcmpInEchos: int = 0
    IcmpInEchoReps: int = 0
    IcmpInTimestamps: int = 0
    IcmpInTimestampReps: int = 0
    IcmpInAddrMasks: int = 0
    IcmpInAddrMaskReps: int = 0
    IcmpOutMsgs: int = 0
    IcmpOutErrors: int = 0
    IcmpOutRateLimitGlobal: int = 0
    IcmpOutRateLimitHost: int = 0
    IcmpOutDestUnreachs: int = 0
    IcmpOutTimeExcds: int = 0
    IcmpOutParmProbs: int = 0
    IcmpOutEchos: int = 0
    IcmpOutEchoReps: int = 0
    # group Ip6
    Ip6InReceives: int = 0
    Ip6InHdrErrors: int = 0
    Ip6InTooBigErrors: int = 0
    Ip6InNoRoutes: int = 0
    Ip6InAddrErrors: int = 0
    Ip6InUnknownProtos: int = 0
    Ip6InTruncatedPkts: int = 0
    Ip6InDiscards: int = 0
    Ip6InDelivers: int = 0
    Ip6OutRequests: int = 0
    Ip6OutTransmits: int = 0
    Ip6OutDiscards: int = 0
    Ip6OutNoRoutes: int = 0
    Ip6ReasmTimeout: int = 0
    Ip6ReasmReqds: int = 0
    Ip6ReasmOKs: int = 0
    Ip6ReasmFails: int = 0
    Ip6FragOKs: int = 0
    Ip6FragFails: int = 0
    Ip6FragCreates: int = 0
    Ip6InMcastPkts: int = 0
    Ip6OutMcastPkts: int = 0
    Ip6InOctets: int = 0
    Ip6OutOctets: int = 0
    Ip6InMcastOctets: int = 0
    Ip6OutMcastOctets: int = 0
    Ip6InNoECTPkts: int = 0
    Ip6InECT1Pkts: int = 0
    Ip6InECT0Pkts: int = 0
    Ip6InCEPkts: int = 0
    # group Icmp6
    Icmp6InMsgs: int = 0
    Icmp6InErrors: int = 0
    Icmp6InCsumErrors: int = 0
    Icmp6OutMsgs: int = 0
    Icmp6OutErrors: int = 0
    Icmp6OutRateLimitHost: int = 0
    Icmp6InDestUnreachs: int = 0
    Icmp6InPktTooBigs: int = 0
    Icmp6InTimeExcds: int = 0
    Icmp6InParmProblems: int = 0
    Icmp6InEchos: int = 0
    Icmp6InEchoReplies: int = 0
    Icmp6InRouterSolicits: int = 0
    Icmp6InRouterAdvertisements: int = 0
    Icmp6InNeighborSolicits: int = 0
    Icmp6InNeighborAdvertisements: int = 0
    Icmp6InRedirects: int = 0
    Icmp6InGroupMembQueries: int = 0
    Icmp6InGroupMembResponses: int = 0
    Icmp6InGroupMembReductions: int = 0
    Icmp6InMLDv2Reports: int = 0
    Icmp6OutDestUnreachs: int = 0
    Icmp6OutPktTooBigs: int = 0
    Icmp6OutTimeExcds: int = 0
    Icmp6OutParmProblems: int = 0
    Icmp6OutEchos: int = 0
    Icmp6OutEchoReplies: int = 0
    Icmp6OutRouterSolicits: int = 0
    Icmp6OutNeighborSolicits: int = 0
    Icmp6OutNeighborAdvertisements: int = 0
    # groups Udp and Udp6
    UdpInDatagrams: int = 0
    UdpNoPorts: int = 0
    UdpInErrors: int = 0
    UdpOutDatagrams: int = 0
    UdpRcvbufErrors: int = 0
    UdpSndbufErrors: int = 0
    UdpInCsumErrors: int = 0
    UdpIgnoredMulti: int = 0
    Udp6InDatagrams: int = 0
    Udp6NoPorts: int = 0
    Udp6InErrors: int = 0
    Udp6OutDatagrams: int = 0
    Udp6RcvbufErrors: int = 0
    Udp6SndbufErrors: int = 0
    Udp6InCsumErrors: int = 0
    Udp6IgnoredMulti: int = 0

    def count(self, name: str) -> None:
        """Add one to a counter whose name is made up at run time (ICMP types)."""
        setattr(self, name, getattr(self, name, 0) + 1)

    def snapshot(self, *, zeros: bool = False) -> dict[str, int]:
        """Values by nstat's names; those that are zero only on request."""
        values = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        if zeros:
            for cls in type(self).__mro__:
                for name, value in vars(cls).items():
                    if isinstance(value, int) and not name.startswith("_"):
                        values.setdefault(name, value)
        return {nstat_name(name): value for name, value in sorted(values.items()) if value or zeros}

    def count_ect(self, tos: int, segs: int) -> None:
        """Count IPv4 packets by their ECN codepoint."""
        ecn = tos & 3
        if ecn == 0:
            self.IpExtInNoECTPkts += segs
        elif ecn == 1:
            self.IpExtInECT1Pkts += segs
        elif ecn == 2:
            self.IpExtInECT0Pkts += segs
        else:
            self.IpExtInCEPkts += segs

    def count_ect6(self, tos: int, segs: int) -> None:
        """The same for IPv6."""
        ecn = tos & 3
        if ecn == 0:
            self.Ip6InNoECTPkts += segs
        elif ecn == 1:
            self.Ip6InECT1Pkts += segs
        elif ecn == 2:
            self.Ip6InECT0Pkts += segs
        else:
            self.Ip6InCEPkts += segs

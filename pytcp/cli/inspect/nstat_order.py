"""The order in which the kernel's files, and so `nstat`, list the counters (Linux 6.18)."""

from __future__ import annotations

import re

_GROUPS = {
    "Ip": """
        InReceives InHdrErrors InAddrErrors ForwDatagrams InUnknownProtos InDiscards InDelivers OutRequests OutDiscards OutNoRoutes ReasmTimeout
        ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates OutTransmits
    """,
    "Icmp": """
        InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs InSrcQuenchs InRedirects InEchos InEchoReps InTimestamps InTimestampReps
        InAddrMasks InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost OutDestUnreachs OutTimeExcds OutParmProbs OutSrcQuenchs
        OutRedirects OutEchos OutEchoReps OutTimestamps OutTimestampReps OutAddrMasks OutAddrMaskReps
    """,
    "Tcp": """
        ActiveOpens PassiveOpens AttemptFails EstabResets InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors
    """,
    "Udp": """
        InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
    """,
    "Ip6": """
        InReceives InHdrErrors InTooBigErrors InNoRoutes InAddrErrors InUnknownProtos InTruncatedPkts InDiscards InDelivers OutForwDatagrams
        OutRequests OutDiscards OutNoRoutes ReasmTimeout ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates InMcastPkts OutMcastPkts
        InOctets OutOctets InMcastOctets OutMcastOctets InBcastOctets OutBcastOctets InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts OutTransmits
    """,
    "Icmp6": """
        InMsgs InErrors OutMsgs OutErrors InCsumErrors OutRateLimitHost InDestUnreachs InPktTooBigs InTimeExcds InParmProblems InEchos InEchoReplies
        InGroupMembQueries InGroupMembResponses InGroupMembReductions InRouterSolicits InRouterAdvertisements InNeighborSolicits
        InNeighborAdvertisements InRedirects InMLDv2Reports OutDestUnreachs OutPktTooBigs OutTimeExcds OutParmProblems OutEchos OutEchoReplies
        OutGroupMembQueries OutGroupMembResponses OutGroupMembReductions OutRouterSolicits OutRouterAdvertisements OutNeighborSolicits
        OutNeighborAdvertisements OutRedirects OutMLDv2Reports
    """,
    "Udp6": """
        InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
    """,
    "TcpExt": """
        SyncookiesSent SyncookiesRecv SyncookiesFailed EmbryonicRsts PruneCalled RcvPruned OfoPruned OutOfWindowIcmps LockDroppedIcmps ArpFilter TW
        TWRecycled TWKilled PAWSActive PAWSEstab BeyondWindow TSEcrRejected PAWSOldAck PAWSTimewait DelayedACKs DelayedACKLocked DelayedACKLost
        ListenOverflows ListenDrops TCPHPHits TCPPureAcks TCPHPAcks TCPRenoRecovery TCPSackRecovery TCPSACKReneging TCPSACKReorder TCPRenoReorder
        TCPTSReorder TCPFullUndo TCPPartialUndo TCPDSACKUndo TCPLossUndo TCPLostRetransmit TCPRenoFailures TCPSackFailures TCPLossFailures
        TCPFastRetrans TCPSlowStartRetrans TCPTimeouts TCPLossProbes TCPLossProbeRecovery TCPRenoRecoveryFail TCPSackRecoveryFail TCPRcvCollapsed
        TCPBacklogCoalesce TCPDSACKOldSent TCPDSACKOfoSent TCPDSACKRecv TCPDSACKOfoRecv TCPAbortOnData TCPAbortOnClose TCPAbortOnMemory
        TCPAbortOnTimeout TCPAbortOnLinger TCPAbortFailed TCPMemoryPressures TCPMemoryPressuresChrono TCPSACKDiscard TCPDSACKIgnoredOld
        TCPDSACKIgnoredNoUndo TCPSpuriousRTOs TCPMD5NotFound TCPMD5Unexpected TCPMD5Failure TCPSackShifted TCPSackMerged TCPSackShiftFallback
        TCPBacklogDrop PFMemallocDrop TCPMinTTLDrop TCPDeferAcceptDrop IPReversePathFilter TCPTimeWaitOverflow TCPReqQFullDoCookies TCPReqQFullDrop
        TCPRetransFail TCPRcvCoalesce TCPOFOQueue TCPOFODrop TCPOFOMerge TCPChallengeACK TCPSYNChallenge TCPFastOpenActive TCPFastOpenActiveFail
        TCPFastOpenPassive TCPFastOpenPassiveFail TCPFastOpenListenOverflow TCPFastOpenCookieReqd TCPFastOpenBlackhole TCPSpuriousRtxHostQueues
        BusyPollRxPackets TCPAutoCorking TCPFromZeroWindowAdv TCPToZeroWindowAdv TCPWantZeroWindowAdv TCPSynRetrans TCPOrigDataSent
        TCPHystartTrainDetect TCPHystartTrainCwnd TCPHystartDelayDetect TCPHystartDelayCwnd TCPACKSkippedSynRecv TCPACKSkippedPAWS TCPACKSkippedSeq
        TCPACKSkippedFinWait2 TCPACKSkippedTimeWait TCPACKSkippedChallenge TCPWinProbe TCPKeepAlive TCPMTUPFail TCPMTUPSuccess TCPDelivered
        TCPDeliveredCE TCPAckCompressed TCPZeroWindowDrop TCPRcvQDrop TCPWqueueTooBig TCPFastOpenPassiveAltKey TcpTimeoutRehash TcpDuplicateDataRehash
        TCPDSACKRecvSegs TCPDSACKIgnoredDubious TCPMigrateReqSuccess TCPMigrateReqFailure TCPPLBRehash TCPAORequired TCPAOBad TCPAOKeyNotFound
        TCPAOGood TCPAODroppedIcmps
    """,
    "IpExt": """
        InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts OutBcastPkts InOctets OutOctets InMcastOctets OutMcastOctets InBcastOctets
        OutBcastOctets InCsumErrors InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts ReasmOverlaps
    """,
}
_RANK = {name: number for number, name in enumerate(group + word for group, words in _GROUPS.items() for word in words.split())}
_BY_TYPE = re.compile(r"(?P<group>Icmp6|Icmp)(?:Msg)?(?P<way>In|Out)Type(?P<type>\d+)")
_LAST = {"Icmp": _RANK["IcmpOutAddrMaskReps"], "Icmp6": _RANK["Icmp6OutMLDv2Reports"]}


def rank(name: str) -> tuple[int, str, int]:
    """Where a counter stands; those of single ICMP types behind their group, strangers at the end."""
    known = _RANK.get(name)
    if known is not None:
        return known, "", 0
    by_type = _BY_TYPE.fullmatch(name)
    if by_type is not None:
        return _LAST[by_type["group"]], by_type["way"], int(by_type["type"])
    return len(_RANK), name, 0

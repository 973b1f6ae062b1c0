"""TCP's counters, named as `nstat` prints them (group Tcp: with prefix; group TcpExt: without).

One attribute per counter on one object per stack, so that counting is `mib.DelayedACKs += 1` and
nothing else. `pytcp.net.counters.Mib` adds the groups Ip, Icmp, Ip6, Icmp6, Udp, IpExt.
"""

from __future__ import annotations


class Sockstat:
    """What the rooms of one stack share beside counters: /proc/net/sockstat's gauges, the challenge budget."""

    __slots__ = ("challenge_left", "challenge_second", "orphan", "tw")

    def __init__(self) -> None:
        self.tw = 0  # TIME-WAIT blocks alive
        self.orphan = 0  # connections the program has closed that are not over
        self.challenge_second = -1
        self.challenge_left = 0


class TcpMib:
    def __init__(self) -> None:
        self.sockstat = Sockstat()

    # group Tcp (RFC 4022)
    TcpActiveOpens: int = 0
    TcpPassiveOpens: int = 0
    TcpAttemptFails: int = 0
    TcpEstabResets: int = 0
    TcpCurrEstab: int = 0
    TcpInSegs: int = 0
    TcpOutSegs: int = 0
    TcpRetransSegs: int = 0
    TcpInErrs: int = 0
    TcpOutRsts: int = 0
    TcpInCsumErrors: int = 0

    # group TcpExt: opening
    SyncookiesSent: int = 0
    SyncookiesRecv: int = 0
    SyncookiesFailed: int = 0
    ListenOverflows: int = 0
    ListenDrops: int = 0
    EmbryonicRsts: int = 0
    TCPReqQFullDoCookies: int = 0
    TCPReqQFullDrop: int = 0
    TCPDeferAcceptDrop: int = 0
    TCPSynRetrans: int = 0
    TcpTimeoutRehash: int = 0
    TcpDuplicateDataRehash: int = 0
    # PAWS, challenges
    PAWSActive: int = 0
    TSEcrRejected: int = 0
    PAWSEstab: int = 0
    PAWSOldAck: int = 0
    PAWSTimewait: int = 0
    TCPChallengeACK: int = 0
    TCPSYNChallenge: int = 0
    TCPACKSkippedSynRecv: int = 0
    TCPACKSkippedPAWS: int = 0
    TCPACKSkippedSeq: int = 0
    TCPACKSkippedFinWait2: int = 0
    TCPACKSkippedTimeWait: int = 0
    TCPACKSkippedChallenge: int = 0
    # receiving
    DelayedACKs: int = 0
    DelayedACKLocked: int = 0
    DelayedACKLost: int = 0
    TCPHPHits: int = 0
    TCPRcvCoalesce: int = 0
    TCPRcvCollapsed: int = 0
    TCPOFOQueue: int = 0
    TCPOFODrop: int = 0
    TCPOFOMerge: int = 0
    PruneCalled: int = 0
    RcvPruned: int = 0
    OfoPruned: int = 0
    TCPRcvQDrop: int = 0
    TCPZeroWindowDrop: int = 0
    BeyondWindow: int = 0
    TCPFromZeroWindowAdv: int = 0
    TCPToZeroWindowAdv: int = 0
    TCPWantZeroWindowAdv: int = 0
    TCPDSACKOldSent: int = 0
    TCPDSACKOfoSent: int = 0
    TCPAckCompressed: int = 0
    TCPBacklogCoalesce: int = 0
    # ACKs at the sender
    TCPPureAcks: int = 0
    TCPHPAcks: int = 0
    TCPDelivered: int = 0
    TCPDeliveredCE: int = 0
    TCPDSACKRecv: int = 0
    TCPDSACKOfoRecv: int = 0
    TCPDSACKIgnoredOld: int = 0
    TCPDSACKIgnoredNoUndo: int = 0
    TCPDSACKIgnoredDubious: int = 0
    TCPDSACKRecvSegs: int = 0
    TCPSACKDiscard: int = 0
    TCPSackShifted: int = 0
    TCPSackMerged: int = 0
    TCPSackShiftFallback: int = 0
    TCPSACKReneging: int = 0
    TCPSACKReorder: int = 0
    TCPRenoReorder: int = 0
    TCPTSReorder: int = 0
    # loss and recovery
    TCPTimeouts: int = 0
    TCPRenoRecovery: int = 0
    TCPSackRecovery: int = 0
    TCPRenoFailures: int = 0
    TCPSackFailures: int = 0
    TCPLossFailures: int = 0
    TCPRenoRecoveryFail: int = 0
    TCPSackRecoveryFail: int = 0
    TCPFastRetrans: int = 0
    TCPSlowStartRetrans: int = 0
    TCPLostRetransmit: int = 0
    TCPLossProbes: int = 0
    TCPLossProbeRecovery: int = 0
    TCPSpuriousRTOs: int = 0
    TCPSpuriousRtxHostQueues: int = 0
    TCPRetransFail: int = 0
    TCPFullUndo: int = 0
    TCPPartialUndo: int = 0
    TCPDSACKUndo: int = 0
    TCPLossUndo: int = 0
    # sending
    TCPAutoCorking: int = 0
    TCPOrigDataSent: int = 0
    TCPWqueueTooBig: int = 0
    TCPWinProbe: int = 0
    TCPKeepAlive: int = 0
    TCPMTUPFail: int = 0
    TCPMTUPSuccess: int = 0
    TCPHystartTrainDetect: int = 0
    TCPHystartTrainCwnd: int = 0
    TCPHystartDelayDetect: int = 0
    TCPHystartDelayCwnd: int = 0
    # closing
    TW: int = 0
    TWRecycled: int = 0
    TWKilled: int = 0
    TCPTimeWaitOverflow: int = 0
    TCPAbortOnData: int = 0
    TCPAbortOnClose: int = 0
    TCPAbortOnMemory: int = 0
    TCPAbortOnTimeout: int = 0
    TCPAbortOnLinger: int = 0
    TCPAbortFailed: int = 0
    OutOfWindowIcmps: int = 0
    LockDroppedIcmps: int = 0
    TCPMinTTLDrop: int = 0
    TCPMD5NotFound: int = 0
    TCPMD5Unexpected: int = 0
    TCPMD5Failure: int = 0
    TCPAOBad: int = 0
    TCPMemoryPressures: int = 0
    # Fast Open
    TCPFastOpenActive: int = 0
    TCPFastOpenActiveFail: int = 0
    TCPFastOpenPassive: int = 0
    TCPFastOpenPassiveFail: int = 0
    TCPFastOpenListenOverflow: int = 0
    TCPFastOpenCookieReqd: int = 0
    TCPFastOpenBlackhole: int = 0
    TCPFastOpenPassiveAltKey: int = 0


def nstat_name(attribute: str) -> str:
    """The name `nstat` prints for a counter attribute: TcpExt is left out of attribute names only."""
    for prefix in ("TcpExt", "Tcp", "IpExt", "Ip6", "Ip", "Icmp6", "Icmp", "Udp6", "Udp"):
        if attribute.startswith(prefix) and attribute not in ("TcpTimeoutRehash", "TcpDuplicateDataRehash"):
            return attribute
    return "TcpExt" + attribute

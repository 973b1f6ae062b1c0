"""Tail loss probe (RFC 8985 §7; Linux 3.10): when the end of a flight stays unacknowledged for two
round trips, send one more segment so that its ACK (or SACK) tells what was lost, instead of waiting
for the RTO. Sysctl: tcp_early_retrans (3, 4 = on). Counters: TCPLossProbes, TCPLossProbeRecovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import mtu, prr, retransmit, timers, xmit
from .const import CA_CWR, NAGLE_OFF, PENDING_LOSS_PROBE, PENDING_NONE
from .flags import FLAG_DATA_SACKED, FLAG_DSACK_TLP, FLAG_NOT_DUP, FLAG_SND_UNA_ADVANCED
from .rate import AckSample

if TYPE_CHECKING:
    from .sock import Sock


def schedule(sk: Sock, advancing_rto: bool) -> bool:
    """Arm the probe timer instead of the RTO if a probe makes sense; returns whether it did."""
    if sk.ca_state and sk.ca_state != CA_CWR:  # (CA_OPEN is 0)
        return False
    if sk.fastopen is not None and sk.fastopen.request is not None:
        # no probes before the handshake's last ACK
        return False
    packets = sk.packets_out
    if not packets or not sk.sack_ok or sk.sysctl.tcp_early_retrans not in (3, 4):
        return False
    srtt = sk.srtt_us
    if srtt:
        # two round trips; one segment alone may be waiting for the peer's delayed ACK
        timeout_ns = ((srtt >> 2) + (sk.rto_min_us if packets == 1 else 2000)) * 1000
    else:
        timeout_ns = 1_000_000_000
    rto_ns = sk.rto_ns
    if not advancing_rto:
        # what is left of it for the oldest unacknowledged segment
        head = sk.rtx_queue.head
        if head is not None:
            rto_ns += head.tx_ns - sk.host.now_ns
    if rto_ns < timeout_ns and rto_ns >= 1000:
        timeout_ns = rto_ns // 1000 * 1000
    # the wheel rounds to ticks, so there is no need to do it here
    timers.arm_rtx(sk, PENDING_LOSS_PROBE, timeout_ns)
    return True


def send_loss_probe(sk: Sock) -> None:
    """The probe timer fired: new data if the window takes it, else the last segment again."""
    # one probe at a time
    if sk.tlp_high_seq:
        timers.rearm_rto(sk)
        return
    sk.tlp_retrans = False
    skb = sk.write_queue.head
    mss = mtu.current_mss(sk)
    if skb is not None and (skb.seq + mss if skb.length > mss else skb.end_seq) <= sk.snd_una + sk.snd_wnd:
        before = sk.packets_out
        xmit.write_xmit(sk, mss, NAGLE_OFF, 2)
        if sk.packets_out <= before:
            timers.rearm_rto(sk)
            return
    else:
        skb = sk.rtx_queue.tail
        if skb is None or retransmit.host_queue_guard(sk, skb):
            timers.rearm_rto(sk)
            return
        whole = (skb.pcount - 1) * mss
        if 0 < whole < skb.length:
            # (never refused: it is the tail)
            skb = retransmit.fragment(sk, skb, whole, mss) or skb
        if retransmit.resend(sk, skb, 1, cause="tlp"):
            timers.rearm_rto(sk)
            return
        sk.tlp_retrans = True
    sk.tlp_high_seq = sk.snd_nxt
    sk.mib.TCPLossProbes += 1
    if sk.trace is not None:
        sk.trace.event(sk, "tlp", new=int(not sk.tlp_retrans), inflight=sk.packets_out)
    # the RTO follows the probe
    sk.pending = PENDING_NONE
    timers.rearm_rto(sk)


def process_ack(sk: Sock, ack: int, flag: int, rs: AckSample) -> None:
    """An ACK arrived while a probe is outstanding: was the original lost or only the probe needless?"""
    if ack < sk.tlp_high_seq:
        return
    if not sk.tlp_retrans:
        # the probe was new data: nothing to decide
        sk.tlp_high_seq = 0
    elif flag & FLAG_DSACK_TLP:
        # the original and the probe both arrived
        sk.tlp_high_seq = 0
    elif ack > sk.tlp_high_seq:
        # acknowledged beyond the probe, without a DSACK: the probe repaired a loss
        prr.init_cwnd_reduction(sk)
        retransmit.set_ca_state(sk, CA_CWR)
        prr.end_cwnd_reduction(sk)
        retransmit.try_keep_open(sk)
        sk.mib.TCPLossProbeRecovery += 1
    elif not flag & (FLAG_SND_UNA_ADVANCED | FLAG_NOT_DUP | FLAG_DATA_SACKED):
        # a pure duplicate ACK of the probe: the original arrived
        sk.tlp_high_seq = 0

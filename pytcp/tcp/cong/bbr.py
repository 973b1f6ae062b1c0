"""BBR version 1 (Linux 4.9): pace at the bottleneck's measured bandwidth, keep about two BDPs in flight.

A model instead of loss: bandwidth is the maximum of delivery-rate samples over ten round trips, the
path's delay the minimum RTT over ten seconds. STARTUP doubles until bandwidth stops growing, DRAIN
empties the queue that made, PROBE_BW cycles its pacing gain around 1, PROBE_RTT drops to four packets
now and then to see the delay again. A token-bucket policer is recognised by two lossy intervals of
equal rate. Fixed point as in the kernel: bandwidth in packets/us times 2^24, gains times 256
(linux-tcp §6.4; Cardwell et al., ACM Queue 2016). It sets pacing status NEEDED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import pacing
from ..const import CA_EVENT_TX_START, CA_LOSS, CA_OPEN, CA_RECOVERY, INFINITE_SSTHRESH
from ..cwnd import TCP_INIT_CWND
from ..rtt import UNKNOWN, WindowedMin
from .base import CongestionControl

if TYPE_CHECKING:
    from ..rate import AckSample
    from ..sock import Sock

BW_SCALE = 24
BW_UNIT = 1 << BW_SCALE
UNIT = 256

STARTUP = 0
DRAIN = 1
PROBE_BW = 2
PROBE_RTT = 3

HIGH_GAIN = UNIT * 2885 // 1000 + 1  # 2/ln 2: doubles each round trip
DRAIN_GAIN = UNIT * 1000 // 2885
CWND_GAIN = UNIT * 2
CYCLE = (UNIT * 5 // 4, UNIT * 3 // 4, UNIT, UNIT, UNIT, UNIT, UNIT, UNIT)
CYCLE_RAND = 7

BW_ROUNDS = 10
MIN_RTT_WINDOW_NS = 10_000_000_000
PROBE_RTT_NS = 200_000_000
CWND_MIN = 4
FULL_BW_THRESH = UNIT * 5 // 4
FULL_BW_ROUNDS = 3
PACING_MARGIN_PERCENT = 1
MIN_TSO_RATE = 1_200_000  # bit/s: below, one segment per burst

LT_INTERVAL_MIN_ROUNDS = 4
LT_INTERVAL_MAX_ROUNDS = 16
LT_LOSS_THRESH = 50  # of 256
LT_BW_RATIO = UNIT // 8
LT_BW_DIFF = 4000 // 8  # bytes/s
LT_USE_ROUNDS = 48

EXTRA_ACKED_GAIN = UNIT
EXTRA_ACKED_ROUNDS = 5
ACK_EPOCH_LIMIT = 1 << 20
EXTRA_ACKED_MAX_US = 100_000


class Bbr(CongestionControl):
    """State of one connection."""

    __slots__ = (
        "mode", "bw", "min_rtt_us", "min_rtt_stamp", "probe_rtt_done_stamp", "probe_rtt_round_done", "rtt_cnt", "next_rtt_delivered",
        "cycle_mstamp", "cycle_idx", "prev_ca_state", "packet_conservation", "round_start", "idle_restart", "pacing_gain", "cwnd_gain",
        "full_bw", "full_bw_cnt", "full_bw_reached", "has_seen_rtt", "prior_cwnd", "lt_is_sampling", "lt_rtt_cnt", "lt_use_bw", "lt_bw",
        "lt_last_stamp_ms", "lt_last_lost", "lt_last_delivered", "ack_epoch_mstamp", "extra_acked", "ack_epoch_acked", "extra_acked_win_rtts",
        "extra_acked_win_idx", "started",
    )  # fmt: skip

    name = "bbr"
    has_cong_control = True
    has_min_tso_segs = True
    sndbuf_factor = 3

    def __init__(self) -> None:
        self.started = False  # the SYN's ACK comes before the connection is established

    def init(self, sk: Sock) -> None:
        self.started = True
        now_us = sk.host.now_ns // 1000
        self.prior_cwnd = 0
        sk.snd_ssthresh = INFINITE_SSTHRESH
        self.rtt_cnt = 0
        self.next_rtt_delivered = sk.delivered
        self.prev_ca_state = CA_OPEN
        self.packet_conservation = False
        self.probe_rtt_done_stamp = 0
        self.probe_rtt_round_done = False
        self.min_rtt_us = sk.min_rtt_us
        self.min_rtt_stamp = sk.host.now_ns
        self.bw = WindowedMin(0, 0)  # of the negated bandwidth: a windowed maximum
        self.has_seen_rtt = False
        self._init_pacing_rate(sk)
        self.round_start = False
        self.idle_restart = False
        self.full_bw_reached = False
        self.full_bw = 0
        self.full_bw_cnt = 0
        self.cycle_mstamp = 0
        self.cycle_idx = 0
        self.lt_use_bw = False
        self._reset_lt_bw(sk)
        self.mode = STARTUP
        self.pacing_gain = HIGH_GAIN
        self.cwnd_gain = HIGH_GAIN
        self.ack_epoch_mstamp = now_us
        self.ack_epoch_acked = 0
        self.extra_acked_win_rtts = 0
        self.extra_acked_win_idx = 0
        self.extra_acked = [0, 0]
        if sk.pacing_status == pacing.STATUS_NONE:
            sk.pacing_status = pacing.STATUS_NEEDED

    # ------------------------------------------------------------ rates and windows

    def max_bw(self) -> int:
        return -self.bw.get()

    def bandwidth(self) -> int:
        """The bandwidth the model believes in, packets/us times 2^24."""
        return self.lt_bw if self.lt_use_bw else self.max_bw()

    def rate(self, sk: Sock, bw: int, gain: int, margin_percent: int = 0) -> int:
        """`bw` times `gain` in bytes/s."""
        return (bw * sk.mss_cache * gain >> 8) * (1_000_000 // 100 * (100 - margin_percent)) >> BW_SCALE

    def pacing_rate(self, sk: Sock, bw: int, gain: int) -> int:
        return min(self.rate(sk, bw, gain, PACING_MARGIN_PERCENT), sk.max_pacing_rate)

    def _init_pacing_rate(self, sk: Sock) -> None:
        """Before any sample: cwnd per handshake RTT (or per ms) at the startup gain."""
        if sk.srtt_us:
            rtt_us = max(sk.srtt_us >> 3, 1)
            self.has_seen_rtt = True
        else:
            rtt_us = 1000
        sk.pacing_rate = self.pacing_rate(sk, sk.snd_cwnd * BW_UNIT // rtt_us, HIGH_GAIN)

    def _set_pacing_rate(self, sk: Sock, bw: int, gain: int) -> None:
        rate = self.pacing_rate(sk, bw, gain)
        if not self.has_seen_rtt and sk.srtt_us:
            self._init_pacing_rate(sk)
        if self.full_bw_reached or rate > sk.pacing_rate:
            sk.pacing_rate = rate

    def min_tso_segs(self, sk: Sock) -> int:
        return 1 if sk.pacing_rate < MIN_TSO_RATE >> 3 else 2

    def tso_segs_goal(self, sk: Sock) -> int:
        size = min(sk.pacing_rate >> sk.pacing_shift, 65535 - sk.sysctl.max_tcp_header)
        return min(max(size // sk.mss_cache, self.min_tso_segs(sk)), 0x7F)

    def _bdp(self, bw: int, gain: int) -> int:
        """Packets that fill the path at `bw` times `gain`."""
        if self.min_rtt_us == UNKNOWN:
            return TCP_INIT_CWND
        return ((bw * self.min_rtt_us * gain >> 8) + BW_UNIT - 1) // BW_UNIT

    def _quantization_budget(self, sk: Sock, cwnd: int) -> int:
        """Room for bursts at both ends, an even window, and in the probing phase a bit more."""
        cwnd = (cwnd + 3 * self.tso_segs_goal(sk) + 1) & ~1
        if self.mode == PROBE_BW and self.cycle_idx == 0:
            cwnd += 2
        return cwnd

    def inflight(self, sk: Sock, bw: int, gain: int) -> int:
        return self._quantization_budget(sk, self._bdp(bw, gain))

    def _in_net_at_edt(self, sk: Sock, inflight_now: int) -> int:
        """Packets in the network when the next one departs."""
        now = sk.host.now_ns
        interval_us = (max(sk.wstamp_ns, now) - now) // 1000
        delivered = self.bandwidth() * interval_us >> BW_SCALE
        if self.pacing_gain > UNIT:
            inflight_now += self.tso_segs_goal(sk)
        return max(inflight_now - delivered, 0)

    # ------------------------------------------------------------ hooks

    def ssthresh(self, sk: Sock) -> int:
        if self.started:
            self._save_cwnd(sk)
        return sk.snd_ssthresh

    def undo_cwnd(self, sk: Sock) -> int:
        self.full_bw = 0
        self.full_bw_cnt = 0
        self._reset_lt_bw(sk)
        return sk.snd_cwnd

    def cwnd_event(self, sk: Sock, event: int) -> None:
        if event == CA_EVENT_TX_START and sk.app_limited and self.started:
            self.idle_restart = True
            self.ack_epoch_mstamp = sk.host.now_ns // 1000
            self.ack_epoch_acked = 0
            if self.mode == PROBE_BW:
                self._set_pacing_rate(sk, self.bandwidth(), UNIT)
            elif self.mode == PROBE_RTT:
                self._check_probe_rtt_done(sk)

    def set_state(self, sk: Sock, state: int) -> None:
        if state == CA_LOSS and self.started:
            self.prev_ca_state = CA_LOSS
            self.full_bw = 0
            # an RTO ends a round trip
            self.round_start = True
            self._lt_bw_sampling(sk, 1, False)

    def cong_control(self, sk: Sock, ack: int, flag: int, rs: AckSample) -> None:
        if not self.started:
            return
        self._update_bw(sk, rs)
        self._update_ack_aggregation(sk, rs)
        self._update_cycle_phase(sk, rs)
        self._check_full_bw(rs)
        self._check_drain(sk)
        self._update_min_rtt(sk, rs)
        self._update_gains()
        bw = self.bandwidth()
        self._set_pacing_rate(sk, bw, self.pacing_gain)
        self._set_cwnd(sk, rs, bw)

    def info(self, sk: Sock) -> dict[str, int]:
        """bw in bytes/s, min_rtt in us, gains times 256 (struct tcp_bbr_info)."""
        return {
            "bw": self.rate(sk, self.bandwidth(), UNIT),
            "min_rtt": self.min_rtt_us,
            "pacing_gain": self.pacing_gain,
            "cwnd_gain": self.cwnd_gain,
        }

    # ------------------------------------------------------------ the model

    def _update_bw(self, sk: Sock, rs: AckSample) -> None:
        self.round_start = False
        if rs.delivered < 0 or rs.interval_us <= 0:
            return
        if rs.prior_delivered >= self.next_rtt_delivered:
            self.next_rtt_delivered = sk.delivered
            self.rtt_cnt += 1
            self.round_start = True
            self.packet_conservation = False
        self._lt_bw_sampling(sk, rs.losses, rs.is_app_limited)
        bw = rs.delivered * BW_UNIT // rs.interval_us
        # an application-limited sample says only that the path can do at least that much
        if not rs.is_app_limited or bw >= self.max_bw():
            self.bw.update(BW_ROUNDS, self.rtt_cnt, -bw)

    def _update_ack_aggregation(self, sk: Sock, rs: AckSample) -> None:
        """How far ACKs run ahead of the estimated rate: extra window for paths that deliver in lumps."""
        if rs.acked_sacked <= 0 or rs.delivered < 0 or rs.interval_us <= 0:
            return
        if self.round_start:
            self.extra_acked_win_rtts = min(0x1F, self.extra_acked_win_rtts + 1)
            if self.extra_acked_win_rtts >= EXTRA_ACKED_ROUNDS:
                self.extra_acked_win_rtts = 0
                self.extra_acked_win_idx ^= 1
                self.extra_acked[self.extra_acked_win_idx] = 0
        epoch_us = sk.delivered_us - self.ack_epoch_mstamp
        expected = self.bandwidth() * epoch_us // BW_UNIT
        if self.ack_epoch_acked <= expected or self.ack_epoch_acked + rs.acked_sacked >= ACK_EPOCH_LIMIT:
            self.ack_epoch_acked = 0
            self.ack_epoch_mstamp = sk.delivered_us
            expected = 0
        self.ack_epoch_acked = min(0xFFFFF, self.ack_epoch_acked + rs.acked_sacked)
        extra = min(self.ack_epoch_acked - expected, sk.snd_cwnd)
        if extra > self.extra_acked[self.extra_acked_win_idx]:
            self.extra_acked[self.extra_acked_win_idx] = extra

    def _ack_aggregation_cwnd(self) -> int:
        if not self.full_bw_reached:
            return 0
        most = self.bandwidth() * EXTRA_ACKED_MAX_US // BW_UNIT
        return min(EXTRA_ACKED_GAIN * max(self.extra_acked) >> 8, most)

    def _update_cycle_phase(self, sk: Sock, rs: AckSample) -> None:
        if self.mode == PROBE_BW and self._phase_over(sk, rs):
            self._advance_cycle(sk)

    def _phase_over(self, sk: Sock, rs: AckSample) -> bool:
        full_length = sk.delivered_us - self.cycle_mstamp > self.min_rtt_us
        if self.pacing_gain == UNIT:
            return full_length
        inflight = self._in_net_at_edt(sk, rs.prior_in_flight)
        bw = self.max_bw()
        if self.pacing_gain > UNIT:
            # probing lasts until the queue it wants is there, or losses say stop
            return full_length and (rs.losses > 0 or inflight >= self.inflight(sk, bw, self.pacing_gain))
        return full_length or inflight <= self.inflight(sk, bw, UNIT)

    def _advance_cycle(self, sk: Sock) -> None:
        self.cycle_idx = (self.cycle_idx + 1) % len(CYCLE)
        self.cycle_mstamp = sk.delivered_us

    def _enter_probe_bw(self, sk: Sock) -> None:
        self.mode = PROBE_BW
        # any phase but the draining one may be the first
        self.cycle_idx = len(CYCLE) - 1 - (sk.host.random32() * CYCLE_RAND >> 32)
        self._advance_cycle(sk)

    def _check_full_bw(self, rs: AckSample) -> None:
        """The pipe is full when bandwidth has not grown by a quarter for three round trips."""
        if self.full_bw_reached or not self.round_start or rs.is_app_limited:
            return
        if self.max_bw() >= self.full_bw * FULL_BW_THRESH >> 8:
            self.full_bw = self.max_bw()
            self.full_bw_cnt = 0
            return
        self.full_bw_cnt += 1
        self.full_bw_reached = self.full_bw_cnt >= FULL_BW_ROUNDS

    def _check_drain(self, sk: Sock) -> None:
        if self.mode == STARTUP and self.full_bw_reached:
            self.mode = DRAIN
            sk.snd_ssthresh = self.inflight(sk, self.max_bw(), UNIT)
        if self.mode == DRAIN:
            in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
            if self._in_net_at_edt(sk, in_flight) <= self.inflight(sk, self.max_bw(), UNIT):
                self._enter_probe_bw(sk)

    def _update_min_rtt(self, sk: Sock, rs: AckSample) -> None:
        now = sk.host.now_ns
        expired = now > self.min_rtt_stamp + MIN_RTT_WINDOW_NS
        if rs.rtt_us >= 0 and (rs.rtt_us < self.min_rtt_us or (expired and not rs.is_ack_delayed)):
            self.min_rtt_us = rs.rtt_us
            self.min_rtt_stamp = now
        if expired and not self.idle_restart and self.mode != PROBE_RTT:
            self.mode = PROBE_RTT
            self._save_cwnd(sk)
            self.probe_rtt_done_stamp = 0
        if self.mode == PROBE_RTT:
            in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
            # the rate of this phase is not the path's
            sk.app_limited = (sk.delivered + in_flight) or 1
            if not self.probe_rtt_done_stamp and in_flight <= CWND_MIN:
                self.probe_rtt_done_stamp = now + PROBE_RTT_NS
                self.probe_rtt_round_done = False
                self.next_rtt_delivered = sk.delivered
            elif self.probe_rtt_done_stamp:
                if self.round_start:
                    self.probe_rtt_round_done = True
                if self.probe_rtt_round_done:
                    self._check_probe_rtt_done(sk)
        if rs.delivered > 0:
            self.idle_restart = False

    def _check_probe_rtt_done(self, sk: Sock) -> None:
        now = sk.host.now_ns
        if not self.probe_rtt_done_stamp or now <= self.probe_rtt_done_stamp:
            return
        self.min_rtt_stamp = now
        sk.snd_cwnd = max(sk.snd_cwnd, self.prior_cwnd)
        if self.full_bw_reached:
            self._enter_probe_bw(sk)
        else:
            self.mode = STARTUP

    def _update_gains(self) -> None:
        if self.mode == STARTUP:
            self.pacing_gain = self.cwnd_gain = HIGH_GAIN
        elif self.mode == DRAIN:
            self.pacing_gain = DRAIN_GAIN
            self.cwnd_gain = HIGH_GAIN
        elif self.mode == PROBE_BW:
            self.pacing_gain = UNIT if self.lt_use_bw else CYCLE[self.cycle_idx]
            self.cwnd_gain = CWND_GAIN
        else:
            self.pacing_gain = self.cwnd_gain = UNIT

    # ------------------------------------------------------------ the window

    def _save_cwnd(self, sk: Sock) -> None:
        """Remember the last good window before recovery or PROBE_RTT cut it."""
        if self.prev_ca_state < CA_RECOVERY and self.mode != PROBE_RTT:
            self.prior_cwnd = sk.snd_cwnd
        else:
            self.prior_cwnd = max(self.prior_cwnd, sk.snd_cwnd)

    def _set_cwnd(self, sk: Sock, rs: AckSample, bw: int) -> None:
        acked = rs.acked_sacked
        cwnd = sk.snd_cwnd
        if acked:
            cwnd, conserving = self._recover_or_restore(sk, rs, acked)
            if not conserving:
                target = self._quantization_budget(sk, self._bdp(bw, self.cwnd_gain) + self._ack_aggregation_cwnd())
                if self.full_bw_reached:
                    cwnd = min(cwnd + acked, target)
                elif cwnd < target or sk.delivered < TCP_INIT_CWND:
                    cwnd += acked
                cwnd = max(cwnd, CWND_MIN)
        cwnd = min(cwnd, sk.snd_cwnd_clamp)
        if self.mode == PROBE_RTT:
            cwnd = min(cwnd, CWND_MIN)
        sk.snd_cwnd = cwnd

    def _recover_or_restore(self, sk: Sock, rs: AckSample, acked: int) -> tuple[int, bool]:
        """(cwnd, whether the first round of recovery conserves packets)."""
        before, state = self.prev_ca_state, sk.ca_state
        in_flight = sk.packets_out - sk.sacked_out - sk.lost_out + sk.retrans_out
        cwnd = sk.snd_cwnd
        if rs.losses > 0:
            cwnd = max(cwnd - rs.losses, 1)
        if state == CA_RECOVERY and before != CA_RECOVERY:
            self.packet_conservation = True
            self.next_rtt_delivered = sk.delivered
            cwnd = in_flight + acked
        elif before >= CA_RECOVERY and state < CA_RECOVERY:
            cwnd = max(cwnd, self.prior_cwnd)
            self.packet_conservation = False
        self.prev_ca_state = state
        if self.packet_conservation:
            return max(cwnd, in_flight + acked), True
        return cwnd, False

    # ------------------------------------------------------------ policers

    def _reset_lt_interval(self, sk: Sock) -> None:
        self.lt_last_stamp_ms = sk.delivered_us // 1000
        self.lt_last_delivered = sk.delivered
        self.lt_last_lost = sk.lost
        self.lt_rtt_cnt = 0

    def _reset_lt_bw(self, sk: Sock) -> None:
        self.lt_bw = 0
        self.lt_use_bw = False
        self.lt_is_sampling = False
        self._reset_lt_interval(sk)

    def _lt_bw_sampling(self, sk: Sock, losses: int, app_limited: bool) -> None:
        """Two intervals that lose at the same long-term rate: a policer. Send at its rate for a while."""
        if self.lt_use_bw:
            if self.mode == PROBE_BW and self.round_start:
                self.lt_rtt_cnt += 1
                if self.lt_rtt_cnt >= LT_USE_ROUNDS:
                    self._reset_lt_bw(sk)
                    self._enter_probe_bw(sk)
            return
        if not self.lt_is_sampling:
            if not losses:
                return
            self._reset_lt_interval(sk)
            self.lt_is_sampling = True
        if app_limited:
            self._reset_lt_bw(sk)
            return
        if self.round_start:
            self.lt_rtt_cnt += 1
        if self.lt_rtt_cnt < LT_INTERVAL_MIN_ROUNDS:
            return
        if self.lt_rtt_cnt > LT_INTERVAL_MAX_ROUNDS:
            self._reset_lt_bw(sk)
            return
        if not losses:
            return
        lost = sk.lost - self.lt_last_lost
        delivered = sk.delivered - self.lt_last_delivered
        if not delivered or lost << 8 < LT_LOSS_THRESH * delivered:
            return
        elapsed_ms = sk.delivered_us // 1000 - self.lt_last_stamp_ms
        if elapsed_ms < 1:
            return
        self._lt_interval_done(sk, delivered * BW_UNIT // (elapsed_ms * 1000))

    def _lt_interval_done(self, sk: Sock, bw: int) -> None:
        if self.lt_bw:
            diff = abs(bw - self.lt_bw)
            if diff * UNIT <= LT_BW_RATIO * self.lt_bw or self.rate(sk, diff, UNIT) <= LT_BW_DIFF:
                self.lt_bw = (bw + self.lt_bw) >> 1
                self.lt_use_bw = True
                self.pacing_gain = UNIT
                self.lt_rtt_cnt = 0
                return
        self.lt_bw = bw
        self._reset_lt_interval(sk)

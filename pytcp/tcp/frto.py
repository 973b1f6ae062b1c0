"""F-RTO (RFC 5682, SACK-enhanced; linux-tcp §8.8): was the timeout spurious?

After an RTO, an ACK of data that was never retransmitted proves that the originals were only late.
Otherwise the first ACK that advances is answered by new data instead of more retransmissions, and the
next ACK tells. Sysctl: tcp_frto. Counter: TCPSpuriousRTOs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sack, undo
from .flags import FLAG_DATA_SACKED, FLAG_ORIG_SACK_ACKED, FLAG_SND_UNA_ADVANCED

if TYPE_CHECKING:
    from .sock import Sock

REXMIT_NONE = 0
REXMIT_LOST = 1
REXMIT_NEW = 2


def process_loss(sk: Sock, flag: int, num_dupack: int) -> int:
    """One ACK in the Loss state; returns what to send: REXMIT_NONE, _LOST or _NEW."""
    recovered = sk.snd_una >= sk.high_seq
    if flag & FLAG_SND_UNA_ADVANCED and undo.try_undo_loss(sk, False):
        return REXMIT_NONE
    if sk.frto:
        # step 3b: an ACK (cumulative or selective) of never-retransmitted data
        if flag & FLAG_ORIG_SACK_ACKED and undo.try_undo_loss(sk, True):
            return REXMIT_NONE
        if sk.snd_nxt > sk.high_seq:
            # new data was sent and still the ACK is a duplicate: the loss is real
            if flag & FLAG_DATA_SACKED or num_dupack:
                sk.frto = False
        elif flag & FLAG_SND_UNA_ADVANCED and not recovered:
            sk.high_seq = sk.snd_nxt
            # step 2b: try new data; without any, or window, fall back to conventional recovery
            if sk.write_queue.head is not None and sk.snd_nxt < sk.snd_una + sk.snd_wnd:
                return REXMIT_NEW
            sk.frto = False
    if recovered:
        undo.try_undo_recovery(sk)
        return REXMIT_NONE
    if not sk.sack_ok:
        if sk.snd_nxt > sk.high_seq and num_dupack:
            sack.add_reno_sack(sk, num_dupack, False)
        elif flag & FLAG_SND_UNA_ADVANCED:
            sack.reset_reno_sack(sk)
    return REXMIT_LOST

"""What tcp_ack notes about one incoming ACK: bits handed from room to room (tcp_input.c's FLAG_*)."""

from __future__ import annotations

FLAG_DATA = 0x01  # the segment carried data
FLAG_WIN_UPDATE = 0x02  # it updated the send window
FLAG_DATA_ACKED = 0x04  # it acknowledged new data
FLAG_RETRANS_DATA_ACKED = 0x08  # some of which was retransmitted
FLAG_SYN_ACKED = 0x10  # it acknowledged our SYN
FLAG_DATA_SACKED = 0x20  # new SACK
FLAG_ECE = 0x40
FLAG_LOST_RETRANS = 0x80
FLAG_SLOWPATH = 0x100  # do not skip RFC checks of the window update
FLAG_ORIG_SACK_ACKED = 0x200  # never retransmitted data was (S)ACKed
FLAG_SND_UNA_ADVANCED = 0x400
FLAG_DSACKING_ACK = 0x800
FLAG_SET_XMIT_TIMER = 0x1000
FLAG_SACK_RENEGING = 0x2000
FLAG_UPDATE_TS_RECENT = 0x4000  # tcp_ack is to take over the timestamp
FLAG_NO_CHALLENGE_ACK = 0x8000
FLAG_DSACK_TLP = 0x20000

FLAG_ACKED = FLAG_DATA_ACKED | FLAG_SYN_ACKED
FLAG_NOT_DUP = FLAG_DATA | FLAG_WIN_UPDATE | FLAG_ACKED
FLAG_CA_ALERT = FLAG_DATA_SACKED | FLAG_ECE | FLAG_DSACKING_ACK
FLAG_FORWARD_PROGRESS = FLAG_ACKED | FLAG_DATA_SACKED

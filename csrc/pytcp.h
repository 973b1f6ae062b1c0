/* What the C helpers offer to Python. cffi reads everything below the marker line as it stands, so
 * keep it to plain declarations. Every decision about TCP is made in Python. The loops over bytes have
 * Python twins that give the same answers; threads beside Python (pytcp_txq_*, pytcp_litmus) have none
 * and are optional.
 */
#ifndef PYTCP_H
#define PYTCP_H

#include <stddef.h>
#include <stdint.h>

/* cffi: from here */

/* Raised with every change of this file; pytcp.native.ABI must be the same. */
static const int PYTCP_ABI = 3;

/* Ones' complement sum (RFC 1071) of n bytes taken as big-endian 16-bit words, an odd last byte
 * padded with zero, plus start; folded to 16 bits, not complemented. */
uint32_t pytcp_ones_sum(const void *p, size_t n, uint32_t start);

/* One buffer of a gathered frame. */
struct pytcp_part {
	const void *base;
	size_t len;
};

/* What pytcp_segment is to do beside TCP over IPv4. */
static const int PYTCP_SEG_IPV6 = 1;
static const int PYTCP_SEG_UDP = 2;
static const int PYTCP_SEG_CWR_ONCE = 4; /* classic ECN: CWR on the first segment only */

/* Cut the payload (what head holds beyond hdr_len, then the parts) into segments of gso_size bytes,
 * each behind its own finished headers: frame i begins at out + i * (hdr_len + gso_size), only the
 * last may be shorter. l3 and l4 are offsets in head. Returns the number of frames, at least one;
 * -1 when the arguments contradict each other, -2 when out is too small. */
long pytcp_segment(const void *head, size_t head_len, size_t l3, size_t l4, size_t hdr_len, int mode, uint32_t gso_size,
		   const struct pytcp_part *parts, size_t nparts, void *out, size_t out_size);

/* One received frame; gso and csum_ok as a virtio-net header tells them. */
struct pytcp_rx {
	const void *data;
	uint32_t len;
	uint32_t next; /* scratch of pytcp_gro */
	uint16_t gso_size;
	uint8_t gso_type;
	uint8_t csum_ok;
};

/* One frame that leaves pytcp_gro: count == 1 is in[index] as it came; else len bytes at out + off. */
struct pytcp_merged {
	uint32_t index;
	uint32_t count;
	uint32_t off;
	uint32_t len;
	uint16_t gso_size;
	uint8_t ipv6;
};

/* Coalesce n frames whose link-layer header has l2 bytes (14: Ethernet, 0: none). in[].csum_ok is
 * raised where a checksum was found right; out must hold as many bytes as the n frames together and
 * res n entries. Returns how many entries of res were filled, -1 when out is too small or l2 makes no sense. */
long pytcp_gro(struct pytcp_rx *in, uint32_t n, uint32_t l2, void *out, size_t out_size, struct pytcp_merged *res);

/* Read up to max frames, one per slot of stride bytes at base, each behind hdr bytes of virtio-net
 * header (0: none), and describe them in rx. Returns the number read, 0 when there was nothing, or
 * -errno when the first read failed (-ENODEV at end of file). */
long pytcp_read_batch(int fd, void *base, size_t stride, size_t hdr, uint32_t max, struct pytcp_rx *rx);

/* Write frames first .. count-1 of an output of pytcp_segment, `last` being the length of the last,
 * each behind hdr zero bytes (at most 12). Returns the number written, fewer when the device is
 * full, or -errno when the first write failed. */
long pytcp_write_frames(int fd, const void *base, size_t stride, uint32_t count, size_t last, uint32_t first, size_t hdr);

/* A thread that writes frames to a device (txthread.c). One thread puts, publishes, throttles and reaps. */
struct pytcp_txq;

static const uint32_t PYTCP_TX_NOBODY = 0xffffffff; /* sock of a frame that nobody is charged for */
#define PYTCP_TX_PARTS 31 /* buffers of one frame at most */

struct pytcp_txstats {
	uint64_t written, bytes; /* frames, and what they hold without virtio-net headers */
	uint64_t carrier_errors; /* lost: the interface was down or gone */
	uint64_t errors;	 /* lost: refused by the kernel */
	uint64_t stalls;	 /* times the device was full */
	uint64_t signals;	 /* completions somebody waited for */
};

/* Start a thread for a ring of `entries` (a power of two) and `socks` sockets; fd is duplicated. NULL: *error is the errno. */
struct pytcp_txq *pytcp_txq_open(int fd, uint32_t entries, uint32_t socks, int *error);

/* End the thread, whatever is still in the ring, and free everything. */
void pytcp_txq_close(struct pytcp_txq *q);

/* Readable after a completion that found THROTTLED. */
int pytcp_txq_eventfd(struct pytcp_txq *q);

/* Queue a frame: hdr (at most 12 bytes, copied), then the parts, which must stay where they are until the frame is reaped. sock is charged
 * truesize until completion; quiet: that does not look at THROTTLED. 0, -ENOSPC (full) or -EINVAL. */
int pytcp_txq_put(struct pytcp_txq *q, uint32_t sock, uint32_t truesize, int quiet, const void *hdr, size_t hdr_len,
		  const struct pytcp_part *parts, size_t nparts);

/* Let the thread have what was put. */
void pytcp_txq_publish(struct pytcp_txq *q);

/* Number of frames completed since the last call, at most max, in the order they were put; called[i]: the completion found THROTTLED and took it down. */
uint32_t pytcp_txq_reap(struct pytcp_txq *q, uint8_t *called, uint32_t max);

/* Set THROTTLED of a socket, fence if told to, and read its charge again: one step (throttle.h). */
int64_t pytcp_txq_throttle(struct pytcp_txq *q, uint32_t sock, int fence);
int pytcp_txq_throttled(struct pytcp_txq *q, uint32_t sock);
void pytcp_txq_unthrottle(struct pytcp_txq *q, uint32_t sock);

void pytcp_txq_stats(struct pytcp_txq *q, struct pytcp_txstats *out);

/* How the two sides of pytcp_litmus act. */
static const int PYTCP_P0_STORE = 0;  /* the ring's, without the fence */
static const int PYTCP_P0_FENCE = 1;  /* the ring's */
static const int PYTCP_P0_LOCKED = 2; /* set_bit: a locked read-modify-write */
static const int PYTCP_P1_LOCKED = 0; /* the ring's: decrement by a locked read-modify-write */
static const int PYTCP_P1_STORE = 1;  /* a release store of the result */

/* Let two threads on two processors push and complete at the same moment, `rounds` times, each delayed by a random number of loop
 * turns from 0 to skew (litmus.c). Returns how often the socket was left stuck (held, and nobody will call it), or -errno: -ENOTSUP
 * where only one processor may be used. */
int64_t pytcp_litmus(int p0, int p1, uint64_t rounds, uint32_t skew, uint32_t seed);

/* cffi: to here */

#endif

/* What the C helpers offer to Python. cffi reads everything below the marker line as it stands, so
 * keep it to plain declarations. Loops over bytes only: every decision about TCP is made in Python,
 * and every function here has a Python twin that gives the same answer.
 */
#ifndef PYTCP_H
#define PYTCP_H

#include <stddef.h>
#include <stdint.h>

/* cffi: from here */

/* Raised with every change of this file; pytcp.native.ABI must be the same. */
static const int PYTCP_ABI = 2;

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

/* cffi: to here */

#endif

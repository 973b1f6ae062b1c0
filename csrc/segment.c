/* Segmentation of a super-frame (TSO, USO) in one pass: copy, patch the headers, checksum while the
 * segment is still in the first-level cache. What Linux does in tcp_gso_segment and udp_gso_segment.
 */
#include "pytcp.h"
#include "bytes.h"

#include <string.h>

/* A place in the gathered payload. */
struct reader {
	const struct pytcp_part *part, *end;
	const uint8_t *at;
	size_t left; /* in the current buffer */
};

static void take(struct reader *from, uint8_t *to, size_t n)
{
	while (n) {
		size_t now;

		while (!from->left) {
			from->at = from->part->base;
			from->left = from->part->len;
			from->part++;
		}
		now = from->left < n ? from->left : n;
		memcpy(to, from->at, now);
		from->at += now;
		from->left -= now;
		to += now;
		n -= now;
	}
}

static uint32_t finished(const uint8_t *p, size_t n, uint32_t start)
{
	return pytcp_ones_sum(p, n, start) ^ 0xffff;
}

long pytcp_segment(const void *head, size_t head_len, size_t l3, size_t l4, size_t hdr_len, int mode, uint32_t gso_size,
		   const struct pytcp_part *parts, size_t nparts, void *out, size_t out_size)
{
	const int v6 = mode & PYTCP_SEG_IPV6, udp = mode & PYTCP_SEG_UDP;
	const size_t ip_len = v6 ? 40 : 20, l4_len = udp ? 8 : 20;
	const uint8_t *tmpl = head;
	struct reader from = {parts, parts + nparts, NULL, 0};
	uint8_t *frame = out;
	size_t payload, count, i;
	uint32_t pseudo, seq = 0, id = 0;
	uint8_t flags = 0;

	if (hdr_len > head_len || l4 > hdr_len || hdr_len - l4 < l4_len || l3 > l4 || l4 - l3 < ip_len || !gso_size)
		return -1;
	payload = head_len - hdr_len;
	for (i = 0; i < nparts; i++)
		payload += parts[i].len;
	if (hdr_len - l3 + (payload < gso_size ? payload : gso_size) > 65535)
		return -1;
	count = payload ? (payload - 1) / gso_size + 1 : 1;
	if (payload > out_size || count > (out_size - payload) / hdr_len)
		return -2;

	from.at = tmpl + hdr_len;
	from.left = head_len - hdr_len;
	if (v6) {
		pseudo = pytcp_ones_sum(tmpl + l3 + 8, 32, 0);
	} else {
		pseudo = pytcp_ones_sum(tmpl + l3 + 12, 8, 0);
		id = get16(tmpl + l3 + 4);
	}
	pseudo += udp ? PROTO_UDP : PROTO_TCP;
	if (!udp) {
		seq = get32(tmpl + l4 + 4);
		flags = tmpl[l4 + 13];
	}

	for (i = 0; i < count; i++) {
		const size_t n = payload < gso_size ? payload : gso_size, l4_total = hdr_len - l4 + n;
		uint8_t *ip = frame + l3, *th = frame + l4;
		uint32_t sum;

		memcpy(frame, tmpl, hdr_len);
		take(&from, frame + hdr_len, n);
		payload -= n;
		if (v6) {
			put16(ip + 4, (uint32_t)(l4 - l3 - 40 + l4_total));
		} else {
			put16(ip + 2, (uint32_t)(l4 - l3 + l4_total));
			put16(ip + 4, id + (uint32_t)i);
			put16(ip + 10, 0);
			put16(ip + 10, finished(ip, l4 - l3, 0));
		}
		if (udp) {
			put16(th + 4, (uint32_t)l4_total);
			put16(th + 6, 0);
			sum = finished(th, l4_total, pseudo + (uint32_t)l4_total);
			put16(th + 6, sum ? sum : 0xffff);
		} else {
			put32(th + 4, seq);
			seq += (uint32_t)n;
			th[13] = payload ? flags & ~(TCP_FIN | TCP_PSH) : flags;
			if (i && mode & PYTCP_SEG_CWR_ONCE)
				th[13] &= ~TCP_CWR;
			put16(th + 16, 0);
			put16(th + 16, finished(th, l4_total, pseudo + (uint32_t)l4_total));
		}
		frame += hdr_len + n;
	}
	return (long)count;
}

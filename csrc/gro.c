/* Coalescing of received TCP segments (GRO): neighbours of one flow become one super-frame.
 *
 * A frame either continues the frame held for its flow, or ends it and is held in its place, or goes
 * up as it came. Held frames are only indices until they leave; then headers and payloads are copied
 * once, in order. The rules are Linux's (net/ipv4/tcp_offload.c, af_inet.c), compared with a 6.18
 * kernel's TAP in NAPI mode; pytcp/link/gro.py says them in words, its twin says them in Python.
 */
#include "pytcp.h"
#include "bytes.h"

#include <string.h>

enum { MAX_HELD = 64, MAX_IP = 65535, NONE = 0xffffffff };
enum { ENDS = TCP_FIN | TCP_SYN | TCP_RST | TCP_PSH | TCP_URG };

struct held {
	const uint8_t *ip, *th;
	uint32_t first, last, count; /* frames, linked through pytcp_rx.next */
	uint32_t th_len, payload, mss;
	uint8_t v6, fixed_id, flags;
};

struct batch {
	struct pytcp_rx *in;
	uint32_t l2;
	uint8_t *out;
	size_t used;
	struct pytcp_merged *res;
	long filled;
	struct held held[MAX_HELD];
	uint32_t nheld;
};

/* What one frame looks like; th == NULL: nothing that could ever be held. */
struct look {
	const uint8_t *ip, *th;
	uint32_t th_len, payload;
	uint8_t v6, odd; /* odd: of a flow, but never merged */
};

static void emit(struct batch *b, const struct held *h)
{
	struct pytcp_merged *r = &b->res[b->filled++];
	const uint32_t ip_len = h->v6 ? 40 : 20, hdr = b->l2 + ip_len + h->th_len;
	uint8_t *to = b->out + b->used, *ip = to + b->l2, *th = ip + ip_len;
	uint32_t i = h->first, l4_len = h->th_len + h->payload, room, n;

	r->index = i;
	r->count = h->count;
	if (h->count == 1)
		return;
	r->off = (uint32_t)b->used;
	r->len = hdr + h->payload;
	r->gso_size = (uint16_t)h->mss;
	r->ipv6 = h->v6;
	b->used += r->len;

	memcpy(to, b->in[i].data, hdr);
	for (to += hdr, room = h->payload; room; i = b->in[i].next, to += n, room -= n) {
		n = b->in[i].len - hdr;
		memcpy(to, (const uint8_t *)b->in[i].data + hdr, n);
	}
	if (h->v6) {
		put16(ip + 4, l4_len);
	} else {
		put16(ip + 2, 20 + l4_len);
		put16(ip + 10, 0);
		put16(ip + 10, pytcp_ones_sum(ip, 20, 0) ^ 0xffff);
	}
	th[13] = h->flags;
	put16(th + 16, pytcp_ones_sum(h->v6 ? ip + 8 : ip + 12, h->v6 ? 32 : 8, PROTO_TCP + l4_len));
}

static void release(struct batch *b, uint32_t k)
{
	emit(b, &b->held[k]);
	b->nheld--;
	memmove(&b->held[k], &b->held[k + 1], (b->nheld - k) * sizeof(b->held[0]));
}

static void pass(struct batch *b, uint32_t i)
{
	b->res[b->filled].index = i;
	b->res[b->filled++].count = 1;
}

/* Parse one frame; whatever its bytes, nothing beyond its length is read. */
static struct look examine(struct pytcp_rx *rx, uint32_t l2)
{
	struct look k = {0};
	const uint8_t *data = rx->data, *ip = data + l2, *th;
	uint32_t rest, ip_len, pseudo;

	if (rx->gso_size || rx->len < l2 + 40)
		return k;
	rest = rx->len - l2;
	if (ip[0] == 0x45) {
		if ((l2 && get16(data + 12) != 0x0800) || ip[9] != PROTO_TCP || get16(ip + 6) & 0x3fff || pytcp_ones_sum(ip, 20, 0) != 0xffff)
			return k;
		k.odd = get16(ip + 2) != rest || ip[6] & 0x80;
		ip_len = 20;
	} else if (ip[0] >> 4 == 6) {
		if ((l2 && get16(data + 12) != 0x86dd) || rest < 60 || ip[6] != PROTO_TCP)
			return k;
		k.odd = get16(ip + 4) != rest - 40;
		k.v6 = 1;
		ip_len = 40;
	} else {
		return k;
	}
	th = ip + ip_len;
	rest -= ip_len;
	k.th_len = (uint32_t)(th[12] >> 4) * 4;
	if (k.th_len < 20 || k.th_len > rest)
		return k;
	if (!k.odd && !rx->csum_ok) {
		pseudo = pytcp_ones_sum(k.v6 ? ip + 8 : ip + 12, k.v6 ? 32 : 8, PROTO_TCP + rest);
		if (pytcp_ones_sum(th, rest, pseudo) != 0xffff)
			return k;
		rx->csum_ok = 1;
	}
	k.payload = rest - k.th_len;
	k.ip = ip;
	k.th = th;
	return k;
}

static int same_flow(const struct held *h, const struct look *k, uint32_t l2)
{
	if (h->v6 != k->v6 || memcmp(h->th, k->th, 4) || memcmp(h->ip - l2, k->ip - l2, l2))
		return 0;
	if (k->v6) /* version, flow label, both addresses */
		return !((get32(h->ip) ^ get32(k->ip)) & 0xf00fffff) && !memcmp(h->ip + 8, k->ip + 8, 32);
	return !memcmp(h->ip + 12, k->ip + 12, 8);
}

static int continues(struct held *h, const struct look *k)
{
	const uint32_t in_flags = (uint32_t)~(TCP_FIN | TCP_PSH) & 0xff;
	uint32_t apart;

	if (k->odd || k->payload == 0 || k->payload > h->mss || k->th[13] & TCP_CWR)
		return 0;
	if (get32(h->th + 4) + h->payload != get32(k->th + 4))
		return 0;
	if (k->v6) {
		if (h->ip[7] != k->ip[7] || get32(h->ip) != get32(k->ip))
			return 0;
	} else {
		if (h->ip[8] != k->ip[8] || h->ip[1] != k->ip[1] || (h->ip[6] ^ k->ip[6]) & 0x40)
			return 0;
		apart = (get16(k->ip + 4) - get16(h->ip + 4)) & 0xffff;
		if (h->count == 1 && apart == 0)
			h->fixed_id = 1;
		if (apart != (h->fixed_id ? 0 : h->count))
			return 0;
	}
	/* acknowledgement; header length and AE; flags; window; options */
	if (memcmp(h->th + 8, k->th + 8, 5) || (h->flags ^ k->th[13]) & in_flags || memcmp(h->th + 14, k->th + 14, 2))
		return 0;
	if (memcmp(h->th + 20, k->th + 20, k->th_len - 20))
		return 0;
	return (h->v6 ? 40 : 20) + h->th_len + h->payload + k->payload <= MAX_IP;
}

long pytcp_gro(struct pytcp_rx *in, uint32_t n, uint32_t l2, void *out, size_t out_size, struct pytcp_merged *res)
{
	struct batch b = {.in = in, .l2 = l2, .out = out, .res = res};
	size_t total = 0;
	uint32_t i, k;

	for (i = 0; i < n; i++)
		total += in[i].len;
	if (total > out_size || (l2 && l2 < 14))
		return -1;
	for (i = 0; i < n; i++) {
		const struct look look = examine(&in[i], l2);
		struct held *h;

		in[i].next = NONE;
		if (!look.th) {
			pass(&b, i);
			continue;
		}
		for (k = 0; k < b.nheld; k++)
			if (same_flow(&b.held[k], &look, l2))
				break;
		if (k < b.nheld) {
			h = &b.held[k];
			if (continues(h, &look)) {
				in[h->last].next = i;
				h->last = i;
				h->count++;
				h->payload += look.payload;
				h->flags |= look.th[13] & (TCP_FIN | TCP_PSH);
				if (look.payload < h->mss || look.th[13] & ENDS)
					release(&b, k);
				continue;
			}
			release(&b, k);
		}
		if (look.odd || look.payload == 0 || look.th[13] & ENDS) {
			pass(&b, i);
			continue;
		}
		if (b.nheld == MAX_HELD)
			release(&b, 0);
		b.held[b.nheld++] = (struct held){
			.ip = look.ip,
			.th = look.th,
			.first = i,
			.last = i,
			.count = 1,
			.th_len = look.th_len,
			.payload = look.payload,
			.mss = look.payload,
			.v6 = look.v6,
			.flags = look.th[13],
		};
	}
	while (b.nheld)
		release(&b, 0);
	return b.filled;
}

/* The Internet checksum at the speed of the vector unit.
 *
 * Addition with end-around carry does not care about the width of the words nor, but for a final
 * swap, about their byte order (RFC 1071 section 2). So 32-bit words are added into 64-bit lanes,
 * where four thousand million of them fit before a carry is lost, and everything is folded once.
 * The same loop is compiled twice on x86-64; which copy runs is asked of the processor at load time.
 */
#include "pytcp.h"

#include <string.h>

typedef uint64_t lanes __attribute__((vector_size(32)));

static inline __attribute__((always_inline)) uint64_t sum_words(const uint8_t *p, size_t n)
{
	const lanes low = {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
	lanes even = {0}, odd = {0}, a, b;
	uint64_t sum, word;
	uint32_t half;
	uint16_t pair;

	for (; n >= 64; p += 64, n -= 64) {
		memcpy(&a, p, 32);
		memcpy(&b, p + 32, 32);
		even += (a & low) + (b & low);
		odd += (a >> 32) + (b >> 32);
	}
	even += odd;
	/* each lane is below 2^58 for any size_t that can be addressed, so four of them still fit */
	sum = even[0] + even[1] + even[2] + even[3];
	for (; n >= 8; p += 8, n -= 8) {
		memcpy(&word, p, 8);
		sum += (word & 0xffffffff) + (word >> 32);
	}
	if (n >= 4) {
		memcpy(&half, p, 4);
		sum += half;
		p += 4;
		n -= 4;
	}
	if (n >= 2) {
		memcpy(&pair, p, 2);
		sum += pair;
		p += 2;
		n -= 2;
	}
	if (n) {
		pair = 0;
		memcpy(&pair, p, 1);
		sum += pair;
	}
	return sum;
}

static uint64_t sum_baseline(const uint8_t *p, size_t n)
{
	return sum_words(p, n);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) static uint64_t sum_avx2(const uint8_t *p, size_t n)
{
	return sum_words(p, n);
}

static uint64_t (*sum_best)(const uint8_t *, size_t) = sum_baseline;

__attribute__((constructor)) static void choose_sum(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2"))
		sum_best = sum_avx2;
}
#else
#define sum_best sum_baseline
#endif

uint32_t pytcp_ones_sum(const void *p, size_t n, uint32_t start)
{
	uint64_t sum = sum_best(p, n);

	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	sum = (sum >> 8) | (sum & 0xff) << 8;
#endif
	sum += start;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint32_t)sum;
}

/* Many frames per call into C: a TAP or packet socket gives and takes one frame per system call, so
 * what can be saved is everything Python does around it.
 */
#include "pytcp.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* struct virtio_net_hdr as TUN/TAP uses it: the machine's byte order. */
enum { VNET_FLAGS = 0, VNET_GSO_TYPE = 1, VNET_GSO_SIZE = 4, VNET_MIN = 10, VNET_MAX = 12 };
enum { VNET_CHECKED = 1 | 2 }; /* NEEDS_CSUM | DATA_VALID */

long pytcp_read_batch(int fd, void *base, size_t stride, size_t hdr, uint32_t max, struct pytcp_rx *rx)
{
	uint8_t *slot = base;
	uint32_t i = 0;

	if (stride <= hdr || (hdr && hdr < VNET_MIN))
		return -EINVAL;
	while (i < max) {
		ssize_t n = read(fd, slot, stride);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return i || errno == EAGAIN ? (long)i : -errno;
		}
		if (n == 0)
			return i ? (long)i : -ENODEV;
		if ((size_t)n <= hdr)
			continue;
		rx[i].data = slot + hdr;
		rx[i].len = (uint32_t)(n - (ssize_t)hdr);
		rx[i].gso_size = 0;
		rx[i].gso_type = 0;
		rx[i].csum_ok = 0;
		if (hdr) {
			rx[i].csum_ok = (slot[VNET_FLAGS] & VNET_CHECKED) != 0;
			rx[i].gso_type = slot[VNET_GSO_TYPE];
			memcpy(&rx[i].gso_size, slot + VNET_GSO_SIZE, 2);
		}
		i++;
		slot += stride;
	}
	return (long)i;
}

long pytcp_write_frames(int fd, const void *base, size_t stride, uint32_t count, size_t last, uint32_t first, size_t hdr)
{
	static uint8_t zeros[VNET_MAX];
	uint32_t i;

	if (hdr > VNET_MAX || last > stride)
		return -EINVAL;
	for (i = first; i < count; i++) {
		struct iovec iov[2] = {
			{zeros, hdr},
			{(uint8_t *)base + (size_t)i * stride, i + 1 == count ? last : stride},
		};
		ssize_t n;

		do
			n = hdr ? writev(fd, iov, 2) : write(fd, iov[1].iov_base, iov[1].iov_len);
		while (n < 0 && errno == EINTR);
		if (n < 0)
			return i > first || errno == EAGAIN ? (long)(i - first) : -errno;
	}
	return (long)(count - (first < count ? first : count));
}

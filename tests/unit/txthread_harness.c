/* The transmit thread without Python, for a sanitizer: a producer that puts, throttles and reaps against the thread, over a pair of sockets
 * that another thread empties. Every socket that was held is called in the end, or the exit status is 1. */
#include "pytcp.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ENTRIES = 64, SOCKS = 4, FRAMES = 20000, SIZE = 100 };

static int pair[2];

static void *drain(void *arg)
{
	char buf[1000];
	long got = 0;

	(void)arg;
	while (got < FRAMES) {
		ssize_t n = recv(pair[1], buf, sizeof buf, 0);

		/* the virtio-net header, then the frame's number over and over */
		if (n != 10 + SIZE || memcmp(buf + 10, buf + 14, SIZE - 4))
			exit(2);
		got++;
	}
	return NULL;
}

int main(void)
{
	static uint32_t frames[ENTRIES][SIZE / 4];
	uint8_t called[ENTRIES], hdr[10] = {0};
	struct pytcp_txstats stats;
	struct pytcp_txq *q;
	pthread_t reader;
	long held = 0, calls = 0;
	uint32_t put = 0, reaped = 0;
	int waiting[SOCKS] = {0}, error, in_ring[SOCKS] = {0}, of[ENTRIES];
	struct pollfd pfd;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) || fcntl(pair[0], F_SETFL, O_NONBLOCK))
		return 3;
	q = pytcp_txq_open(pair[0], ENTRIES, SOCKS, &error);
	if (!q)
		return 4;
	pthread_create(&reader, NULL, drain, NULL);
	pfd.fd = pytcp_txq_eventfd(q);
	pfd.events = POLLIN;
	while (reaped < FRAMES) {
		uint32_t n;

		for (int burst = 0; burst < 8 && put < FRAMES && put - reaped < ENTRIES; burst++) {
			uint32_t *frame = frames[put % ENTRIES], sock = put % SOCKS;
			struct pytcp_part part = {frame, SIZE};

			for (int i = 0; i < SIZE / 4; i++)
				frame[i] = put;
			if (pytcp_txq_put(q, sock, 10, 0, hdr, sizeof hdr, &part, 1))
				return 5;
			of[put % ENTRIES] = (int)sock;
			in_ring[sock]++;
			put++;
		}
		pytcp_txq_publish(q);
		for (uint32_t sock = 0; sock < SOCKS; sock++)
			if (in_ring[sock] && !waiting[sock] && pytcp_txq_throttle(q, sock, 1) > 0) {
				waiting[sock] = 1;
				held++;
			}
		/* everybody is held: the signal has to come */
		if (waiting[0] && waiting[1] && waiting[2] && waiting[3]) {
			uint64_t count;

			if (poll(&pfd, 1, 20000) != 1)
				return 1;
			if (read(pfd.fd, &count, sizeof count) < 0)
				return 6;
		}
		n = pytcp_txq_reap(q, called, ENTRIES);
		for (uint32_t i = 0; i < n; i++, reaped++) {
			int sock = of[reaped % ENTRIES];

			in_ring[sock]--;
			if (called[i] && waiting[sock]) {
				waiting[sock] = 0;
				calls++;
			}
		}
	}
	pthread_join(reader, NULL);
	pytcp_txq_stats(q, &stats);
	pytcp_txq_close(q);
	if (held != calls || stats.written != FRAMES || stats.bytes != (uint64_t)FRAMES * SIZE || stats.errors || stats.carrier_errors)
		return 1;
	printf("%d frames, %s\n", FRAMES, held ? "held and called" : "never held");
	return 0;
}

// Kernel-socket benchmark client, the same for every stack under test. Prints one line of JSON.
//
//   client {tx|rx|rr|rpc|conn|idle} ADDRESS PORT SECONDS [SIZE]
//
//   tx    send to a discard service, then shut down and wait for its end of file: bytes really delivered
//   rx    read from a source service
//   rr    SIZE bytes out and back on an echo service, one at a time, after 200 ms of warming up
//   rpc   SIZE bytes out, SIZE bytes back (the server answers a whole request only)
//   conn  connect, shut down writing, read the end of file, close, one after the other
//   idle  hold SIZE connections open, say "ready", and keep them until standard input ends

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 128 * 1024, MAX_SAMPLES = 8000000 };

static struct sockaddr_storage server;
static socklen_t server_len;
static char buf[1 << 20];
static uint32_t *samples;
static uint64_t bytes, rounds, begin, end;
static int retransmits;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void set_server(const char *address, int port)
{
	struct sockaddr_in *v4 = (void *)&server;
	struct sockaddr_in6 *v6 = (void *)&server;

	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		server_len = sizeof(*v4);
	} else if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		server_len = sizeof(*v6);
	} else {
		errno = EINVAL;
		die(address);
	}
}

static int dial(void)
{
	struct timeval patience = {5, 0};
	int one = 1;
	int fd = socket(server.ss_family, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (connect(fd, (void *)&server, server_len))
		die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void sample(uint64_t ns)
{
	if (rounds < MAX_SAMPLES)
		samples[rounds] = ns;
	rounds++;
}

static void run_tx(uint64_t duration)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	int fd = dial();

	begin = now_ns();
	while (now_ns() - begin < duration) {
		ssize_t n = send(fd, buf, CHUNK, 0);

		if (n < 0)
			die("send");
		bytes += n;
	}
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
		retransmits = info.tcpi_total_retrans;
	shutdown(fd, SHUT_WR);
	while (recv(fd, buf, sizeof(buf), 0) > 0)
		;
	end = now_ns();
	close(fd);
}

static void run_rx(uint64_t duration)
{
	struct linger abort_on_close = {1, 0};
	int fd = dial();

	if (recv(fd, buf, CHUNK, 0) <= 0)
		die("recv");
	begin = now_ns();
	while ((end = now_ns()) - begin < duration) {
		ssize_t n = recv(fd, buf, CHUNK, 0);

		if (n <= 0)
			die("recv");
		bytes += n;
	}
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort_on_close, sizeof(abort_on_close));
	close(fd);
}

static void exchange(int fd, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t n = send(fd, buf, size - done, 0);

		if (n < 0)
			die("send");
		done += n;
	}
	for (done = 0; done < size;) {
		ssize_t n = recv(fd, buf, size - done, 0);

		if (n <= 0)
			die("recv");
		done += n;
	}
}

static void run_rounds(uint64_t duration, size_t size)
{
	int fd = dial();
	uint64_t last, t;

	for (begin = now_ns(); now_ns() - begin < 200000000ull;)
		exchange(fd, size);
	begin = now_ns();
	for (last = begin; last - begin < duration; last = t) {
		exchange(fd, size);
		t = now_ns();
		sample(t - last);
		bytes += 2 * size;
	}
	end = last;
	close(fd);
}

static void run_conn(uint64_t duration)
{
	uint64_t last, t;

	begin = now_ns();
	for (last = begin; last - begin < duration; last = t) {
		int fd = dial();

		shutdown(fd, SHUT_WR);
		if (recv(fd, buf, 16, 0) != 0)
			die("end of file");
		close(fd);
		t = now_ns();
		sample(t - last);
	}
	end = last;
}

static void run_idle(size_t count)
{
	struct rlimit files = {count + 64, count + 64};

	if (setrlimit(RLIMIT_NOFILE, &files))
		die("open file limit");
	begin = now_ns();
	for (size_t i = 0; i < count; i++) {
		dial();
		rounds++;
	}
	end = now_ns();
	printf("ready\n");
	fflush(stdout);
	while (read(0, buf, sizeof(buf)) > 0)
		;
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: client {tx|rx|rr|rpc|conn|idle} ADDRESS PORT SECONDS [SIZE]\n");
		return 2;
	}
	const char *mode = argv[1];
	uint64_t duration = atof(argv[4]) * 1e9;
	size_t size = argc > 5 ? strtoul(argv[5], NULL, 10) : 1;

	set_server(argv[2], atoi(argv[3]));
	memset(buf, 'x', sizeof(buf));
	samples = malloc(sizeof(*samples) * MAX_SAMPLES);
	if (!samples)
		die("malloc");

	if (!strcmp(mode, "tx"))
		run_tx(duration);
	else if (!strcmp(mode, "rx"))
		run_rx(duration);
	else if (!strcmp(mode, "rr") || !strcmp(mode, "rpc"))
		run_rounds(duration, size);
	else if (!strcmp(mode, "conn"))
		run_conn(duration);
	else if (!strcmp(mode, "idle"))
		run_idle(size);
	else
		return 2;

	double seconds = (end - begin) / 1e9, p50 = 0, p99 = 0;
	uint64_t kept = !strcmp(mode, "idle") ? 0 : rounds < MAX_SAMPLES ? rounds : MAX_SAMPLES;

	if (kept) {
		qsort(samples, kept, sizeof(*samples), by_value);
		p50 = samples[kept / 2] / 1e3;
		p99 = samples[kept * 99 / 100] / 1e3;
	}
	printf("{\"mode\":\"%s\",\"seconds\":%.3f,\"gbps\":%.4f,\"n\":%lu,\"rate\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"retransmits\":%d}\n",
	       mode, seconds, bytes * 8 / seconds / 1e9, (unsigned long)rounds, rounds / seconds, p50, p99, retransmits);
	return 0;
}

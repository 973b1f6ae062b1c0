// The kernel's own server for the benchmark client: one thread, epoll, IPv4.
//
//   server [RPC_SIZE]
//
// 5001 discard (read until the end of file, then close), 5002 source (send for ever), 5003 echo,
// 5004 rpc (RPC_SIZE bytes in, then as many out). Says "ready" when it listens.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DISCARD = 5001, SOURCE, ECHO, RPC, CHUNK = 128 * 1024 };

struct conn {
	int fd, service, listening;
	size_t in, out;
};

static char buf[1 << 20];
static size_t rpc_size = 81920;
static int ep;

static void watch(struct conn *c, int op, unsigned events)
{
	struct epoll_event ev = {.events = events, .data.ptr = c};

	epoll_ctl(ep, op, c->fd, &ev);
}

static void listen_on(int port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct conn *c = calloc(1, sizeof(*c));
	int one = 1;

	c->fd = socket(AF_INET, SOCK_STREAM, 0);
	c->service = port;
	c->listening = 1;
	setsockopt(c->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(c->fd, (void *)&sa, sizeof(sa)) || listen(c->fd, 1024)) {
		perror("bind");
		exit(1);
	}
	watch(c, EPOLL_CTL_ADD, EPOLLIN);
}

static void accept_one(struct conn *listener)
{
	int one = 1, fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK);

	if (fd < 0)
		return;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	struct conn *c = calloc(1, sizeof(*c));

	c->fd = fd;
	c->service = listener->service;
	watch(c, EPOLL_CTL_ADD, c->service == SOURCE ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

// recv or send said `n`: is the connection over?
static int over(ssize_t n)
{
	return n == 0 || (n < 0 && errno != EAGAIN);
}

static int serve_source(struct conn *c, unsigned events)
{
	if ((events & EPOLLIN) && over(recv(c->fd, buf, 4096, 0)))
		return 1;
	return over(send(c->fd, buf, CHUNK, 0));
}

static int serve_echo(struct conn *c)
{
	ssize_t got = recv(c->fd, buf, 65536, 0);

	if (over(got))
		return 1;
	for (ssize_t done = 0; done < got;) {
		ssize_t n = send(c->fd, buf + done, got - done, 0);

		if (over(n))
			return 1;
		if (n > 0)
			done += n;
	}
	return 0;
}

static int serve_rpc(struct conn *c, unsigned events)
{
	if (events & EPOLLIN) {
		ssize_t n = recv(c->fd, buf, 262144, 0);

		if (over(n))
			return 1;
		if (n > 0)
			c->in += n;
		for (; c->in >= rpc_size; c->in -= rpc_size)
			c->out += rpc_size;
	}
	if (c->out) {
		ssize_t n = send(c->fd, buf, c->out, 0);

		if (over(n))
			return 1;
		if (n > 0)
			c->out -= n;
		watch(c, EPOLL_CTL_MOD, c->out ? EPOLLIN | EPOLLOUT : EPOLLIN);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		rpc_size = strtoul(argv[1], NULL, 10);
	signal(SIGPIPE, SIG_IGN);
	ep = epoll_create1(0);
	for (int port = DISCARD; port <= RPC; port++)
		listen_on(port);
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct epoll_event ev[64];
		int n = epoll_wait(ep, ev, 64, -1);

		for (int i = 0; i < n; i++) {
			struct conn *c = ev[i].data.ptr;
			int ended = 0;

			if (c->listening)
				accept_one(c);
			else if (c->service == DISCARD)
				ended = over(recv(c->fd, buf, 262144, 0));
			else if (c->service == SOURCE)
				ended = serve_source(c, ev[i].events);
			else if (c->service == ECHO)
				ended = serve_echo(c);
			else
				ended = serve_rpc(c, ev[i].events);
			if (ended) {
				close(c->fd);
				free(c);
			}
		}
	}
}

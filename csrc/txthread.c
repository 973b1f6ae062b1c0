/* A thread that writes frames to a device while Python works.
 *
 * One producer (the stack's thread) puts entries into a ring and publishes them; one consumer (the
 * thread here) writes each with one writev and completes it; the producer reaps completions in order.
 * Three indices that only grow: tail (published), done (completed), reaped (the producer's own). The
 * producer keeps every buffer of an entry alive until it has reaped it.
 *
 * Per socket both threads share a count and a flag (throttle.h). A completion that finds the flag
 * marks its entry and signals an eventfd; all others are silent, and found when the producer looks.
 *
 * The thread sleeps on a semaphore when it has nothing to do. `sleeping` and `tail` are a second pair
 * of the same shape as flag and count, and here every access is sequentially consistent.
 */
#include "pytcp.h"
#include "throttle.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HDR = 12, SPINS = 400, RETRY_NS = 100000 };
enum { QUIET = 1, CALLED = 2 }; /* entry flags: completes without looking at THROTTLED; its socket is to be called */

struct entry {
	struct iovec iov[1 + PYTCP_TX_PARTS];
	int niov;
	uint32_t sock; /* PYTCP_TX_NOBODY: belongs to nobody */
	uint32_t truesize;
	uint8_t flags;
	uint8_t hdr[MAX_HDR];
};

struct pytcp_txq {
	struct entry *entries;
	struct txsock *socks;
	uint32_t mask, nsocks;
	int fd, eventfd;
	pid_t pid;
	pthread_t thread;
	sem_t wake;
	/* the producer's */
	_Alignas(64) uint32_t head; /* put, perhaps not yet published */
	uint32_t reaped;
	/* shared */
	_Alignas(64) _Atomic uint32_t tail;
	_Atomic uint32_t sleeping;
	_Atomic uint32_t stop;
	_Alignas(64) _Atomic uint32_t done;
	_Atomic uint64_t written, bytes, carrier_errors, errors, stalls, signals;
};

static void add(_Atomic uint64_t *counter, uint64_t n)
{
	/* one writer: no locked operation needed */
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* Write one frame; what the kernel refuses is lost and counted, as on the thread-less path. A full
 * device is tried again until it has room or the ring is closed. */
static void write_entry(struct pytcp_txq *q, struct entry *e)
{
	size_t hdr = e->iov[0].iov_base == e->hdr ? e->iov[0].iov_len : 0;
	ssize_t n;

	for (;;) {
		n = writev(q->fd, e->iov, e->niov);
		if (n >= 0) {
			add(&q->written, 1);
			add(&q->bytes, (uint64_t)n - hdr);
			return;
		}
		switch (errno) {
		case EINTR:
			continue;
		case EAGAIN:
		case ENOBUFS:
		case ENOMEM: {
			struct timespec nap = {0, RETRY_NS};

			add(&q->stalls, 1);
			if (atomic_load(&q->stop))
				return;
			nanosleep(&nap, NULL);
			continue;
		}
		case EIO:
		case ENETDOWN:
		case EBADFD:
		case ENODEV:
		case EBADF:
		case ENXIO:
			add(&q->carrier_errors, 1);
			return;
		default:
			add(&q->errors, 1);
			return;
		}
	}
}

static void complete_entry(struct pytcp_txq *q, struct entry *e, uint32_t index)
{
	int called = 0;

	if (e->sock != PYTCP_TX_NOBODY) {
		struct txsock *s = &q->socks[e->sock];

		if (e->flags & QUIET)
			atomic_fetch_sub_explicit(&s->alloc, e->truesize, memory_order_seq_cst);
		else if (txsock_complete(s, e->truesize)) {
			e->flags |= CALLED;
			called = 1;
		}
	}
	atomic_store_explicit(&q->done, index + 1, memory_order_release);
	if (called) {
		uint64_t one = 1;

		/* it fails only when the counter is about to overflow, and then it is readable */
		if (write(q->eventfd, &one, sizeof one) > 0)
			add(&q->signals, 1);
	}
}

/* Wait until something is published behind `index`, or the ring is closed: then 0. */
static int wait_for(struct pytcp_txq *q, uint32_t index)
{
	for (int spin = 0;; spin++) {
		if (atomic_load(&q->stop))
			return 0;
		if (atomic_load(&q->tail) != index)
			return 1;
		if (spin < SPINS) {
			pause_cpu();
			continue;
		}
		atomic_store(&q->sleeping, 1);
		if (atomic_load(&q->tail) != index || atomic_load(&q->stop)) {
			if (atomic_exchange(&q->sleeping, 0))
				continue; /* nobody has seen us asleep */
		}
		while (sem_wait(&q->wake) && errno == EINTR)
			;
		spin = 0;
	}
}

static void wake(struct pytcp_txq *q)
{
	if (atomic_load(&q->sleeping) && atomic_exchange(&q->sleeping, 0))
		sem_post(&q->wake);
}

static void *run(void *arg)
{
	struct pytcp_txq *q = arg;
	uint32_t index = 0;

	while (wait_for(q, index)) {
		struct entry *e = &q->entries[index & q->mask];

		write_entry(q, e);
		if (atomic_load(&q->stop))
			break;
		complete_entry(q, e, index);
		index++;
	}
	return NULL;
}

struct pytcp_txq *pytcp_txq_open(int fd, uint32_t entries, uint32_t socks, int *error)
{
	struct pytcp_txq *q = aligned_alloc(64, sizeof *q);
	sigset_t all, before;
	int failed;

	*error = ENOMEM;
	if (!q)
		return NULL;
	memset(q, 0, sizeof *q);
	q->fd = q->eventfd = -1;
	if (!entries || entries & (entries - 1) || !socks) {
		*error = EINVAL;
		free(q);
		return NULL;
	}
	q->mask = entries - 1;
	q->nsocks = socks;
	q->pid = getpid();
	q->entries = calloc(entries, sizeof *q->entries);
	q->socks = aligned_alloc(64, socks * sizeof *q->socks);
	if (!q->entries || !q->socks)
		goto fail;
	memset(q->socks, 0, socks * sizeof *q->socks);
	/* of our own: whoever closes the device, this number stays ours until the thread has ended */
	q->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	q->eventfd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (q->fd < 0 || q->eventfd < 0 || sem_init(&q->wake, 0, 0)) {
		*error = errno;
		goto fail;
	}
	/* signals are the program's: none is delivered to this thread */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&q->thread, NULL, run, q);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (failed) {
		*error = failed;
		sem_destroy(&q->wake);
		goto fail;
	}
	return q;
fail:
	if (q->fd >= 0)
		close(q->fd);
	if (q->eventfd >= 0)
		close(q->eventfd);
	free(q->entries);
	free(q->socks);
	free(q);
	return NULL;
}

void pytcp_txq_close(struct pytcp_txq *q)
{
	/* after a fork the thread is not there, and the memory is a copy */
	if (q->pid == getpid()) {
		atomic_store(&q->stop, 1);
		wake(q);
		pthread_join(q->thread, NULL);
		sem_destroy(&q->wake);
	}
	close(q->fd);
	close(q->eventfd);
	free(q->entries);
	free(q->socks);
	free(q);
}

int pytcp_txq_eventfd(struct pytcp_txq *q)
{
	return q->eventfd;
}

int pytcp_txq_put(struct pytcp_txq *q, uint32_t sock, uint32_t truesize, int quiet, const void *hdr, size_t hdr_len,
		  const struct pytcp_part *parts, size_t nparts)
{
	struct entry *e = &q->entries[q->head & q->mask];
	int n = 0;

	if (q->head - q->reaped > q->mask)
		return -ENOSPC;
	if (nparts > PYTCP_TX_PARTS || hdr_len > MAX_HDR || (sock != PYTCP_TX_NOBODY && sock >= q->nsocks))
		return -EINVAL;
	if (hdr_len) {
		memcpy(e->hdr, hdr, hdr_len);
		e->iov[n].iov_base = e->hdr;
		e->iov[n++].iov_len = hdr_len;
	}
	for (size_t i = 0; i < nparts; i++) {
		e->iov[n].iov_base = (void *)(uintptr_t)parts[i].base;
		e->iov[n++].iov_len = parts[i].len;
	}
	e->niov = n;
	e->sock = sock;
	e->truesize = truesize;
	e->flags = quiet ? QUIET : 0;
	if (sock != PYTCP_TX_NOBODY)
		atomic_fetch_add_explicit(&q->socks[sock].alloc, truesize, memory_order_relaxed);
	q->head++;
	return 0;
}

void pytcp_txq_publish(struct pytcp_txq *q)
{
	atomic_store(&q->tail, q->head);
	wake(q);
}

uint32_t pytcp_txq_reap(struct pytcp_txq *q, uint8_t *called, uint32_t max)
{
	uint32_t n = atomic_load_explicit(&q->done, memory_order_acquire) - q->reaped;

	if (n > max)
		n = max;
	for (uint32_t i = 0; i < n; i++)
		called[i] = (q->entries[(q->reaped + i) & q->mask].flags & CALLED) != 0;
	q->reaped += n;
	return n;
}

int64_t pytcp_txq_throttle(struct pytcp_txq *q, uint32_t sock, int fence)
{
	return txsock_throttle(&q->socks[sock], fence);
}

int pytcp_txq_throttled(struct pytcp_txq *q, uint32_t sock)
{
	return (int)atomic_load_explicit(&q->socks[sock].throttled, memory_order_relaxed);
}

void pytcp_txq_unthrottle(struct pytcp_txq *q, uint32_t sock)
{
	atomic_store_explicit(&q->socks[sock].throttled, 0, memory_order_relaxed);
}

void pytcp_txq_stats(struct pytcp_txq *q, struct pytcp_txstats *out)
{
	out->written = atomic_load_explicit(&q->written, memory_order_relaxed);
	out->bytes = atomic_load_explicit(&q->bytes, memory_order_relaxed);
	out->carrier_errors = atomic_load_explicit(&q->carrier_errors, memory_order_relaxed);
	out->errors = atomic_load_explicit(&q->errors, memory_order_relaxed);
	out->stalls = atomic_load_explicit(&q->stalls, memory_order_relaxed);
	out->signals = atomic_load_explicit(&q->signals, memory_order_relaxed);
}

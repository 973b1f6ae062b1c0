/* The race of tcp_push and tcp_wfree on real processors, as tight as it gets: one thread pushes, the
 * other completes, both released at the same moment, round after round.
 *
 * Each side prepares what it wrote last in a ring at work: the sender has charged the socket, the
 * completion has taken the flag down. So each line is in the other one's way, as it is there.
 *
 * A round ends stuck when the push held its data back (its second look found the count as it was) and
 * the completion called nobody (it found the flag down). throttle.h has the two functions the ring
 * uses; the others here show what an atomic flag, or a decrement that is no barrier, would do.
 */
#define _GNU_SOURCE
#include "pytcp.h"
#include "throttle.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { OWN = 1, TRUESIZE = 4 };
enum { PATIENCE = 20000, LEAD = 1000 }; /* turns before a processor is given up; ticks from the meeting to the start, enough for both to be there */

struct table {
	struct txsock sock;
	_Alignas(64) _Atomic uint64_t gate[2][8]; /* how far each thread is; on lines of their own */
	_Alignas(64) uint64_t start;		  /* of this round, in ticks */
	_Alignas(64) uint32_t called;		  /* P1's result of this round */
	_Alignas(64) uint64_t rounds;
	uint64_t stuck;
	uint32_t skew, seed;
	int p0, p1;
	int cpu[2];
};

/* Say that we are at `step` and wait for the other, without any locked operation: it would drain the store buffer. */
static void meet(struct table *t, int me, uint64_t step)
{
	uint32_t turns = 0;

	atomic_store_explicit(&t->gate[me][0], step, memory_order_release);
	while (atomic_load_explicit(&t->gate[!me][0], memory_order_acquire) < step)
		if (++turns > PATIENCE) {
			/* the other has lost its processor */
			sched_yield();
			turns = 0;
		}
}

/* A clock both processors agree on; 0 where there is none that costs nothing: then the start is as uneven as the meeting. */
static uint64_t ticks(void)
{
#if defined(__x86_64__) || defined(__i386__)
	return __builtin_ia32_rdtsc();
#else
	return 0;
#endif
}

static void start_at(uint64_t when)
{
	while (ticks() < when)
		;
}

static uint32_t next_random(uint32_t *state)
{
	uint32_t x = *state;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return *state = x;
}

static void loiter(uint32_t turns)
{
	while (turns--)
		__asm__ volatile("");
}

static int push_holds(struct table *t)
{
	struct txsock *s = &t->sock;
	int64_t left;

	if (atomic_load_explicit(&s->alloc, memory_order_relaxed) <= OWN)
		return 0;
	if (t->p0 == PYTCP_P0_LOCKED) {
		atomic_fetch_or_explicit(&s->throttled, 1, memory_order_relaxed);
		left = atomic_load_explicit(&s->alloc, memory_order_relaxed);
	} else {
		left = txsock_throttle(s, t->p0 == PYTCP_P0_FENCE);
	}
	return left > OWN;
}

static uint32_t completion_calls(struct table *t)
{
	struct txsock *s = &t->sock;

	if (t->p1 == PYTCP_P1_LOCKED)
		return txsock_complete(s, TRUESIZE);
	atomic_store_explicit(&s->alloc, OWN, memory_order_release);
	if (!atomic_load_explicit(&s->throttled, memory_order_acquire))
		return 0;
	atomic_store_explicit(&s->throttled, 0, memory_order_release);
	return 1;
}

static void settle_on(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void *pusher(void *arg)
{
	struct table *t = arg;
	uint32_t state = t->seed * 2654435761u | 1;

	settle_on(t->cpu[0]);
	for (uint64_t round = 0; round < t->rounds; round++) {
		uint64_t start;
		int held;

		atomic_store_explicit(&t->sock.alloc, OWN + TRUESIZE, memory_order_relaxed);
		start = ticks();
		if (start)
			start += LEAD;
		t->start = start;
		meet(t, 0, 2 * round + 1);
		start_at(start);
		loiter(t->skew ? next_random(&state) % (t->skew + 1) : 0);
		held = push_holds(t);
		meet(t, 0, 2 * round + 2);
		t->stuck += held && !t->called;
	}
	return NULL;
}

static void *completer(void *arg)
{
	struct table *t = arg;
	uint32_t state = (t->seed + 1) * 2246822519u | 1;

	settle_on(t->cpu[1]);
	for (uint64_t round = 0; round < t->rounds; round++) {
		atomic_store_explicit(&t->sock.throttled, 0, memory_order_relaxed);
		meet(t, 1, 2 * round + 1);
		start_at(t->start);
		loiter(t->skew ? next_random(&state) % (t->skew + 1) : 0);
		t->called = completion_calls(t);
		meet(t, 1, 2 * round + 2);
	}
	return NULL;
}

int64_t pytcp_litmus(int p0, int p1, uint64_t rounds, uint32_t skew, uint32_t seed)
{
	struct table t;
	pthread_t threads[2];
	cpu_set_t allowed;
	int found = 0, failed;

	if (p0 < 0 || p0 > PYTCP_P0_LOCKED || p1 < 0 || p1 > PYTCP_P1_STORE || skew == UINT32_MAX)
		return -EINVAL;
	memset(&t, 0, sizeof t);
	if (sched_getaffinity(0, sizeof allowed, &allowed))
		return -errno;
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &allowed))
			t.cpu[found++] = cpu;
	if (found < 2)
		return -ENOTSUP;
	t.p0 = p0;
	t.p1 = p1;
	t.rounds = rounds;
	t.skew = skew;
	t.seed = seed;
	failed = pthread_create(&threads[0], NULL, pusher, &t);
	if (failed)
		return -failed;
	failed = pthread_create(&threads[1], NULL, completer, &t);
	if (failed) {
		/* let the other through */
		atomic_store(&t.gate[1][0], UINT64_MAX);
		pthread_join(threads[0], NULL);
		return -failed;
	}
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	return (int64_t)t.stuck;
}

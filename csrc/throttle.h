/* The two sides of TSQ_THROTTLED where frames are completed by another thread: the sender that sets
 * the flag and looks again, and the completion that takes a charge back and looks at the flag.
 *
 * Neither may miss the other. The sender's store has to be visible before its second look, which a
 * processor with a store buffer (every x86 too) does not promise for plain accesses: that takes the
 * fence Linux 6.8 added to tcp_push (7267e8dcad6b). So setting, fence and second look are one
 * function, the store is relaxed and never a locked read-modify-write, which would be a fence itself.
 */
#ifndef PYTCP_THROTTLE_H
#define PYTCP_THROTTLE_H

#include <stdatomic.h>
#include <stdint.h>

/* What both threads see of one socket. Flag and count on cache lines of their own. */
struct txsock {
	_Alignas(64) _Atomic int64_t alloc; /* truesize of its frames that are not completed */
	_Alignas(64) _Atomic uint32_t throttled;
};

/* Sender: ask for a call at the next completion; returns what is still charged. */
static inline int64_t txsock_throttle(struct txsock *s, int fence)
{
	atomic_store_explicit(&s->throttled, 1, memory_order_relaxed);
	if (fence)
		atomic_thread_fence(memory_order_seq_cst);
	return atomic_load_explicit(&s->alloc, memory_order_relaxed);
}

/* Completion, as tcp_wfree: take the charge back by a full-barrier operation, then look at the flag.
 * Nonzero: the sender waits to be called, and the flag is down again. */
static inline uint32_t txsock_complete(struct txsock *s, int64_t truesize)
{
	atomic_fetch_sub_explicit(&s->alloc, truesize, memory_order_seq_cst);
	if (!atomic_load_explicit(&s->throttled, memory_order_acquire))
		return 0;
	return atomic_exchange_explicit(&s->throttled, 0, memory_order_acq_rel);
}

#endif

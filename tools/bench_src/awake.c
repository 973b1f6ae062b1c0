/* Keeps one processor from halting: spins on it while nothing else wants it (SCHED_IDLE).

   awake PROCESSOR PARENT     until the process PARENT, which started it, ends */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	cpu_set_t set;
	struct sched_param param = {0};

	if (argc != 3)
		return 2;
	CPU_ZERO(&set);
	CPU_SET(atoi(argv[1]), &set);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || sched_setaffinity(0, sizeof set, &set) || sched_setscheduler(0, SCHED_IDLE, &param)) {
		perror("awake");
		return 1;
	}
	if (getppid() != atoi(argv[2])) /* it ended before it was to be told of */
		return 0;
	for (;;)
#if defined(__x86_64__) || defined(__i386__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#else
		__asm__ volatile("");
#endif
}

// pause holds a Pod's namespaces. It is process 1 of the sandbox: it reaps what
// is re-parented to it (Pods that share a process namespace) and ends at once on
// SIGTERM or SIGINT, so that a sandbox never waits for its grace period.
//
// It is linked without a C library: 10 kB instead of 800, one page of stack, and
// no dynamic loader to start, since this runs once for every Pod. Signals are
// blocked and taken with rt_sigtimedwait, because the kernel drops an unblocked
// signal that process 1 has no handler for, and a handler would need a C library's
// return trampoline.

#define SYS_EXIT_OK 0

#if defined(__x86_64__)
enum { NR_write = 1, NR_rt_sigprocmask = 14, NR_exit = 60, NR_wait4 = 61, NR_rt_sigtimedwait = 128 };

static long call4(long n, long a, long b, long c, long d) {
	register long r10 __asm__("r10") = d;
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return r;
}

__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tand $-16,%rsp\n\tcall run\n");

#elif defined(__aarch64__)
enum { NR_write = 64, NR_exit = 93, NR_rt_sigprocmask = 135, NR_rt_sigtimedwait = 137, NR_wait4 = 260 };

static long call4(long n, long a, long b, long c, long d) {
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x29, #0\n\tbl run\n");

#else
#error "pause is written for x86_64 and aarch64"
#endif

enum { SIGINT_ = 2, SIGTERM_ = 15, SIGCHLD_ = 17, EINTR_ = 4, WNOHANG_ = 1, SIG_BLOCK_ = 0 };

static unsigned long bit(int sig) { return 1UL << (sig - 1); }

__attribute__((noreturn, used)) void run(void) {
	unsigned long set = bit(SIGINT_) | bit(SIGTERM_) | bit(SIGCHLD_);

	if (call4(NR_rt_sigprocmask, SIG_BLOCK_, (long)&set, 0, sizeof set) < 0) {
		static const char msg[] = "pause: cannot block signals\n";
		call4(NR_write, 2, (long)msg, sizeof msg - 1, 0);
		call4(NR_exit, 1, 0, 0, 0);
	}
	for (;;) {
		long sig = call4(NR_rt_sigtimedwait, (long)&set, 0, 0, sizeof set);
		if (sig == SIGINT_ || sig == SIGTERM_)
			call4(NR_exit, SYS_EXIT_OK, 0, 0, 0);
		// Several deaths can merge into one SIGCHLD: reap until none is left.
		while (call4(NR_wait4, -1, 0, WNOHANG_, 0) > 0)
			;
		if (sig < 0 && sig != -EINTR_)
			call4(NR_exit, 1, 0, 0, 0);
	}
}

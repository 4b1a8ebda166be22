/* Memory whose numbers change as soon as they have been read: the second look at one finds another.
 *
 * The pages cannot be touched.  A read faults; the handler opens them and lets the processor do one instruction
 * (the trap flag), after which the number that was read is changed and the pages are closed again. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { TRAP_FLAG = 0x100 };

static struct {
    uint8_t *pages;
    int64_t length, size, n, other, reads, at;
    struct sigaction segv, trap;
} watched;

static void on_access(int number, siginfo_t *info, void *context)
{
    const int64_t offset = (uint8_t *)info->si_addr - watched.pages;
    if (offset < 0 || offset >= watched.length) {
        sigaction(number, &watched.segv, NULL); /* not ours: it faults again */
        return;
    }
    watched.at = offset / watched.size;
    mprotect(watched.pages, (size_t)watched.length, PROT_READ | PROT_WRITE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void on_step(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    if (watched.at < watched.n) {
        memcpy(watched.pages + watched.at * watched.size, &watched.other, (size_t)watched.size);
        watched.reads++;
    }
    mprotect(watched.pages, (size_t)watched.length, PROT_NONE);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
}

/* Each of n numbers of `size` bytes becomes the other one when it is read.  One such memory at a time. */
void watch(void *pages, int64_t length, int64_t size, int64_t n, int64_t other)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_flags = SA_SIGINFO;
    watched.pages = pages;
    watched.length = length;
    watched.size = size;
    watched.n = n;
    watched.other = other;
    watched.reads = 0;
    action.sa_sigaction = on_access;
    sigaction(SIGSEGV, &action, &watched.segv);
    action.sa_sigaction = on_step;
    sigaction(SIGTRAP, &action, &watched.trap);
    mprotect(pages, (size_t)length, PROT_NONE);
}

/* How many reads there were. */
int64_t unwatch(void)
{
    mprotect(watched.pages, (size_t)watched.length, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &watched.segv, NULL);
    sigaction(SIGTRAP, &watched.trap, NULL);
    return watched.reads;
}

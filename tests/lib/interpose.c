/* Preloaded into a child process, to disturb it at its system calls (interposed.py).
 *
 * DISTURB=before    SIGALRM before each call on a message queue and before each sleep
 *         after     likewise after it
 *         instead   every other call that waits ends with EINTR and SIGALRM, having done nothing
 *         clock     the wall clock jumps ten years at each look; the monotonic clock does not
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/time.h>
#include <time.h>

static int disturb(const char *how)
{
    static const char *asked;
    if (asked == NULL)
        asked = getenv("DISTURB") ? getenv("DISTURB") : "";
    return strcmp(asked, how) == 0;
}

static void interrupt(const char *when)
{
    int saved = errno;
    if (disturb(when))
        raise(SIGALRM);
    errno = saved;
}

static int interrupt_instead(int waits)
{
    static __thread unsigned turn;
    if (!waits || !disturb("instead") || turn++ % 2)
        return 0;
    raise(SIGALRM);
    errno = EINTR;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t msgrcv(int id, void *message, size_t size, long type, int flags)
{
    ssize_t n;
    if (interrupt_instead(!(flags & IPC_NOWAIT)))
        return -1;
    if (flags & IPC_NOWAIT) /* before a call that waits, a signal is noticed only when the wait ends */
        interrupt("before");
    n = REAL(msgrcv)(id, message, size, type, flags);
    interrupt("after");
    return n;
}

int msgsnd(int id, const void *message, size_t size, int flags)
{
    int status;
    interrupt("before");
    status = REAL(msgsnd)(id, message, size, flags);
    interrupt("after");
    return status;
}

int msgctl(int id, int command, struct msqid_ds *data)
{
    int status;
    interrupt("before");
    status = REAL(msgctl)(id, command, data);
    interrupt("after");
    return status;
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    int status;
    if (interrupt_instead(1))
        return -1;
    interrupt("before");
    status = REAL(nanosleep)(wanted, left);
    interrupt("after");
    return status;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    static int looks;
    int status = REAL(clock_gettime)(clock, t);
    if (disturb("clock") && clock == CLOCK_REALTIME)
        t->tv_sec += looks++ % 2 ? 315360000 : -315360000;
    return status;
}

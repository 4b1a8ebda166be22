/* Preloaded into processes: the wall clock is set while they run, as an operator or NTP sets it.
 *
 * SET_CLOCK names a file that all of them share: a number n, then n pairs of int64, the real time at which the
 * clock was set and by how much it is off since then, both in ns.  A stamp that the kernel took is moved by what
 * held when it was taken: of files in /proc/sysvipc and of msgctl.  The monotonic clock stays as it is.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define S 1000000000LL
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile int64_t *sets;

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("SET_CLOCK");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC) : -1;
    void *memory = file < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    sets = memory == MAP_FAILED ? NULL : memory;
}

static int64_t moved(int64_t real)
{
    for (int64_t n = sets ? sets[0] : 0; n > 0; n--)
        if (sets[2 * n - 1] <= real)
            return real + sets[2 * n];
    return real;
}

static int64_t now(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    return moved(t.tv_sec * S + t.tv_nsec);
}

/* What the kernel's whole seconds say; the second in which the clock was set belongs to the new time. */
static time_t stamped(time_t seconds)
{
    int64_t last = seconds * S + S - 1;
    return seconds ? (time_t)(seconds + (moved(last) - last) / S) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int64_t ns;
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, t);
    ns = now();
    t->tv_sec = ns / S;
    t->tv_nsec = ns % S;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    int64_t ns = now();
    (void)zone;
    t->tv_sec = ns / S;
    t->tv_usec = ns % S / 1000;
    return 0;
}

time_t time(time_t *t)
{
    time_t seconds = now() / S;
    if (t)
        *t = seconds;
    return seconds;
}

int msgctl(int id, int command, struct msqid_ds *data)
{
    int status = REAL(msgctl)(id, command, data);
    if (status >= 0 && (command == IPC_STAT || command == MSG_STAT)) {
        data->msg_stime = stamped(data->msg_stime);
        data->msg_rtime = stamped(data->msg_rtime);
        data->msg_ctime = stamped(data->msg_ctime);
    }
    return status;
}

/* /proc/sysvipc/msg, whose last three columns are stamps. */
static int open_table(int real)
{
    int copy = memfd_create("msg", MFD_CLOEXEC);
    FILE *from = fdopen(real, "r");
    char line[512];
    while (fgets(line, sizeof line, from)) {
        long stamps[3];
        int at = 0;
        sscanf(line, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s%n %ld %ld %ld", &at, stamps, stamps + 1,
               stamps + 2);
        if (strstr(line, "msqid") || !at)
            dprintf(copy, "%s", line);
        else
            dprintf(copy, "%.*s %ld %ld %ld\n", at, line, (long)stamped(stamps[0]), (long)stamped(stamps[1]),
                    (long)stamped(stamps[2]));
    }
    fclose(from);
    lseek(copy, 0, SEEK_SET);
    return copy;
}

static int opened(const char *path, int flags, mode_t mode)
{
    int file = REAL(open)(path, flags, mode);
    return file < 0 || !sets || strcmp(path, "/proc/sysvipc/msg") ? file : open_table(file);
}

int open(const char *path, int flags, ...)
{
    va_list more;
    mode_t mode;
    va_start(more, flags);
    mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

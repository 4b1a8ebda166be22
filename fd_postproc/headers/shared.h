/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers of a tensor that Paddle has pickled: a file of shared memory each.
 *
 * The file begins with FDH_HEAD bytes, the first four of which count who still needs it; whoever counts it down
 * to zero removes it (Paddle's RefcountedMemoryMapAllocation).  The sender has counted the receiver in.
 * fdh_read allocates.
 */
#ifndef FD_POSTPROC_SHARED_H
#define FD_POSTPROC_SHARED_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FDH_HEAD 64
#define FDH_FOLDER "/dev/shm" /* where shm_open, which older libraries keep in librt, finds its names */
#define FDH_NAME 64           /* bytes of a name, the last one 0; Paddle's have about 30 */

/* Copy the `size` bytes of a file, and let go of it; `to` NULL: let go of it only.
 * 0, or -1 if there is no such file, or a shorter one; nothing was changed then. */
static int fdh_take(const char *name, void *to, int64_t size)
{
    char path[sizeof(FDH_FOLDER) + FDH_NAME];
    struct stat file;
    char *pages;
    int fd, left;
    if (name[0] != '/' || strchr(name + 1, '/') != NULL || size < 0)
        return -1;
    snprintf(path, sizeof(path), FDH_FOLDER "%s", name);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    /* Memory behind the end of a file must not be touched. */
    if (fstat(fd, &file) < 0 || !S_ISREG(file.st_mode) || file.st_size - FDH_HEAD < size) {
        close(fd);
        return -1;
    }
    pages = mmap(NULL, (size_t)(FDH_HEAD + size), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    close(fd);
    if (pages == MAP_FAILED)
        return -1;
    if (to != NULL)
        memcpy(to, pages + FDH_HEAD, (size_t)size);
    left = __atomic_sub_fetch((int *)pages, 1, __ATOMIC_SEQ_CST);
    munmap(pages, (size_t)(FDH_HEAD + size));
    if (left == 0)
        unlink(path);
    return 0;
}

/* The numbers of one file: still there, in memory, or gone. */
enum { FDH_WAITS, FDH_READ, FDH_LOST, FDH_LEFT };

typedef struct {
    char name[FDH_NAME];
    int64_t size;
    void *numbers;
    int state;
} fdh_file;

static inline void fdh_read(fdh_file *f)
{
    if (f->state != FDH_WAITS)
        return;
    f->numbers = malloc(f->size > 0 ? (size_t)f->size : 1);
    f->state = f->numbers != NULL && fdh_take(f->name, f->numbers, f->size) == 0 ? FDH_READ : FDH_LOST;
}

static inline void fdh_let_go(fdh_file *f)
{
    if (f->state == FDH_WAITS)
        fdh_take(f->name, NULL, f->size);
    f->state = FDH_LEFT;
    free(f->numbers);
    f->numbers = NULL;
}

#endif

/* A writer of the flight recorder that dies in the middle of an entry: the page with the rest of the entry cannot
 * be written to.  Prints the check word that it leaves, for an end behind each of the entry's words; the entry was
 * used before, so that a whole one lies there. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fd_postproc/headers/flight.h"

#define ENTRIES 64

static sigjmp_buf before;

static void died(int number)
{
    siglongjmp(before, number);
}

static void write_one(fdb_ring *ring)
{
    fdb_entry entry;
    memset(&entry, 7, sizeof entry);
    fdb_put(ring, &entry);
}

int main(void)
{
    const long page = sysconf(_SC_PAGESIZE), head = (FDB_HEAD + ENTRIES * FDB_ENTRY) / page + 2;
    static const uint8_t key[FDB_KEY];
    signal(SIGSEGV, died);
    signal(SIGBUS, died);
    for (volatile int words = 2; words < FDB_ENTRY / 8; words++) {
        uint8_t *pages = mmap(NULL, (size_t)(2 * head * page), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint8_t *end = pages + head * page, *at = end - 8 * words; /* the entry, over the end of a page */
        uint8_t *memory = at - FDB_HEAD - FDB_ENTRY;               /* whose place is the first: 1 */
        fdb_ring ring;
        if (pages == MAP_FAILED)
            return 2;
        fdb_begin(&ring, memory, FDB_HEAD + ENTRIES * FDB_ENTRY, key);
        for (int n = 0; n < ENTRIES; n++)
            write_one(&ring);
        mprotect(end, (size_t)(head * page), PROT_READ);
        if (sigsetjmp(before, 1) == 0) {
            write_one(&ring);
            printf("%d whole\n", words);
        } else {
            uint32_t check;
            memcpy(&check, at + 8, sizeof check);
            printf("%d %u\n", words, check);
        }
        munmap(pages, (size_t)(2 * head * page));
    }
    return 0;
}

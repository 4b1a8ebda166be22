/* Reassembly with little room, for Python to drive beside the reference, on a clock of its own. */
#define FDF_LEAST_ROOM 4096
#define FDW_MOST_EXTRA 0
#define FDF_MOST_KNOWN 3
#define FDF_MOST_REMEMBERED 4
#define FDF_BUCKET_BITS 3
#include <stdlib.h>

#include "fd_postproc/headers/frames.h"

typedef struct {
    fdf_assembly frames;
    fdw_layout layout;
    int channel;
} assembly;

assembly *begin(int max_batch, int top_k, int max_draft, int spec_batch, int channel, uint64_t seed, uint32_t service)
{
    const fdw_layout layout = {max_batch, top_k, max_draft, spec_batch};
    assembly *a = calloc(1, sizeof *a);
    a->layout = layout;
    a->channel = channel;
    fdf_begin(&a->frames, &a->layout, channel, 1, seed);
    a->frames.service = service;
    return a;
}

void end(assembly *a)
{
    fdf_free(&a->frames);
    free(a);
}

/* An enum fdf_result.  *seq, *sender: of the frame, if it is whole. */
int accept_one(assembly *a, const void *data, int64_t size, int64_t now, uint64_t *sender, uint64_t *seq)
{
    fdw_message m;
    fdw_fault fault;
    const int status = fdf_accept(&a->frames, &a->layout, a->channel, data, size, now, &m, &fault);
    *sender = status == FDF_WHOLE ? m.sender : 0;
    *seq = status == FDF_WHOLE ? m.seq : 0;
    return status;
}

int64_t fragments(const assembly *a)
{
    return a->frames.fragments;
}

int64_t foreign(const assembly *a)
{
    return a->frames.foreign;
}

int64_t incomplete(const assembly *a)
{
    return a->frames.incomplete;
}

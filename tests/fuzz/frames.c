/* Fuzz target: the pieces of frames of many senders, with little room, and the bookkeeping after each.
 *
 * Input: four bytes a message: which sender; what it does (its frame's next piece, the first piece of another
 * frame, a piece out of turn, a whole frame); the size of its frame; the size of a piece, and how much time
 * passes.  A frame holds codes only, made of sender and number, so that a mixed one shows.
 */
#define FDF_LEAST_ROOM 2048
#define FDF_MOST_KNOWN 3
#define FDF_MOST_REMEMBERED 4
#define FDF_BUCKET_BITS 3 /* several senders in a bucket */
#include "check.h"

enum { SENDERS = 24, MOST_REQUESTS = 64 };

static const fdw_layout LAYOUT = {MOST_REQUESTS, 1, 1, MOST_REQUESTS};

/* What a sender is at. */
typedef struct {
    uint64_t seq;
    int32_t batch;
    int32_t piece;      /* body bytes of a fragment */
    int32_t next;       /* fragment to be sent next */
} speaker;

static int32_t code_of(uint64_t sender, uint64_t seq, int32_t i)
{
    return -1 - (int32_t)((sender * 1000003 + seq * 8191 + (uint64_t)i * 31) % 1000000);
}

static void check_books(const fdf_assembly *a)
{
    int64_t strangers = 0, known = 0, taken = 0, senders = 0, in_buckets = 0;
    int32_t n_known = 0, n_remembered = 0;
    for (int list = 0; list < FDF_LISTS; list++) {
        const fdf_sender *before = NULL;
        INSIST((a->used >> list & 1) == (a->lists[list].oldest != NULL));
        for (const fdf_sender *s = a->lists[list].oldest; s != NULL; before = s, s = s->newer) {
            INSIST(s->list == list && s->older == before && fdf_find(a, s->id) == s);
            INSIST((s->data != NULL) == (list < FDF_SIZES || list == FDF_KNOWN_OPEN));
            INSIST((s->completed > 0) == (list == FDF_KNOWN_OPEN || list == FDF_KNOWN_IDLE));
            INSIST(s->data == NULL || (s->filled <= s->room && s->room <= (int64_t)s->header.total));
            INSIST(list >= FDF_SIZES || (list == fdf_size_class(s->filled) && 2 * s->room <= 3 * s->filled));
            INSIST(before == NULL || list == FDF_KNOWN_IDLE || list == FDF_REMEMBERED || before->turn < s->turn);
            senders++;
            n_known += s->completed > 0;
            n_remembered += list == FDF_REMEMBERED;
            taken += s->data != NULL && s->completed == 0 ? s->room : 0;
            strangers += s->data != NULL && s->completed == 0 ? s->filled + FDF_ENTRY_COST : 0;
            known += s->data != NULL && s->completed > 0 ? s->room + FDF_ENTRY_COST : 0;
        }
        INSIST(a->lists[list].newest == before);
    }
    for (int k = 0; a->buckets != NULL && k < 1 << FDF_BUCKET_BITS; k++)
        for (const fdf_sender *s = a->buckets[k]; s != NULL; s = s->next)
            in_buckets++;
    INSIST(in_buckets == senders);
    INSIST(a->n_known == n_known && n_known <= FDF_MOST_KNOWN);
    INSIST(a->n_remembered == n_remembered && n_remembered <= FDF_MOST_REMEMBERED);
    INSIST(a->strangers == strangers && strangers <= a->limit && 2 * taken <= 3 * a->limit);
    INSIST(a->known == known && known <= FDF_KNOWN_ROOMS * a->limit);
}

/* Send a piece of a speaker's frame, or all of it; what came of it. */
static int say(fdf_assembly *a, uint64_t sender, const speaker *of, int32_t fragment, int32_t fragments, int64_t now,
               fdw_message *m)
{
    const int32_t size = 4 * of->batch, from = fragments == 1 ? 0 : fragment * of->piece;
    const int32_t length = fragments == 1 || size - from < of->piece ? size - from : of->piece;
    uint8_t *message = exactly(FDW_FRAME_HEADER + length);
    fdw_frame_header h;
    fdw_fault fault;
    int status;
    memset(&h, 0, sizeof h);
    h.words[0] = -2;
    h.magic = FDW_MAGIC;
    h.version = FDW_VERSION;
    h.channel = FDW_SPEC;
    h.batch = of->batch;
    h.cols = 1;
    h.total = (uint32_t)(FDW_FRAME_HEADER + size);
    h.seq = of->seq;
    h.sender = sender;
    h.fragment = (uint16_t)fragment;
    h.fragments = (uint16_t)fragments;
    memcpy(message, &h, sizeof h);
    for (int32_t at = 0; at < length; at += 4) {
        const int32_t code = code_of(sender, of->seq, (from + at) / 4);
        memcpy(message + FDW_FRAME_HEADER + at, &code, sizeof code);
    }
    status = fdf_accept(a, &LAYOUT, FDW_SPEC, message, FDW_FRAME_HEADER + length, now, m, &fault);
    INSIST(status == FDF_MORE || status == FDF_WHOLE);
    if (status == FDF_WHOLE) {
        INSIST(m->sender == sender && m->seq == of->seq && m->batch == of->batch);
        for (int32_t i = 0; i < m->batch; i++) {
            int32_t count;
            INSIST(fdw_count(m, i, &count) == 0 && count == code_of(sender, of->seq, i));
        }
    }
    free(message);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fdf_assembly frames;
    speaker speakers[SENDERS] = {{0, 0, 0, 0}};
    int64_t now = 1, pieces = 0;
    fdf_begin(&frames, &LAYOUT, FDW_SPEC, 0, size);
    for (; size >= 4; data += 4, size -= 4) {
        const int64_t lost = frames.incomplete;
        const int which = data[0] % SENDERS, how = data[1] % 8;
        speaker *s = &speakers[which];
        int32_t fragments;
        fdw_message m;
        now += data[3] < 0xF0 ? 1000 : data[3] < 0xFE ? FDF_IDLE_NS : FDF_SILENT_NS;
        if (how >= 6 || s->batch == 0 || s->next * s->piece >= 4 * s->batch) { /* another frame */
            s->seq++;
            s->batch = 2 + data[2] % (MOST_REQUESTS - 1);
            s->piece = 4 * (1 + data[3] % (s->batch - 1));
            s->next = 0;
        }
        fragments = (4 * s->batch + s->piece - 1) / s->piece;
        if (how == 5) {
            INSIST(say(&frames, (uint64_t)which, s, 0, 1, now, &m) == FDF_WHOLE);
            s->next = fragments;
        } else if (how == 4) { /* out of turn */
            if (say(&frames, (uint64_t)which, s, data[2] % fragments, fragments, now, &m) == FDF_WHOLE)
                s->next = fragments;
            pieces++;
        } else {
            const int last = s->next == fragments - 1;
            const fdf_sender *known = fdf_find(&frames, (uint64_t)which);
            const int open = known != NULL && known->data != NULL && known->header.fragment + 1 == s->next;
            const int status = say(&frames, (uint64_t)which, s, s->next, fragments, now, &m);
            INSIST((status == FDF_WHOLE) == (last && open && s->next > 0));
            s->next++;
            pieces++;
        }
        INSIST(frames.fragments == pieces && frames.incomplete >= lost);
        check_books(&frames);
    }
    fdf_free(&frames);
    return 0;
}

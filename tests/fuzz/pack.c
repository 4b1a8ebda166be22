/* Fuzz target: a save op's tensors into a message, which is then cut, put together and read again.
 *
 * Input: 12 bytes of sizes and flags, then the numbers of the tensors, used in turns when they run out.
 */
#include "check.h"

#include "fd_postproc/headers/pack.h"

typedef struct {
    const uint8_t *data;
    size_t size;
    size_t at;
} bytes;

static uint8_t next_byte(bytes *from)
{
    return from->size ? from->data[from->at++ % from->size] : 0;
}

/* Mostly small numbers, now and then one of the limits. */
static int64_t next_number(bytes *from)
{
    static const int64_t LIMITS[] = {INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1, (int64_t)INT32_MIN - 1,
                                     INT64_MAX, INT64_MIN, -9, -3};
    const uint8_t byte = next_byte(from);
    return byte < 0xF8 ? (int8_t)(byte + 8) % 16 : LIMITS[byte & 7];
}

static int64_t *numbers(bytes *from, int64_t n)
{
    int64_t *to = exactly(8 * n);
    for (int64_t k = 0; k < n; k++)
        to[k] = next_number(from);
    return to;
}

static int32_t *small_numbers(bytes *from, int64_t n)
{
    int32_t *to = exactly(4 * n);
    for (int64_t k = 0; k < n; k++)
        to[k] = (int32_t)next_number(from);
    return to;
}

/* Cut a frame to a limit and put it together: byte for byte what it was. */
static void in_pieces(const fdw_message *m, const fdw_layout *layout, const fdw_draft *whole, int64_t limit)
{
    fdf_sending sending;
    fdf_assembly frames;
    fdw_message got;
    fdw_fault fault;
    uint8_t *buffer = exactly(FDF_MTYPE_SIZE + whole->size);
    int status = FDF_MORE;
    memcpy(buffer + FDF_MTYPE_SIZE, whole->data, (size_t)whole->size);
    fdf_begin(&frames, layout, m->channel, 1, (uint64_t)limit);
    if (fdf_cut(&sending, buffer, whole->size, limit) == 0) {
        for (; sending.next < sending.fragments; sending.next++) {
            int64_t size;
            const uint8_t *piece = fdf_piece(&sending, &size);
            INSIST(status == FDF_MORE && size <= limit && size == fdf_piece_size(&sending));
            status = fdf_accept(&frames, layout, m->channel, piece + FDF_MTYPE_SIZE, size, 0, &got, &fault);
        }
        INSIST(status == FDF_WHOLE && frames.incomplete == 0);
        INSIST(got.size == whole->size && memcmp(got.data, whole->data, (size_t)whole->size) == 0);
    } else {
        INSIST(limit < FDF_LEAST_LIMIT);
    }
    fdf_free(&frames);
    free(buffer);
}

/* Write other numbers into everything that decides where something is read or written. */
static void scramble(const fdp_source *s, bytes *from)
{
    const void *numbers[] = {s->counts, s->offsets, s->decoded, s->preempted};
    for (int which = 0; which < 4; which++)
        for (int32_t i = 0; numbers[which] != NULL && i < s->batch; i++)
            ((int32_t *)(uintptr_t)numbers[which])[i] = next_byte(from) * (next_byte(from) & 1 ? 8000000 : 1) - 2;
    for (int32_t i = 0; i < s->batch; i++) {
        ((int64_t *)(uintptr_t)s->prompts)[i] = next_byte(from);
        ((int64_t *)(uintptr_t)s->steps)[i] = next_byte(from) & 1;
        for (int64_t j = 0; fdp_one_token(s->op) && j < s->width; j++)
            ((int64_t *)(uintptr_t)s->tokens)[i * s->width + j] = next_byte(from) - 128;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fdp_source s;
    fdp_fault fault;
    fdw_message m;
    fdw_draft draft;
    fdp_settled *settled;
    bytes from = {data + 12, size - 12, 0};
    const fdw_layout *layout;
    float *scores;
    int dialect;
    int64_t limit;
    if (size < 12)
        return 0;
    memset(&s, 0, sizeof s);
    layout = &LAYOUTS[data[0] % (N_LAYOUTS - 1)];
    s.op = data[1] % 6;
    dialect = data[2] % 3;
    s.batch = data[3] % 12;
    s.cols = fdw_has_logprobs(fdp_channel(s.op)) ? 1 + data[4] % 24 : 1;
    s.width = data[5] % 9;
    s.rows = data[6] % 70;
    s.skip_prefill = data[7] & 1;
    s.flag = "\0\3\4"[data[8] % 3]; /* its caller has checked that */
    s.stop_flag = (int8_t)data[9];
    limit = FDF_LEAST_LIMIT - 8 + data[10];
    s.depth = fdw_geometry_of(layout, fdp_channel(s.op), FDW_LEGACY, 0).depth;
    if (s.op == FDP_SAVE_OUTPUT || s.op == FDP_SAVE_OUTPUT_TOPK)
        s.width = 1; /* its caller has checked that */
    else if (s.width == 0)
        s.width = 1;
    s.tokens = numbers(&from, s.batch * s.width);
    s.ids = numbers(&from, s.rows * s.cols);
    s.ranks = numbers(&from, s.rows);
    s.counts = small_numbers(&from, s.batch);
    s.offsets = small_numbers(&from, s.batch);
    s.prompts = numbers(&from, s.batch);
    s.steps = numbers(&from, s.batch);
    s.decoded = data[11] & 1 ? small_numbers(&from, s.batch) : NULL;
    s.preempted = data[11] & 2 ? small_numbers(&from, s.batch) : NULL;
    s.scores = scores = exactly(4 * s.rows * s.cols);
    for (int64_t k = 0; k < s.rows * s.cols; k++)
        scores[k] = (float)next_byte(&from) - 128;
    fault.reason = -1;
    settled = exactly((int64_t)sizeof *settled * s.batch);
    if (fdp_plan(&m, &s, layout, dialect, settled, &fault) == 0) {
        if (data[11] & 4) /* the tensors change: what was decided stays */
            scramble(&s, &from);
        m.seq = 7;
        m.sender = 11;
        draft.size = m.claimed;
        draft.data = exactly(m.claimed);
        if (fdp_write(&m, &s, settled, &draft, &fault) == 0) {
            fdw_fault wire;
            fdw_message got;
            int status;
            if (dialect == FDW_COMPACT)
                fdw_seal(draft.data, draft.size);
            status = dialect == FDW_COMPACT
                ? fdw_open_frame(&got, layout, m.channel, draft.data, draft.size, 1, &wire)
                : fdw_open(&got, layout, m.channel, draft.data, draft.size, &wire);
            INSIST(status == 0 && got.batch == s.batch && got.rows == m.rows && got.stop_flag == s.stop_flag);
            check_message(&got, layout);
            if (dialect == FDW_COMPACT)
                in_pieces(&m, layout, &draft, limit);
        } else {
            INSIST(fault.reason >= 0);
        }
        free(draft.data);
    } else {
        INSIST(fault.reason >= 0);
    }
    free(settled);
    free((void *)s.tokens);
    free((void *)s.ids);
    free((void *)s.ranks);
    free((void *)s.counts);
    free((void *)s.offsets);
    free((void *)s.prompts);
    free((void *)s.steps);
    free((void *)s.decoded);
    free((void *)s.preempted);
    free(scores);
    return 0;
}

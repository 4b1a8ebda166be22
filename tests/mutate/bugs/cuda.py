"""Planted bugs of the kernel and of the ring of messages from a GPU."""

from tests.mutate.bug import in_file

KERNEL = "tests/cuda/test_kernel.py"
SAVES = (
    "tests/cuda/saves/test_refused.py tests/cuda/saves/test_messages.py tests/cuda/saves/test_process_end.py"
)

BUGS = [
    in_file(
        "cuda/ring_sender.h",
        SAVES,
        (
            "the 17th error is written behind the array",
            "if (r->n_errors < FDR_MOST_ERRORS)",
            "if (r->n_errors <= FDR_MOST_ERRORS)",
        ),
        ("errors beyond those that are kept are not counted", "r->more_errors++;", ";"),
        (
            "a frame has the number before",
            "memcpy(message + FDF_MTYPE_SIZE + 4 * slot->seq_word, &queue->seq",
            "memcpy(message + FDF_MTYPE_SIZE + 4 * slot->seq_word, &queue->frames",
        ),
        ("a wide number is sent", "if (result->wide != 0) {", "if (result->wide == 1) {"),
        (
            "a refused message is sent",
            "if (result->length == FDK_REFUSED) {",
            "if (result->length == FDK_REFUSED - 1) {",
        ),
    ),
    in_file(
        "cuda/ring_save.h",
        SAVES,
        ("draining ends before the last", "done = r->finished >= goal;", "done = r->finished + 1 >= goal;"),
        (
            "the newest error is lost",
            "memmove(r->errors, r->errors + 1,",
            "memmove(r->errors, r->errors + 2,",
        ),
        ("more errors are told again and again", "if (r->n_errors == 0)\n        r->more_errors = 0;", ";"),
    ),
    in_file(
        "cuda/scan.h",
        KERNEL,
        ("parts are not combined", "a.end > b.end ? a.end : b.end", "a.end < b.end ? a.end : b.end"),
        ("the last bad request is named", "a.bad < b.bad ? a.bad : b.bad", "a.bad > b.bad ? a.bad : b.bad"),
        (
            "one request too few",
            "const int32_t each = (batch + threads - 1) / threads;",
            "const int32_t each = batch / threads;",
        ),
        ("groups are shifted", "for (int32_t k = 0; k < group; k++)", "for (int32_t k = 1; k < group; k++)"),
    ),
    in_file(
        "cuda/emit.h",
        KERNEL,
        (
            "wide numbers are cut",
            "if (is_read && value != (int32_t)value)",
            "if (0 && value != (int32_t)value)",
        ),
        (
            "words behind the end",
            "if (at >= 0 && at < m->size && at < m->job->capacity)",
            "if (at >= 0 && at < m->job->capacity)",
            "equivalent: only a mistake of the phases would put one there; the PTX's stores are checked one by one",
        ),
    ),
]

"""Planted bugs of the plain C headers."""

from tests.mutate.bug import in_file

HEADERS = "fd_postproc/headers"
CORE = "tests/core"
GATE = f"{CORE}/test_malformed.py {CORE}/test_frames.py {CORE}/test_sections.py"
SAVES = "tests/ops/test_save_defects.py tests/ops/test_save_ops.py tests/ops/test_save_limits.py"
REASSEMBLY = f"{CORE}/test_reassembly.py {CORE}/test_fragments.py {CORE}/test_sender.py"

BUGS = [
    in_file(
        f"{HEADERS}/gate.h",
        GATE,
        ("one slot more than there are", "m->batch > m->at.slots)", "m->batch > m->at.slots + 1)"),
        ("a negative batch", "if (m->batch < 0 || m->batch", "if (m->batch"),
        (
            "one column more than there are",
            "if (m->cols > m->at.width)\n        return fdw_refuse(fault, FDW_COLUMNS, -1, m->cols, m->at.width);\n    if (!fdw_is_flag(m->flag))\n        return",
            "if (m->cols > m->at.width + 1)\n        return fdw_refuse(fault, FDW_COLUMNS, -1, m->cols, m->at.width);\n    if (!fdw_is_flag(m->flag))\n        return",
        ),
        (
            "a count of one more than the depth",
            "if (count > depth || (count",
            "if (count > depth + 1 || (count",
        ),
        ("a count of 0 where there is none", "(count == 0 && !may_be_0)", "(count == 0 && may_be_0)"),
        (
            "rows of codes are counted",
            "rows += count > 0 ? count : 0;\n        end",
            "rows += count != 0 ? 1 : 0;\n        end",
        ),
        (
            "reading one byte behind the end",
            "offset <= m->size - length ? m->data",
            "offset <= m->size - length + 1 ? m->data",
        ),
        (
            "ranks without the last",
            "+ 4 * (int64_t)rows; /* ranks lie last */",
            "+ 4 * (int64_t)(rows - 1); /* ranks lie last */",
        ),
        (
            "the length is not compared with the claims",
            "if (fdw_check_counts(m, fault) < 0)\n        return -1;\n    if (size < m->claimed)",
            "if (fdw_check_counts(m, fault) < 0)\n        return -1;\n    if (size < 0)",
        ),
        ("the magic is not looked at", "if (h->magic != FDW_MAGIC)", "if (h->magic == 0)"),
        ("the version is not looked at", "if (h->version != FDW_VERSION)", "if (h->version == 0)"),
        ("a fragment behind the last", "if (h->fragment >= h->fragments)", "if (h->fragment > h->fragments)"),
        (
            "a frame without columns",
            "h->cols < 1 || h->cols > fdw_width",
            "h->cols < 0 || h->cols > fdw_width",
        ),
        (
            "a flag on a channel that has none",
            "if (channel != FDW_SPEC_TOPK && h->flag != 0)",
            "if (channel == FDW_SPEC && h->flag != 0)",
        ),
        (
            "rows beyond the layout",
            "h->rows < 0 || h->rows > most_rows",
            "h->rows < 0 || h->rows > 2 * most_rows",
        ),
        (
            "sections may be a byte longer",
            "h->total > m->extra + most_extra)\n            return",
            "h->total > m->extra + most_extra + 8)\n            return",
        ),
        (
            "exactly the longest sections are refused",
            "h->total > m->extra + most_extra)\n            return",
            "h->total >= m->extra + most_extra)\n            return",
        ),
        (
            "a frame longer than it says",
            "if (size != m->claimed)\n        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);\n    if (verify",
            "if (size < m->claimed)\n        return fdw_refuse(fault, FDW_LENGTH, -1, size, m->claimed);\n    if (verify",
        ),
        ("rows that do not agree with the counts", "if (h.rows != m->rows)", "if (h.rows < m->rows)"),
        (
            "negative tokens are not looked for",
            "row++), &token) < 0 || token < 0)",
            "row++), &token) < 0 || token < -99)",
        ),
        (
            "a checksum is never wrong",
            "return h->checksum == expected ?",
            "return h->checksum != 0 || h->checksum == expected ?",
            f"{CORE}/test_integrity.py",
        ),
        ("a section twice", "if (seen[k] == s.name)", "if (seen[k] == s.name + 1)"),
        ("an unknown section that is required", "s.marks & FDZ_REQUIRED && !", "s.marks > FDZ_REQUIRED && !"),
        (
            "a short plain message",
            "m->size == fdw_place(&at.ids, m->batch, 0))",
            "m->size == fdw_place(&at.ids, m->batch, 1))",
            "equivalent: the last argument is multiplied by dense, which is 0 in FastDeploy's messages",
        ),
    ),
    in_file(
        f"{HEADERS}/sections.h",
        f"{CORE}/test_sections.py {CORE}/test_numbers_of_tensors.py",
        (
            "a section behind the end",
            "if (s->length < 0 || s->length > size - s->begin",
            "if (s->length < 0 || s->length > size",
            "equivalent: the padded length has to fit, too; this only keeps the padding from overflowing",
        ),
        (
            "sections without their padding",
            "*at = s->begin + fdz_padded(s->length);",
            "*at = s->begin + s->length;",
        ),
        ("masks for one request more", "if (m->slots != slots)", "if (m->slots < slots)"),
        (
            "more masks than there is room",
            "m->masks < 0 || m->masks > *bound",
            "m->masks < 0 || m->masks > *bound + 1",
        ),
        (
            "a count of masks below one mask",
            "if (count < FDZ_ONE_MASK || count > *bound)",
            "if (count > *bound)",
        ),
        ("masks that nobody has", "if (told != m->masks)", "if (told > m->masks)"),
        ("masks that run backwards", "if (begin < last || begin > ids", "if (begin > ids"),
        ("the first mask begins later", "(k == 0 && begin != 0)", "(k == 0 && begin < 0)"),
    ),
    in_file(
        f"{HEADERS}/senders.h",
        f"{REASSEMBLY} {CORE}/test_floods.py",
        ("room of strangers is never given back", "a->strangers -= s->filled + FDF_ENTRY_COST;", ";"),
        ("room of known senders is never given back", "a->known -= s->room + FDF_ENTRY_COST;", ";"),
        (
            "the silent are never given up",
            "now - list->oldest->heard >= FDF_SILENT_NS",
            "now - list->oldest->heard >= FDF_SILENT_NS * 99",
        ),
        ("the newest stranger goes", "s->turn < idlest->turn", "s->turn > idlest->turn"),
        ("a lost frame is counted twice", "if (s->has_lost && s->lost == seq)", "if (0)"),
        (
            "more senders are known than there is room",
            "++a->n_known <= FDF_MOST_KNOWN",
            "++a->n_known <= FDF_MOST_KNOWN + 1",
        ),
        (
            "remembered strangers without a bound",
            "a->n_remembered > FDF_MOST_REMEMBERED",
            "a->n_remembered > FDF_MOST_REMEMBERED * 64",
        ),
        ("open frames are not counted down", "fdc_add(&a->open, -1);", "fdc_add(&a->open, 0);"),
        (
            "who completed fewer does not go first",
            "return one->completed < other->completed;",
            "return one->completed > other->completed;",
        ),
    ),
    in_file(
        f"{HEADERS}/frames.h",
        REASSEMBLY,
        (
            "a piece too many bytes",
            "body <= (int64_t)h->total - s->filled",
            "body <= (int64_t)h->total - s->filled + 8",
        ),
        ("pieces in any order", "next.fragment++;", "next.fragment = h->fragment;"),
        (
            "a first piece longer than the frame",
            "if (size > (int64_t)h.total)",
            "if (size > (int64_t)h.total + 8)",
        ),
        (
            "an incomplete frame is handed out",
            "if (s->filled != (int64_t)h.total)",
            "if (s->filled > (int64_t)h.total)",
        ),
        (
            "the frame before is forgotten uncounted",
            "fdf_lose(a, s); /* it has begun another */",
            "free(fdf_take_data(a, s)); /* it has begun another */",
        ),
        (
            "one piece too few",
            "s->fragments = (int32_t)((body + s->piece - 1) / s->piece);",
            "s->fragments = (int32_t)(body / s->piece);",
        ),
        (
            "a message of exactly the limit is cut",
            "if (size <= limit)\n        return 0;\n    s->piece",
            "if (size < limit)\n        return 0;\n    s->piece",
            "equivalent: such a frame is then cut into one piece, which is the frame",
        ),
    ),
    in_file(
        f"{HEADERS}/sequences.h",
        f"{CORE}/test_integrity.py {CORE}/test_frames.py",
        (
            "gaps are one too long",
            "const int64_t missing = ahead < FDN_MOST_MISSING ? ahead",
            "const int64_t missing = ahead < FDN_MOST_MISSING ? ahead + 1",
        ),
        ("a forged gap counts in full", "ahead < FDN_MOST_MISSING ? ahead : FDN_MOST_MISSING", "ahead"),
        ("a doubled frame is called late", "s->came >> -(ahead + 1) & 1)", "s->came >> -(ahead + 1) & 2)"),
        ("late frames are not remembered", "s->came |= 1ULL << -(ahead + 1);", ";"),
        (
            "the busiest place is given away",
            "(s->frames == 0 || s->turn < oldest->turn)",
            "(s->frames == 0 || s->turn > oldest->turn)",
        ),
    ),
    in_file(
        f"{HEADERS}/lane.h",
        f"{CORE}/test_fragments.py {CORE}/test_sender.py {CORE}/test_full_queue.py",
        ("a number is used twice", "lane->seq++; /* also", "lane->seq += 0; /* also"),
        (
            "a packed message over the limit waits for ever",
            "if (!lane->compact && size > limit)",
            "if (!lane->compact && size > 2 * limit)",
        ),
        (
            "a lowered limit is not seen",
            "if (limit < size)\n                return FDQ_TOO_BIG;",
            "if (limit < 0)\n                return FDQ_TOO_BIG;",
        ),
        (
            "pieces are not counted",
            "if (sending->fragments > 1)\n        fdc_add",
            "if (sending->fragments > 2)\n        fdc_add",
        ),
        (
            "the same wait counts again",
            "if (lane->waiting_since == 0)",
            "if (1)",
        ),
        (
            "the deadline is not heeded",
            "if (0 < deadline && deadline < until)",
            "if (0 > deadline && deadline < until)",
        ),
    ),
    in_file(
        f"{HEADERS}/write.h",
        f"{CORE}/test_step.py {CORE}/test_sections.py {CORE}/test_properties.py",
        (
            "writing behind the end",
            "offset <= d->size - length ? d->data",
            "offset <= d->size - length + 4 ? d->data",
            "equivalent: a planned message ends after its last number, and only a mistake of the plan would reach it",
        ),
        ("a plan of one slot more", "if (batch > m->at.slots)", "if (batch > m->at.slots + 1)"),
        (
            "a plan of one column more",
            "if (cols > m->at.width)\n        return fdw_refuse(fault, FDW_COLUMNS, -1, cols, m->at.width);\n    m->claimed",
            "if (cols > m->at.width + 1)\n        return fdw_refuse(fault, FDW_COLUMNS, -1, cols, m->at.width);\n    m->claimed",
        ),
        (
            "a count beyond the depth",
            "if (count > m->at.depth)\n        return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);\n    if (end",
            "if (count > m->at.depth + 1)\n        return fdw_refuse(fault, FDW_COUNT, i, count, m->at.depth);\n    if (end",
        ),
        (
            "sections of exactly the limit are refused",
            "if (s->extra_size > FDW_MOST_EXTRA)",
            "if (s->extra_size >= FDW_MOST_EXTRA)",
        ),
        ("the filler is 0", "(int64_t)k, FDW_FILLER_ID) < 0)", "(int64_t)k, 0) < 0)"),
        (
            "a code in the first column only",
            "for (int32_t k = 0; k < m->cols; k++)\n                if (fdw_put_word(d, ids",
            "for (int32_t k = 0; k < 1; k++)\n                if (fdw_put_word(d, ids",
        ),
        (
            "ranks of the row before",
            "ranks + at->ranks.pitch * j, b->ranks[row])",
            "ranks + at->ranks.pitch * j, b->ranks[row ? row - 1 : 0])",
        ),
    ),
    in_file(
        f"{HEADERS}/gather.h",
        f"{CORE}/test_golden.py {CORE}/test_properties.py tests/ops/test_ops.py",
        (
            "too few columns are filled",
            "columns < m->cols ? columns : m->cols;",
            "columns < m->cols ? columns - 1 : m->cols;",
        ),
        (
            "codes are not spread",
            "else if (count < 0)\n            for (int32_t k = 0; k < cols; k++)",
            "else if (count < 0)\n            for (int32_t k = 1; k < cols; k++)",
        ),
        (
            "a frame of more requests than tensors hold",
            "if (m->batch > stock.slots)",
            "if (m->batch > 2 * stock.slots)",
        ),
        ("the end of a short spec message", "(m->size < end ? m->size : end) / 4", "end / 4"),
        (
            "the tensor's rows are too near",
            "const int64_t slot = (int64_t)i * at->depth + j;",
            "const int64_t slot = (int64_t)i * at->depth;",
        ),
    ),
    in_file(
        f"{HEADERS}/request.h",
        f"{SAVES} tests/cuda/test_kernel.py",
        (
            "prefilled requests are sent",
            "r.count = terms->skip_prefill && g->in_prefill ? 0 : g->count;",
            "r.count = g->count;",
        ),
        ("a first token at every step", "r.count = g->step == 1 && !", "r.count = g->step >= 1 && !"),
        ("one draft token more than fits", "r.count > 0 && r.count < FDP_MOST;", "r.count > 0;"),
        ("preempted requests are sent", "if (g->preempted) { /* the slot", "if (0) { /* the slot"),
        ("tokens beyond the columns", "if (live > terms->width)", "if (live > terms->width + 1)"),
        (
            "a row behind the last",
            "if (r->scored > 0 && (r->first < 0 || r->first + r->scored > terms->rows))",
            "if (r->scored > 0 && (r->first < 0 || r->first + r->scored > terms->rows + 1))",
        ),
        (
            "wide codes of one token",
            "r->code == 0 && g->token < FDP_LEAST",
            "r->code != 0 && g->token < FDP_LEAST",
        ),
        ("more tokens than a slot holds", "if (live > terms->depth)", "if (live > terms->depth + 1)"),
    ),
    in_file(
        f"{HEADERS}/pack.h",
        SAVES,
        (
            "whoever has all of the prompt is in prefill",
            "FDP_ONCE(s->decoded[i]) < FDP_ONCE(s->prompts[i])",
            "FDP_ONCE(s->decoded[i]) <= FDP_ONCE(s->prompts[i])",
        ),
        ("any mark preempts", "FDP_ONCE(s->preempted[i]) == 1", "FDP_ONCE(s->preempted[i]) != 0"),
        ("rows of codes", "rows += r.count > 0 ? r.count : 0;", "rows += r.count != 0 ? 1 : 0;"),
        (
            "wide ranks are cut",
            "if (fdp_narrow_one(d, rank, number) && live)",
            "if (fdp_narrow_one(d, rank, number) && 0)",
        ),
        ("wide ids are cut", "if (bad >= 0 && live)", "if (bad > 0 && live)"),
        (
            "runs are joined that are apart",
            "if (r.first - run_first != row - run) {",
            "if (r.first < run_first) {",
        ),
        ("wide tokens are cut", "wide |= token ^ word;", "wide |= 0 * word;"),
        (
            "the flag of other channels",
            "m->flag = channel == FDW_SPEC_TOPK ? s->flag : 0;",
            "m->flag = s->flag;",
            "equivalent: only the ops of spec_topk have the argument message_flag; others leave 0 there",
        ),
        (
            "old counts of unused slots",
            "/ 4 - s->batch);\n    return 0;",
            "/ 4 - s->batch - 1);\n    return 0;",
        ),
    ),
    in_file(
        f"{HEADERS}/shortest.h",
        "tests/plugin/api/test_numbers.py",
        (
            "the nearer neighbour below",
            "fraction == 0 && biased > 1;",
            "fraction == 0 && biased > 2;",
            "equivalent: it concerns 2 ** -1021 only, which has the same digits",
        ),
        ("the exponent of ten digits", "if (style->two && exponent < 10)", "if (style->two && exponent < 9)"),
        (
            "whole numbers lose their point",
            'memcpy(out + point, ".0", 2);\n        return out + point + 2;',
            'memcpy(out + point, ".0", 2);\n        return out + point;',
        ),
        ("when exponents begin", "if (point > style->most ||", "if (point >= style->most ||"),
    ),
    in_file(
        f"{HEADERS}/json.h",
        "tests/plugin/api",
        ("two bytes too few", "fdj_need(b, 6 * n + 2)", "fdj_need(b, 6 * n)"),
        ("the quote is not escaped", "['\"'] = '\"', ", ""),
        (
            "the buffer does not grow enough",
            "size_t room = 2 * (b->used + more);",
            "size_t room = b->used + more / 2;",
        ),
    ),
    in_file(
        f"{HEADERS}/stream.h",
        f"tests/plugin/engine/test_stream_frames.py {CORE}/test_numbers_of_tensors.py",
        ("the first column is not compared", "s->ids[s->cols * i] == s->tokens[i] && ", ""),
        ("a slot behind the last row", "i < s->rows && ", "i <= s->rows && "),
        ("wide tokens", "if (s->tokens[i] > INT_MAX)", "if (0)"),
        ("wide ids", "fdz_fit(s->ids + s->cols * i, s->cols)", "fdz_fit(s->ids + s->cols * i, 1)"),
        ("wide ranks", "&& fdz_fit(s->ranks + i, 1)", ""),
        ("ranks of other rows", "s->ranks + first, run", "s->ranks + row, run"),
    ),
    in_file(
        f"{HEADERS}/flight.h",
        f"{CORE}/test_flight.py {CORE}/test_flight_bytes.py {CORE}/test_flight_steps.py",
        (
            "the ring is one entry too long",
            "ring->entries = (size - FDB_HEAD) / FDB_ENTRY;",
            "ring->entries = (size - FDB_HEAD) / FDB_ENTRY + 1;",
        ),
        (
            "the step stays in hand",
            "fdb_put_words(ring, words);\n    fdb_set(ring, FDB_BUSY, 0);",
            "fdb_put_words(ring, words);",
        ),
        (
            "live slots are never told again",
            "++ring->live_age < FDB_LIVE_AGAIN)",
            "++ring->live_age < FDB_LIVE_AGAIN * 999)",
        ),
        ("bytes end an entry too early", "entry.flags = at + part < size;", "entry.flags = 0;"),
    ),
    in_file(
        f"{HEADERS}/unpack.h",
        "tests/plugin/api/test_unpacking.py",
        ("ranks are not counted", "rows->rows = rows->rows < ranks ? rows->rows : ranks;", ";"),
        (
            "lists may be longer than the bytes",
            "if (n > fdu_left(b)) {\n        b->at = begin;\n        return 0;\n    }\n    *count",
            "if (n > fdu_left(b) + 99) {\n        b->at = begin;\n        return 0;\n    }\n    *count",
            "equivalent: items are read one by one, and each looks for the end",
        ),
        (
            "texts may be longer than the bytes",
            "if (n > fdu_left(b)) {\n        b->at = begin;\n        return 0;\n    }\n    *text",
            "if (n > fdu_left(b) + 1) {\n        b->at = begin;\n        return 0;\n    }\n    *text",
            "equivalent: what is read then ends behind the message's end, and is refused there",
        ),
        (
            "a number at the very end",
            "if (fdu_left(b) <= n)",
            "if (fdu_left(b) < n)",
            "equivalent: what is read then ends behind the message's end, and is refused there",
        ),
        ("bytes of 16 bits keep no sign", "case 0xd1: v = (uint64_t)(int64_t)(int16_t)v; break;", ""),
        ("large numbers become negative", "if (v > INT64_MAX) {", "if (v > UINT64_MAX - 1) {"),
    ),
    in_file(
        f"{HEADERS}/product.h",
        f"tests/cuda/saves/test_refused.py {CORE}/test_step.py",
        (
            "a product that overflows",
            "|| __builtin_mul_overflow(a, b, product) ?",
            "|| (*product = a * b, 0) ?",
        ),
        ("a negative dimension", "a < 0 || b < 0 ||", ""),
    ),
    in_file(
        f"{HEADERS}/senders.h",
        f"{CORE}/test_killed_processes.py",
        ("a dead sender's frame is not counted", "now - s->heard >= FDF_STALLED_NS", "0"),
    ),
]

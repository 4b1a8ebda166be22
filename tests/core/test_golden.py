"""Messages that FastDeploy's own save ops sent; golden/README.md tells where they come from."""

import hashlib

import numpy as np

import fd_postproc as fp
from tests.lib.goldens import GOOD, RECEIVED
from tests.lib.rows import each
from tests.reference import ReferenceStep, claimed, decode, encode, fill, live


def sha256(values, dtype):
    return hashlib.sha256(np.asarray(values, dtype).tobytes()).hexdigest()


def per_request(step, rows):
    """A list of rows, cut into one list a request."""
    rows = iter(rows)
    return [[next(rows) for _ in range(count)] for count in step.counts]


ALL = each("golden", GOOD.values())


@ALL
def test_holds_the_recorded_values(golden):
    assert len(golden.payload) == golden.record["payload_bytes"]
    assert hashlib.sha256(golden.payload).hexdigest() == golden.record["sha256_payload"]
    check_recorded(golden, ReferenceStep.from_step(fp.decode(golden.payload, golden.channel)))
    check_recorded(golden, decode(golden.payload, golden.channel))


def check_recorded(golden, step):
    recorded = golden.record["decoded"]
    assert (step.channel, step.dialect) == (golden.channel, golden.dialect)
    assert step.stop_flag == recorded["stop_flag"]
    assert step.flag == recorded.get("message_flag", 0)
    assert step.batch == len(step.counts) == recorded["bsz"]
    assert step.cols == recorded.get("cols_on_wire", 1)
    assert step.rows == len(step.ids) == sum(count for count in step.counts if count > 0)
    check = {"plain": check_plain, "topk": check_topk, "spec": check_spec, "spec_topk": check_spec_topk}
    check[golden.channel](golden, step, recorded)


def check_plain(golden, step, recorded):
    assert step.counts == [token if token < 0 else 1 for token in recorded["tokens"]]
    assert step.ids == [[token] for token in recorded["tokens"] if token >= 0]


def check_spec(golden, step, recorded):
    assert step.counts == recorded["accept_num"]
    assert per_request(step, [token for (token,) in step.ids]) == recorded["tokens"]


def check_topk(golden, step, recorded):
    sampled = recorded["tokens_col0"]
    with_token = [i for i, token in enumerate(sampled) if token >= 0]
    assert step.counts == [token if token < 0 else 1 for token in sampled]
    assert [row[0] for row in step.ids] == [sampled[i] for i in with_token]
    assert step.ranks == [recorded["ranks"][i] for i in with_token]
    if recorded["tokens"] is not None:
        assert step.ids == [recorded["tokens"][i] for i in with_token]
        assert step.scores == [recorded["scores"][i] for i in with_token]
    # The hashes cover every slot, also those without a token, which a Step leaves out: these come from
    # FastDeploy's receiver.
    tokens, scores, ranks = golden.tensors
    tokens = tokens[2 : 2 + step.batch * step.cols].reshape(step.batch, step.cols).copy()
    scores = scores[: step.batch * step.cols].reshape(step.batch, step.cols).copy()
    ranks = ranks[: step.batch].copy()
    if with_token:
        tokens[with_token], scores[with_token], ranks[with_token] = step.ids, step.scores, step.ranks
    assert sha256(tokens, np.int64) == recorded["sha_tokens_i64"]
    assert sha256(scores, np.float32) == recorded["sha_scores_f32"]
    assert sha256(ranks, np.int64) == recorded["sha_ranks_i64"]


def check_spec_topk(golden, step, recorded):
    assert step.counts == recorded["token_num"]
    assert per_request(step, [row[0] for row in step.ids]) == recorded["tokens_col0"]
    assert per_request(step, step.ranks) == recorded["ranks"]
    if recorded["tokens"] is not None:
        assert per_request(step, step.ids) == recorded["tokens"]
        assert per_request(step, step.scores) == recorded["scores"]
    assert sha256(step.ids, np.int32) == recorded["sha_tokens_i32_valid"]
    assert sha256(step.scores, np.float32) == recorded["sha_scores_f32_valid"]
    assert sha256(step.ranks, np.int32) == recorded["sha_ranks_i32_valid"]


def test_more_slots_than_the_message_has(refused_golden, decode_both):
    error = decode_both(refused_golden.payload, refused_golden.channel)
    assert error.args == ("spec", "batch", 512, 256, None)


@each("golden", RECEIVED.values())
def test_the_reference_fills_tensors_as_fastdeploy_does(golden):
    filled = golden.empty_tensors()
    fill(golden.payload, golden.channel, *filled)
    for ours, theirs in zip(filled, golden.tensors, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@ALL
def test_encoding_writes_the_same_bytes_and_only_those_matter(golden):
    # Wherever a byte means something, that is.  FastDeploy's topk slots carry scores and a rank even where
    # there is no token, and alternatives beside a -1 or -3.  A Step has no place for them.
    step, cells_alive = fp.decode(golden.payload, golden.channel), live(golden.payload, golden.channel)
    for encoded in (fp.encode(step, golden.dialect), encode(ReferenceStep.from_step(step), golden.dialect)):
        assert len(encoded) == claimed(golden.payload, golden.channel)
        for cells in cells_alive:
            assert encoded[cells.start : cells.stop] == golden.payload[cells.start : cells.stop], cells
    noisy = bytearray(b"\x5a" * len(golden.payload))
    for cells in cells_alive:
        noisy[cells.start : cells.stop] = golden.payload[cells.start : cells.stop]
    assert fp.decode(noisy, golden.channel) == step
    assert decode(noisy, golden.channel) == ReferenceStep.from_step(step)

"""Make fd_postproc/cli/demo_data/*.fdrec, the messages that ``fd-postproc demo`` sends, from tests/golden.

    python -m tests.make_demo_data [GOLDEN_DIRECTORY [OUTPUT_DIRECTORY]]

FastDeploy's own ops sent those messages, with random numbers in them.  Here the log-probabilities become
such as a sampler makes, so that a reader can make sense of them.  The tests' own writer, which reproduces
every recorded message, writes them anew.  Times are made up, 20 ms apart.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from fd_postproc.recording import RecordingWriter
from tests import reference

# Every channel; both dialects where there are two; 1, 6 and 21 columns; batches of 1, 3 and 256; every code.
CHOSEN = {
    "plain": ["plain_b1_s1001", "plain_b3_s1003", "plain_b3_stop_s7", "plain_b256_s1256"],
    "topk": [
        "topk_packed_b1_c1_s1002",
        "topk_packed_b3_c6_s1009",
        "topk_legacy_b3_c21_s1024",
        "topk_packed_b256_c1_s1257",
    ],
    "spec": ["spec_b1_s1001", "spec_b3_s1003", "mtpfirst_b3_s1003", "spec_b3_stop_s7", "spec_b256_s1256"],
    "spec_topk": [
        "spectopk_packed_b1_c6_s1007",
        "spectopk_packed_b1_c21_s1022",
        "spectopk_packed_b3_c1_s1004",
        "spectopk_legacy_b3_c21_s1024",
        "spectopk_packed_b3_c6_s1009",
        "mtpfirsttopk_packed_b3_c6_s1009",
        "spectopk_legacy_b3_c21_stop_s7",
        "spectopk_packed_b256_c1_s1257",
        "mtpfirsttopk_packed_b256_c21_s1277",
    ],
}
_FIRST_NS = 1_750_000_000_000_000_000
_APART_NS = 20_000_000


def plausible_logprobs(random: np.random.Generator, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and ranks as a sampler's, for given tokens.

    Column 0 is the sampled token; the likeliest tokens follow, the best first.  A sampled token that is among
    them is put there, too.

    Parameters
    ----------
    random : numpy.random.Generator
    ids : int32, [rows, columns]
        Changed where a sampled token is one of the likeliest.

    Returns
    -------
    scores : float32, [rows, columns]
    ranks : int32, [rows]
    """
    rows, columns = ids.shape
    best = max(columns - 1, 1)
    fall = random.exponential(2.0, (rows, best))
    fall[:, 0] /= 8
    likeliest = -np.cumsum(fall, axis=1)
    likeliest -= np.log(np.exp(likeliest).sum(axis=1, keepdims=True)).clip(0)
    row = np.arange(rows)
    ranks = np.asarray(random.geometric(0.8, rows))
    score = np.where(ranks <= best, likeliest[row, np.minimum(ranks, best) - 1], likeliest[:, -1] - ranks)
    among = ranks < columns
    ids[row[among], ranks[among]] = ids[among, 0]
    scores = np.column_stack([score, likeliest[:, : columns - 1]])
    return scores.astype(np.float32), ranks.astype(np.int32)


def golden_payload(golden: Path, name: str) -> bytes:
    """A recorded message as FastDeploy sent it, without mtype."""
    return zlib.decompress((golden / f"{name}.bin").read_bytes())


def readable_payload(golden: Path, name: str, channel: str) -> bytes:
    """The same message with log-probabilities that fit each other; as long as it was."""
    sent = golden_payload(golden, name)
    step = reference.decode(sent, channel)
    if step.scores is None:
        return sent
    ids = np.array(step.ids, np.int32)
    scores, ranks = plausible_logprobs(np.random.default_rng(zlib.crc32(name.encode())), ids)
    known = np.array(step.ranks) > 0  # of a first-token message, the first row of a request only
    step = replace(
        step,
        ids=np.where(known[:, None], ids, step.ids).tolist(),
        scores=np.where(known[:, None], scores, step.scores).tolist(),
        ranks=np.where(known, ranks, 0).tolist(),
    )
    return reference.encode(step, step.dialect).ljust(len(sent), b"\0")


def main(golden: Path, out: Path) -> None:
    for channel, names in CHOSEN.items():
        path = out / f"{channel}.fdrec"
        with RecordingWriter(path, channel, force=True, level=9, created_ns=_FIRST_NS) as recording:
            for i, name in enumerate(names):
                recording.write(readable_payload(golden, name, channel), 1, _FIRST_NS + i * _APART_NS)
        path.chmod(0o644)  # shipped, and nobody's text
        print(f"{path}: {recording.messages} messages, {recording.file_bytes:,} bytes")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    places = [Path(argument) for argument in sys.argv[1:]]
    main(*(places + [here / "golden", here.parent / "fd_postproc" / "cli" / "demo_data"][len(places) :]))

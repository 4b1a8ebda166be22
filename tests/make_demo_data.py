"""Make fd_postproc/data/*.fdrec, the messages that ``fd-postproc demo`` sends, from tests/golden.

    python tests/make_demo_data.py [GOLDEN_DIRECTORY [OUTPUT_DIRECTORY]]

They were sent by FastDeploy's own ops; times are made up, 20 ms apart.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from fd_postproc.recording import RecordingWriter

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


def golden_payload(golden: Path, name: str) -> bytes:
    """A recorded message as FastDeploy sent it, without mtype."""
    return zlib.decompress((golden / f"{name}.bin").read_bytes())


def main(golden: Path, out: Path) -> None:
    for channel, names in CHOSEN.items():
        path = out / f"{channel}.fdrec"
        with RecordingWriter(path, channel, force=True, level=9, created_ns=_FIRST_NS) as recording:
            for i, name in enumerate(names):
                recording.write(golden_payload(golden, name), 1, _FIRST_NS + i * _APART_NS)
        path.chmod(0o644)  # shipped, and nobody's text
        print(f"{path}: {recording.messages} messages, {recording.file_bytes:,} bytes")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    places = [Path(argument) for argument in sys.argv[1:]]
    main(*(places + [here / "golden", here.parent / "fd_postproc" / "data"][len(places) :]))

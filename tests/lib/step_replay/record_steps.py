"""Records the traces of golden_steps anew on a FastDeploy tree's own token processor.

    FD_POSTPROC_FASTDEPLOY=TREE FD_POSTPROC_DOUBLE=NAME \\
        python tests/lib/step_replay/record_steps.py FOLDER [PATTERN ...]

What a trace gives to the class stays as it is; what the class did is replaced.  NAME is the tree's recording
in shapes/, and FOLDER may be the one that the traces are read from (``FD_POSTPROC_GOLDEN_STEPS``).
"""

import fnmatch
import gzip
import json
import os
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS.parent), str(TESTS / "fastdeploy_double")]


def recorded_anew(content, cls):
    """A trace's content, changed in place: with what `cls` does."""
    from tests.lib.step_replay.replay import Replay, status_of
    from tests.lib.step_replay.traces import Trace

    for holder in (*content["requests"], *content["events"]):
        if "status" in holder:
            holder["status"] = status_of(holder["status"]).name
    given = json.loads(json.dumps(content))  # replaying unpacks messages in place
    trace = Trace(*(given[key] for key in ("name", "mode", "requests", "events", "end")))
    recorded = [event for event in content["events"] if "after" in event]
    with Replay(trace, cls) as replay:
        for step, event in zip(replay.steps(), recorded, strict=True):
            after = json.loads(json.dumps(step.actual))  # some of it lives on
            op = after.pop("op")
            if "op" in event:
                event["op"] = op
            event["after"] = after
        content["end"] = replay.end()[1]
    return content


def main():
    folder, patterns = Path(sys.argv[1]), sys.argv[2:] or ["*"]
    if not os.environ.get("FD_POSTPROC_FASTDEPLOY"):
        sys.exit("FD_POSTPROC_FASTDEPLOY is not set; give the FastDeploy source tree to record on")
    warnings.simplefilter("ignore")
    from fastdeploy.output import token_processor

    from tests.lib.step_replay.traces import FOLDER, SUFFIX, trace_names

    folder.mkdir(exist_ok=True)
    for name in trace_names():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            continue
        content = json.loads(gzip.decompress((FOLDER / f"{name}{SUFFIX}").read_bytes()))
        text = json.dumps(recorded_anew(content, token_processor.TokenProcessor), separators=(",", ":"))
        (folder / f"{name}{SUFFIX}").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()

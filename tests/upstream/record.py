"""Program: what the replaced methods of FastDeploy's class look at, as one JSON object of words and digests.

``python -m tests.upstream.record`` reads the FastDeploy on the import path, or the double.  With file names,
it joins such objects into one: the package's ``data/fastdeploy_code.json`` is all known versions' and the
double's, ``python -m tests.upstream.record FILE...``.  No text of FastDeploy's is recorded.
"""

import importlib
import json
import sys
from pathlib import Path

MARK = "recorded: "
SERVING = {
    "OpenAIServingChat": "fastdeploy.entrypoints.openai.serving_chat",
    "OpenAIServingCompletion": "fastdeploy.entrypoints.openai.serving_completion",
}


def recorded():
    """Of the FastDeploy that is importable."""
    module = importlib.import_module("fastdeploy.output.token_processor")
    parts = importlib.import_module("fd_postproc.fastdeploy.engine.processor_class").Parts
    own = [cls for cls in parts.__mro__ if cls is not object]
    stock = getattr(module.TokenProcessor, "stock", module.TokenProcessor)
    record = importlib.import_module("fd_postproc.fastdeploy.trial.known_code").record
    told = record(own, stock)
    blocks = importlib.import_module("fd_postproc.fastdeploy.api.chunks.building_blocks")
    for owner, method in blocks._METHODS:
        serving = importlib.import_module(SERVING[owner])
        for helper, one in record([type("Ours", (), {method: recorded})], getattr(serving, owner)).items():
            into = told.setdefault(helper, {"words": [], "digests": []})
            for kind, values in one.items():
                into[kind] = sorted({*into[kind], *values})
    return told


def joined(files):
    """The union of several recordings."""
    union = {}
    for file in files:
        told = json.loads(Path(file).read_text().rpartition(MARK)[2])
        for name, one in told.items():
            into = union.setdefault(name, {"words": set(), "digests": set()})
            for kind, values in one.items():
                into[kind].update(values)
    return {
        name: {kind: sorted(values) for kind, values in one.items()} for name, one in sorted(union.items())
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        methods = joined(sys.argv[1:]).items()
        print(
            "{", ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in methods), "}", sep="\n"
        )
    else:
        print(MARK, json.dumps(recorded()), sep="")

"""The recorded messages of FastDeploy's own save ops (tests/golden/README.md)."""

import importlib.util
import json
import zlib
from functools import cache, cached_property

import numpy as np

from tests.lib.paths import TESTS


class Golden:
    """A message that FastDeploy's own save op sent.

    Attributes
    ----------
    name, channel, dialect : str
        The channel is ours; the sender's is in the name.
    record : dict
        How it was made, and the values that its bytes hold.
    """

    FOLDER = TESTS / "golden"

    def __init__(self, name):
        self.name = name
        self.record = json.loads((self.FOLDER / f"{name}.json").read_text())
        sender, _, dialect = self.record["channel"].partition("_")
        self.channel = {"mtpfirst": "spec", "mtpfirsttopk": "spec_topk", "spectopk": "spec_topk"}.get(
            sender, sender
        )
        self.dialect = "packed" if dialect == "packed" else "legacy"
        self.tensors_path = self.FOLDER / f"{self.name}.recv.npz"

    @cached_property
    def payload(self):
        return zlib.decompress((self.FOLDER / f"{self.name}.bin").read_bytes())

    @cached_property
    def tensors(self):
        """What FastDeploy's get op made of the message, flattened: tokens (int64), and on channels with
        logprobs scores (float32) and ranks (int64)."""
        with np.load(self.tensors_path) as arrays:
            return [arrays[key].ravel() for key in sorted(arrays.files)]

    def inputs(self):
        """The arrays that the save op was given, by the op's own names."""
        recipe = dict(self.record["recipe"])
        gen = _recipes(self.FOLDER / recipe.pop("module"))
        return getattr(gen, recipe.pop("fn"))(**recipe)

    def empty_tensors(self):
        """Tensors as they were before FastDeploy's get op wrote into them."""
        return [np.full_like(tensor, value) for tensor, value in zip(self.tensors, (2, 0.0, 0), strict=False)]


@cache
def _recipes(path):
    """The module of functions that make inputs."""
    spec = importlib.util.spec_from_file_location("golden_gen", path)
    gen = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gen)
    return gen


INDEX = json.loads((Golden.FOLDER / "index.json").read_text())
REFUSED = "spec_b512_s1512"  # its header claims 512 of 256 slots
GOLDENS = {entry["name"]: Golden(entry["name"]) for entry in INDEX}
GOOD = {name: golden for name, golden in GOLDENS.items() if name != REFUSED}
RECEIVED = {name: golden for name, golden in GOOD.items() if golden.tensors_path.exists()}

# One of each op, dialect and size, for tests that send, fill or save.
PICKED = {
    name: RECEIVED[name]
    for name in (
        *("plain_b3_s1003", "plain_b512_s1512", "plain_b3_stop_s7", "topk_packed_b3_c6_s1009"),
        *("topk_legacy_b3_c21_s1024", "topk_packed_b512_c21_s1533", "spec_b3_s1003", "spec_b256_s1256"),
        *("spectopk_legacy_b3_c21_s1024", "spectopk_packed_b256_c1_s1257", "mtpfirst_b3_s1003"),
        "mtpfirsttopk_packed_b3_c6_s1009",
    )
}

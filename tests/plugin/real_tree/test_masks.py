"""Sampling masks on FastDeploy's real functions: in the frame of their step, or beside it."""

import pytest

from tests.lib.real_tree import LIB, check, each_tree, run

pytestmark = pytest.mark.fastdeploy


@each_tree
@pytest.mark.parametrize("words", ["compact/1,masks/2", "compact/1"])
def test_masks_of_fastdeploys_own_functions(tree, tmp_path, words):
    check(tree)
    source = (tree / "fastdeploy" / "model_executor" / "pre_and_post_process.py").read_text()
    if "sampling_mask_" not in source:
        pytest.skip("this FastDeploy has no sampling masks")
    told, _ = run(tree, str(LIB / "masks_in_frames.py"), words, folder=tmp_path)
    inside = "masks" in words
    assert ("save_output_normal" in told["replaced"]) == inside
    one = [[0, [5, 9, 11]], [1, [6]], [2, [1, 2]]]
    by_token = [[0, [[5, 9], [6]]], [2, [[7, 8, 10]]]]
    counts = {"plain": [1, -9, -1], "topk": [1, -9, -1], "spec": [2, -9, 1], "spec_topk": [2, -9, 1]}
    for channel, step in told["steps"].items():
        masks = by_token if channel.startswith("spec") else one
        assert step == {"counts": counts[channel], "masks": masks if inside else None, "beside": not inside}

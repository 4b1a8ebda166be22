"""Every data-parallel rank has a token processor, and each receives what its own worker sends."""

import pytest

from tests.lib.rig import Rig
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework


@each(
    "channel, expert_parallel",
    [("plain", False), ("plain", True), ("topk", False), ("spec", True), ("spec_topk", True)],
)
def test_a_rank_above_0_receives(channel, expert_parallel, ops_queue):
    """FastDeploy's ops ignore the rank, or are told that all of them read; the queue is the rank's own."""
    rig = Rig(channel, ["a", "b"], data_parallel_size=2, enable_expert_parallel=expert_parallel)
    processor = rig.processor
    processor.cfg.parallel_config.local_data_parallel_id = 1
    try:
        rig.start()
        rig.send({0: [11], 1: [12]}, {0: [21], 1: [22]})
        until(lambda: len(rig.sink.puts) == 2)
        told = [[result.outputs.token_ids for result in results] for results in rig.sink.puts]
        assert told == [[[11], [12]], [[21], [22]]]
    finally:
        rig.close()

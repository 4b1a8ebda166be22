"""What the tests of the plug-in's worker side share: steps to save, and lines of the log."""

import logging
import sys

import numpy as np

from fd_postproc.fastdeploy import logs
from fd_postproc.fastdeploy.worker import entry as worker
from fd_postproc.fastdeploy.worker import warmup
from fd_postproc.fastdeploy.worker.sending import SaveOp
from fd_postproc.ops.table import SAVE_OPS
from tests.lib.frameworks import Paddle
from tests.lib.rows import each
from tests.lib.sampled_steps import KINDS, Requests

CHANNEL = each("channel", KINDS)
LOGPROBS = each("channel", ["topk", "spec_topk"])


class Called(list):
    """Names of FastDeploy's own ops that were called."""

    def anew(self):
        """Turn the worker side on again for the next row of a table: nothing is decided yet."""
        restore_save_ops()
        self.clear()
        worker.register()


def lines(log, level, *words):
    """What FastDeploy's log got of a level, with all these words."""
    own = [one for one in log.records if one.name.startswith("fastdeploy") and one.levelname == level]
    return [text for text in (one.getMessage() for one in own) if all(word in text for word in words)]


def sampled(channel, seed=1, batch=5, cols=3):
    return Requests(np.random.default_rng(seed), batch, cols, 6, plain=False)


def save(double, channel, requests, **keywords):
    """What FastDeploy's worker does after sampling."""
    calls = double.model_executor__pre_and_post_process
    inputs = KINDS[channel](requests, tensor=Paddle().tensor)
    inputs.share["last_preempted_idx"] = inputs.preempted
    if channel.startswith("spec"):
        calls.save_output_specualate(
            inputs.sampler, inputs.model, inputs.share, inputs.proposer, 0, 0, **keywords
        )
    else:
        calls.save_output_normal(inputs.model, inputs.sampler, inputs.share, **keywords)
    return inputs


def restore_save_ops():
    """FastDeploy's own save ops again, wherever ours went; nothing that the worker side has begun goes on."""
    warmup.end()
    for name, module in list(sys.modules.items()):
        if name.startswith("fastdeploy.") and hasattr(module, "__dict__"):
            for op in SAVE_OPS:
                bound = vars(module).get(op)
                if isinstance(bound, SaveOp):
                    setattr(module, op, bound.original)
    logging.getLogger("fd_postproc").removeHandler(logs._forward)

"""The MTP proposer's save op, a global of this module as in FastDeploy; it sends draft messages (flag 4)."""

from fastdeploy.model_executor.ops.gpu import speculate_save_output_topk

__all__ = ["speculate_save_output_topk"]

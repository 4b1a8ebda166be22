"""FastDeploy's custom ops under their import path; fd_postproc's stand in for the CUDA build's.

FastDeploy's save ops exist in its GPU build only.  Here they are names to import and to replace.
"""

from fd_postproc.ops import (  # noqa: F401
    get_output,
    get_output_ep,
    get_output_topk,
    speculate_get_output,
    speculate_get_output_topk,
)

SAVE_OPS = (
    "save_output",
    "save_output_topk",
    "speculate_save_output",
    "speculate_save_output_topk",
    "mtp_save_first_token",
    "mtp_save_first_token_with_topk",
)


def _only_on_gpu(name):
    def save(*arguments):
        raise NotImplementedError(f"FastDeploy's {name} needs its GPU build; replace it where it is called")

    save.__name__ = name
    return save


globals().update({name: _only_on_gpu(name) for name in SAVE_OPS})

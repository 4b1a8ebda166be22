"""The messages in plain Python: what the C code must do, written to be read.

Each channel's message is declared here as the C struct that FastDeploy's own ops declare (``structs``), and
read and written through that struct; the fast code (``wire.h``) computes offsets instead.  The tests hold
the two against each other.  Nothing here is fast, and nothing else in the package uses it.

A message is a full struct, or any prefix of it that still holds everything its header and counts claim; or
a compact frame of ours (``frames``), whole or in fragments (``reassembly``).  ``saving`` says what each of
FastDeploy's save ops makes of its tensors.

Source: the ops in PaddlePaddle/FastDeploy's ``custom_ops/gpu_ops`` (commit 145b5443 for the legacy dialect,
f7a1c676 and pull requests #7860, #7861, #7883, #7884 for the packed one): save_output and get_output (plain),
save_output_topk and get_output_topk (topk), speculate_save_output, mtp_save_first_token and
speculate_get_output (spec), speculate_save_output_topk, mtp_save_first_token_with_topk and
speculate_get_output_topk (spec_topk).
"""
# ruff: noqa: F401

from .frames import FrameHeader, encode_frame, seal, split
from .reading import claimed, decode, fill, live
from .reassembly import Reassembler
from .saving import SAVE_OPS, Saved, save
from .step import ReferenceStep
from .structs import payload_size
from .writing import encode

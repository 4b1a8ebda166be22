"""Writes a step's message as FastDeploy's receive op does, or as objects."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from fd_postproc.core.tensors import host_address
from fd_postproc.fastdeploy.stream_frames import Content, packed

from .steps import CannedMessage, Script


def fill(processor: Any, fd: Any, script: Script, message: CannedMessage, packed: bool) -> None:
    """Write a message into the tensors, as FastDeploy's receive op does."""
    most_columns, drafts = fd.K + 1, fd.MAX_DRAFT_TOKENS
    tokens = _flat(processor.output_tokens, "int64")
    batch = len(message.slots)
    rows = [slot if isinstance(slot, tuple) else () for slot in message.slots]
    codes = [len(slot) if isinstance(slot, tuple) else slot for slot in message.slots]
    tokens[0] = 1
    if script.channel == "plain":
        tokens[1] = batch
        tokens[2 : 2 + batch] = [slot[0] if isinstance(slot, tuple) else slot for slot in message.slots]
        return
    if script.channel == "spec":
        tokens[1] = batch
        tokens[2 : 2 + batch] = codes
        ids = tokens[2 + fd.SPECULATE_MAX_BSZ :].reshape(fd.SPECULATE_MAX_BSZ, drafts)
        for slot, row in enumerate(rows):
            ids[slot, : len(row)] = row
        return
    columns = message.columns if packed else most_columns
    scores, ranks = _flat(processor.output_scores, "float32"), _flat(processor.output_ranks, "int64")
    if script.channel == "topk":
        tokens[1] = batch | columns << 16 if packed else batch
        used = batch * columns
        _write(
            tokens[2 : 2 + used].reshape(batch, 1, columns),
            scores[:used].reshape(batch, 1, columns),
            ranks[:batch].reshape(batch, 1),
            [row or (code,) for row, code in zip(rows, codes, strict=True)],
            columns,
        )
        return
    tokens[1] = message.flag | columns << 8 if packed else message.flag
    tokens[2] = batch
    tokens[3 : 3 + batch] = codes
    _write(
        tokens[3 + fd.MAX_BSZ :].reshape(fd.MAX_BSZ, drafts, most_columns),
        scores.reshape(fd.MAX_BSZ, drafts, most_columns),
        ranks.reshape(fd.MAX_BSZ, drafts),
        rows,
        columns,
    )


def objects(fd: Any, script: Script, message: CannedMessage) -> list[Any]:
    """The objects (``StreamTransferData``) that FastDeploy's worker sends, one for each slot."""
    told = []
    for slot, row in enumerate(message.slots):
        token = row if isinstance(row, int) else row[0] if row else None
        pooled = None if token is not None else np.linspace(-1.0, slot, 4, dtype=np.float32)
        told.append(
            SimpleNamespace(
                batch_id=slot,
                tokens=None if token is None else np.array([token], np.int64),
                logprobs=_Row(fd, token, message.columns) if script.logprobs and token is not None else None,
                prompt_logprobs=None,
                sampling_mask=np.arange(slot + 3) if script.masks else None,
                pooler_output=pooled,
            )
        )
    return told


def as_frame(datas: list[Any]) -> bytes:
    """The frame that our worker side sends for the same step."""
    if all(data.tokens is None for data in datas if data.pooler_output is not None) and any(
        data.pooler_output is not None for data in datas
    ):
        pooled = {data.batch_id: data.pooler_output for data in datas if data.pooler_output is not None}
        return packed(Content(len(datas), None, pooled=pooled))
    tokens, rows = np.concatenate([data.tokens for data in datas]), None
    if datas[0].logprobs is not None:
        parts = zip(*(data.logprobs.tolists() for data in datas), strict=True)
        dtypes = (np.int64, np.float32, np.int64)
        ids, scores, ranks = (
            np.concatenate([np.array(part, dtype) for part in column])
            for column, dtype in zip(parts, dtypes, strict=True)
        )
        rows = ids, scores, ranks
    masks = None if datas[0].sampling_mask is None else [data.sampling_mask for data in datas]
    return packed(Content(len(tokens), tokens, rows, masks))


class _Row:
    """Log-probabilities of one token, with the used part of FastDeploy's ``LogprobsTensors``."""

    def __init__(self, fd: Any, token: int, columns: int) -> None:
        self._rows = fd.LogprobsLists(
            [[token, *range(1000, 999 + columns)]],
            [[-0.125 * (token % 50) - 0.5 * column for column in range(columns)]],
            [token % 7 + 1],
        )

    def tolists(self) -> Any:
        return self._rows


def _write(ids: Any, scores: Any, ranks: Any, rows: list[tuple[int, ...]], columns: int) -> None:
    for slot, row in enumerate(rows):
        for position, token in enumerate(row):
            ids[slot, position, :columns] = [token, *range(1000, 999 + columns)]
            scores[slot, position, :columns] = [-0.1 * token - 0.01 * column for column in range(columns)]
            ranks[slot, position] = token % 7 + 1
    if rows and len(rows[0]) > 0 and columns > 1:
        scores[0, 0, columns - 1] = -math.inf


def _flat(tensor: Any, dtype: str) -> Any:
    """A tensor in host memory as a flat array that shares its memory."""
    size = int(np.prod(tensor.shape))
    element = ctypes.c_int64 if dtype == "int64" else ctypes.c_float
    address = host_address(tensor, "tensor", dtype, size)
    return np.ctypeslib.as_array((element * size).from_address(address))

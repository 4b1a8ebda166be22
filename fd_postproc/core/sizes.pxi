# How long messages are, and how large a get op's tensors must be.
from fd_postproc.headers.wire cimport (
    FDW_LEGACY, fdw_geometry, fdw_geometry_of, fdw_has_logprobs, fdw_layout, fdw_rank_elements,
    fdw_score_elements, fdw_token_elements,
)


def payload_size(channel, layout=GPU):
    """Bytes of a full message, without the 8-byte ``mtype``, as FastDeploy's own senders send it.

    Parameters
    ----------
    channel : {"plain", "topk", "spec", "spec_topk"}
    layout : Layout, optional

    Returns
    -------
    int
    """
    cdef fdw_layout c = _c_layout(layout)
    return fdw_geometry_of(&c, _channel_number(channel), FDW_LEGACY, 0).size


def most_requests(channel, layout=GPU):
    """Requests that one of FastDeploy's messages can hold: the slots of this channel."""
    cdef fdw_layout c = _c_layout(layout)
    return fdw_geometry_of(&c, _channel_number(channel), FDW_LEGACY, 0).slots


def tensor_elements(channel, layout=GPU):
    """Elements that a get op's token, score and rank tensors must have: ``(tokens, scores, ranks)``.

    Scores and ranks are 0 on channels without logprobs.
    """
    cdef fdw_layout c = _c_layout(layout)
    cdef int number = _channel_number(channel)
    cdef fdw_geometry at = fdw_geometry_of(&c, number, FDW_LEGACY, 0)
    if not fdw_has_logprobs(number):
        return fdw_token_elements(&at), 0, 0
    return fdw_token_elements(&at), fdw_score_elements(&at), fdw_rank_elements(&at)

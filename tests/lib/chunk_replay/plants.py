"""Bugs planted in our side, one at a time: a replay has to see each."""


def _methods():
    from fastdeploy.entrypoints.openai.serving_chat import OpenAIServingChat
    from fastdeploy.entrypoints.openai.serving_completion import OpenAIServingCompletion

    return OpenAIServingChat, OpenAIServingCompletion


def one_column_less():
    """Of log-probabilities, where there are many."""
    chat, _ = _methods()
    ours = chat._create_chat_logprobs

    def planted(self, top, asked=None, columns=None, decode=True):
        return ours(self, top, asked, columns - 1 if columns and columns > 5 else columns, decode)

    chat._create_chat_logprobs = planted


def a_float_rounded():
    """In completions, in the ninth digit."""
    _, completion = _methods()
    ours = completion._create_completion_logprobs

    def planted(self, top, columns=None, offset=None):
        rounded = top and [top[0], [[round(score, 9) for score in row] for row in top[1]], top[2]]
        return ours(self, rounded, columns, offset)

    completion._create_completion_logprobs = planted


def unset_fields_written():
    """Every field of a delta counts as set."""
    from fastdeploy.entrypoints.openai import serving_chat

    models = serving_chat.DeltaMessage
    serving_chat.DeltaMessage = lambda **values: models(**{"role": None, **values})


def a_row_lost():
    """Of packed log-probabilities, the last one, where there are several."""
    from fastdeploy.entrypoints.openai import utils

    ours = utils.msgpack.unpackb

    def planted(packed):
        batch = ours(packed)
        for outputs in (result.get("outputs") or {} for group in batch for result in group):
            for part in outputs.get("top_logprobs") or ():
                del part[1:]
        return batch

    utils.msgpack.unpackb = planted


def text_released_early():
    """Characters that are not complete yet are shown; the trial of the tokenizer would tell."""
    from fd_postproc.fastdeploy.api import detokenising

    def planted(decode, ids, prefix, read):
        before, text = (decode(one, skip_special_tokens=False) for one in (ids[prefix:read], ids[prefix:]))
        return text[len(before) :], read, len(ids)

    detokenising.decode_token = planted
    detokenising._compare = lambda *arguments: None


PLANTS = [name for name, value in list(vars().items()) if callable(value) and not name.startswith("_")]

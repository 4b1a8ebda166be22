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


PLANTS = [name for name, value in list(vars().items()) if callable(value) and not name.startswith("_")]

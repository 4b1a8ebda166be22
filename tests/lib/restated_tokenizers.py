"""Tokenizers of four kinds: the real libraries, and FastDeploy's layers above them, restated."""

import io
from functools import cache
from types import FunctionType

import pytest

from tests.lib.paths import TESTS

tokenizers = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")

MODULE = "paddleformers.restated"
SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "  two  spaces and   three ",
    "naïve café déjà vu 你好世界 日本語 😀",
    "def f(x): return x + 1.5e-7\n\n",
]
SPECIAL = ["<s>", "</s>", "<mask:1>", "<think>"]


class Fast:
    """Restates the layers above the tokenizers library: PaddleFormers' and those of transformers."""

    def __init__(self, kind="bytebpe"):
        path = TESTS / "golden_chunks" / "tokenizers" / kind / "tokenizer.json"
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))

    def __len__(self):
        return self._tokenizer.get_vocab_size()

    def ids_of(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode_token(self, ids, prefix, read):
        before, text = (self.decode(window) for window in (ids[prefix:read], ids[prefix:]))
        if len(text) > len(before) and "\ufffd" not in text[-2:]:
            if text.startswith(before):
                return text[len(before) :], read, len(ids)
            return "", prefix, len(ids)
        return "", prefix, read

    def decode(self, ids):
        return self._decode([int(one) for one in ids])

    def _decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)


@cache
def trained(**options):
    """A small SentencePiece model."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=writer,
        hard_vocab_limit=False,
        control_symbols=["<pad>", "<silent>"],
        user_defined_symbols=["<mask:1>", "<think>"],
        minloglevel=5,
        **{"vocab_size": 420, "model_type": "bpe", "byte_fallback": True, **options},
    )
    return writer.getvalue()


class Pieces:
    """Restates ERNIE's tokenizer, above a small SentencePiece model, and PaddleFormers' layers above it."""

    def __init__(self, **options):
        self.sp_model = sentencepiece.SentencePieceProcessor(model_proto=trained(**options))
        self.all_special_tokens = SPECIAL[:3]
        think = self.sp_model.piece_to_id("<think>")
        self.added_tokens_encoder = {"<think>": think, "<added>": self.sp_model.vocab_size()}

    def __len__(self):
        return self.sp_model.vocab_size() + 1

    def ids_of(self, text):
        return self.convert_tokens_to_ids(self.tokenize(text))

    def tokenize(self, text):
        return self.sp_model.encode(text, out_type=str)

    def convert_tokens_to_ids(self, tokens):
        return [self.added_tokens_encoder.get(one, self.sp_model.piece_to_id(one)) for one in tokens]

    def convert_ids_to_tokens(self, ids):
        if isinstance(ids, int):
            return "<added>" if ids == len(self) - 1 else self.sp_model.id_to_piece(ids)
        return [self.convert_ids_to_tokens(one) for one in ids]

    def convert_tokens_to_string(self, tokens):
        text, run = "", []
        for token in tokens:
            if token in self.all_special_tokens or token in self.added_tokens_encoder:
                text, run = text + self.sp_model.decode(run) + token, []
            else:
                run.append(token)
        return text + self.sp_model.decode(run)

    def _decode(self, ids):
        return self.convert_tokens_to_string(self.convert_ids_to_tokens(ids))

    def decode(self, ids, **options):
        return self._decode(ids)

    def decode_token(self, ids, prefix, read):
        before, text = self.decode(ids[prefix:read]), self.decode(ids[prefix:])
        if len(text) <= len(before) or "\ufffd" in before + text:
            return "", prefix, read
        if not text.startswith(before):
            return "", prefix, len(ids)
        return text[len(before) :], read, len(ids)


def of_paddleformers(cls):
    for value in vars(cls).values():
        if isinstance(value, FunctionType):
            value.__module__ = MODULE
    return cls


for _cls in (Fast, Pieces):
    of_paddleformers(_cls)
KINDS = ("bytebpe", "metaspace", "wordpiece")
MODELS = (
    {},
    {"model_type": "unigram", "add_dummy_prefix": False},
    {"remove_extra_whitespaces": False, "byte_fallback": False, "vocab_size": 150},
    {"model_type": "unigram", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
)

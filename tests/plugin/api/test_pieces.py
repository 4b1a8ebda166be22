"""New text out of SentencePiece's pieces, with small models of the real library."""

import io
import random

import pytest

from fd_postproc.fastdeploy.api import detokenising
from fd_postproc.fastdeploy.api.chunks.model_fields import NotPlain

sentencepiece = pytest.importorskip("sentencepiece")
pytestmark = pytest.mark.framework  # its allocations are none of a sanitizer's

SENTENCES = [
    "the quick brown fox jumps over the lazy dog",
    "  two  spaces and   three ",
    "naïve café déjà vu 你好世界 日本語",
    "def f(x): return x + 1.5e-7",
] * 20
SPECIAL = ["<s>", "</s>", "<mask:1>", "<think>"]


def model(**options):
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=writer,
        hard_vocab_limit=False,
        control_symbols=["<pad>", "<silent>"],
        user_defined_symbols=["<mask:1>", "<think>"],
        minloglevel=5,
        **{"vocab_size": 420, "model_type": "bpe", "byte_fallback": True, **options},
    )
    return sentencepiece.SentencePieceProcessor(model_proto=writer.getvalue())


class Tokenizer:
    """Restates ERNIE's tokenizer and the layers of PaddleFormers above it."""

    def __init__(self, processor):
        self.sp_model = processor
        self.all_special_tokens = SPECIAL[:3]
        self.added_tokens_encoder = {"<think>": processor.piece_to_id("<think>"), "<added>": len(self) - 1}

    def __len__(self):
        return self.sp_model.vocab_size() + 1

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


for _name in detokenising.PIECE_LAYERS:
    getattr(Tokenizer, _name).__module__ = "paddleformers.restated"


def answers(tokenizer, count, seed=1):
    """Random ids, a few at a time, as results bring them."""
    draw, size = random.Random(seed), len(tokenizer)
    texts = [tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)) for text in SENTENCES[:4]]
    for _ in range(count):
        given = []
        for _ in range(draw.randint(1, 5)):
            given += draw.choice(texts)[: draw.randint(1, 9)]
            given += [draw.randrange(size) for _ in range(draw.randint(0, 2))]
        yield [given[at : at + 2] for at in range(0, len(given), 2)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("fallback", [True, False])
def test_the_same_text_and_the_same_windows(kind, prefix, extra, fallback):
    tokenizer = Tokenizer(
        model(
            model_type=kind,
            add_dummy_prefix=prefix,
            remove_extra_whitespaces=extra,
            byte_fallback=fallback,
            vocab_size=420 if fallback else 150,
        )
    )
    new_text = detokenising.ways_of(tokenizer).new_text
    assert new_text is not None
    for results in answers(tokenizer, 60):
        ids, at = [], (0, 0)
        for given in results:
            ids += given
            expected = tokenizer.decode_token(ids, *at)
            assert new_text(ids, *at) == expected
            at = expected[1:]


def test_windows_that_begin_anywhere():
    """A replacement character before the new text: its bytes are U+FFFD's own."""
    tokenizer = Tokenizer(model())
    new_text = detokenising.ways_of(tokenizer).new_text
    names = ["<0xEF>", "<0xBF>", "<0xBD>", "</s>", *tokenizer.tokenize("the fox")]
    ids = tokenizer.convert_tokens_to_ids(names)
    for read in range(len(ids) + 1):
        for prefix in range(read + 1):
            assert new_text(ids, prefix, read) == tokenizer.decode_token(ids, prefix, read)


def test_pieces_are_asked_once(monkeypatch):
    tokenizer = Tokenizer(model())
    new_text = detokenising.ways_of(tokenizer).new_text
    ids = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(SENTENCES[0]))
    told = new_text(ids, 0, 0)
    monkeypatch.setattr(Tokenizer, "decode", None)
    assert new_text(ids, 0, 0) == told


@pytest.mark.parametrize("ids", [[10**6], [-1], [True], [1.0], ["x"], [1 << 70]])
def test_ids_of_another_kind_are_the_tokenizers(ids):
    new_text = detokenising.ways_of(Tokenizer(model())).new_text
    assert new_text(ids, 0, 0) is None
    assert new_text([5], 1, 0) is None
    assert new_text([5], 0, 2) is None


class Differs(Tokenizer):
    def convert_tokens_to_string(self, tokens):
        text = super().convert_tokens_to_string(tokens)
        return text if len(tokens) < 3 else text.upper()


class Waits(Tokenizer):
    """Another rule for characters that are not complete."""

    def decode_token(self, ids, prefix, read):
        before, text = self.decode(ids[prefix:read]), self.decode(ids[prefix:])
        return text[len(before) :], read, len(ids)


class Own(Tokenizer):
    def decode(self, ids, **options):
        return "own"


Differs.convert_tokens_to_string.__module__ = Waits.decode_token.__module__ = "fastdeploy.restated"


@pytest.mark.parametrize(
    ("cls", "reason"), [(Differs, "is expected"), (Waits, "is expected"), (Own, "Own has its own decode")]
)
def test_a_tokenizer_that_does_more_is_fastdeploys(cls, reason):
    with pytest.raises(NotPlain, match=reason):
        detokenising.ways_of(cls(model()))


def test_a_planted_difference_is_seen(monkeypatch):
    """Every piece as it is in the middle of a text."""
    real = detokenising.PieceTokens
    monkeypatch.setattr(
        detokenising,
        "PieceTokens",
        lambda meet, *others: real(lambda one: (met := meet(one)) and (met[1], *met[1:]), *others),
    )
    with pytest.raises(NotPlain, match="is expected"):
        detokenising.ways_of(Tokenizer(model()))

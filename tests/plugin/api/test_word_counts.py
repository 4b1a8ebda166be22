"""How many tokens a text has, by its words, beside the tokenizers library itself."""

import random

import pytest

from fd_postproc.fastdeploy.api import token_counts, word_counts
from fd_postproc.fastdeploy.api.chunks.model_fields import NotPlain

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, normalizers, pre_tokenizers  # noqa: E402

pytestmark = pytest.mark.framework  # its threads and allocations are none of a sanitizer's

TEXTS = [
    "the quick brown fox it's 1.5e-7, naïve café Straße",
    "def f(x):\n    return x\r\n",
    "日本語と中文",
] * 3
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
PATTERNS = {"gpt2": None, "qwen": QWEN, "llama3": QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")}
FORMS = {"none": None, "nfc": normalizers.NFC(), "nfkc": normalizers.NFKC()}
ODD = (
    "'sStTrRvVlLdDmMeE  \t\n\r\x0b\x1c\x1f09_"
    "ſ\u212aßéא٣²½ⅷ〇日の가\u1100\u1161\u0301\u0345ﬁ\xa0\u3000\u2028\u180e\u200b\x85😀🏽।"
)
UNSURE = ["it'ſ", "\u212a", "a\x85b", "\U0001d7cb\u20c1"]


def splitter(pattern):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    return level if pattern is None else pre_tokenizers.Sequence([split(pattern), level])


def split(pattern, behavior="isolated", **options):
    return pre_tokenizers.Split(Regex(pattern), behavior, **options)


@pytest.fixture(scope="module")
def trained():
    """The state of a small byte-level tokenizer."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = splitter(None)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<think>", " <pad left> "],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made.to_str()


@pytest.fixture
def library(trained):
    return tokenizers.Tokenizer.from_str(trained)


def count_of(library, text):
    return len(library.encode(text, add_special_tokens=False))


def random_texts(count):
    draw = random.Random(36)
    for number in range(count):
        if number % 2:
            yield "".join(draw.choices(ODD, k=draw.randint(1, 12)))
        else:
            codes = [draw.choice((draw.randrange(0x80), draw.randrange(0x3000))) for _ in range(6)]
            yield "".join(map(chr, codes))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_number(library, pattern, form):
    library.pre_tokenizer = splitter(PATTERNS[pattern])
    if FORMS[form] is not None:
        library.normalizer = FORMS[form]
    count = word_counts.counter(library)
    counted = 0
    for text in [*random_texts(1500), *TEXTS, "e\u0301", "ﬁ", "日本" * 50, "x" * 300, ""]:
        made = count(text)
        assert made in (None, count_of(library, text)), ascii(text)
        counted += made is not None
    assert counted > 400
    assert None not in [count(text) for text in [*TEXTS, "Straße", "日本 ab1", "é😀 x", " a's"]]
    assert [count(text) for text in UNSURE] == [None] * len(UNSURE)


def test_added_tokens_are_the_librarys(library):
    library.normalizer = normalizers.NFC()
    library.add_tokens([tokenizers.AddedToken("cafe\u0301", normalized=True)])
    count = word_counts.counter(library)
    for text in ("a<think>b", "x <pad left> y", "un café", "café"):
        assert count(text) is None
    assert count("<thin") == count_of(library, "<thin")
    assert count("caf") == count_of(library, "caf")


def test_a_word_is_tokenised_once(monkeypatch):
    monkeypatch.setattr(word_counts, "MOST", 4)
    asked = []
    counts = word_counts.WordCounts(lambda word: asked.append(word) or word)
    for _ in range(3):
        assert counts[" é"] == 3
        assert counts["x" * 100] == 100  # too long to be cached
    assert asked == ["ĠÃ©", *["x" * 100] * 3]
    for number in range(20):
        assert counts[str(number)] == len(str(number))
        assert len(counts) <= 4


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer", "reason"),
    [
        (pre_tokenizers.Metaspace(), None, "not byte-level"),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), None, "not byte-level"),
        (
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            None,
            "splits texts twice, or not",
        ),
        (
            pre_tokenizers.Sequence([split(QWEN), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
            None,
            "splits texts twice, or not",
        ),
        ("removed", None, "in another way"),
        ("isolated, inverted", None, "in another way"),
        ("string", None, "splits texts at a string"),
        (r"\p{Lu}\p{L}*|\s+", None, r"asks for '\\\\p{Lu}'"),
        (r"[\S]+|\s", None, r"asks for '\\\\S'"),
        (r"[日]+|.", None, "asks for '日'"),
        (r"[a-c[x]]+|.", None, r"asks for '\['"),
        (r"[a-z&&[^b]]+|.", None, "asks for '&&'"),
        (r"(a)|\s+|[^a\s]+", None, "has groups"),
        (r"(?>a+)b|\h+|.", None, r"asks for '\\\\h'"),
        (r"(?<n>a)|.", None, "not Python's"),
        (None, normalizers.Lowercase(), "its normalizer is Lowercase"),
    ],
    ids=repr,
)
def test_texts_that_are_split_otherwise_are_the_librarys(library, pre_tokenizer, normalizer, reason):
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known = {
        "removed": split(QWEN, "removed"),
        "isolated, inverted": split(QWEN, invert=True),
        "string": pre_tokenizers.Split(" ", "isolated"),
    }
    if isinstance(pre_tokenizer, str):
        pre_tokenizer = pre_tokenizers.Sequence([known.get(pre_tokenizer) or split(pre_tokenizer), level])
    if pre_tokenizer is not None:
        library.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        library.normalizer = normalizer
    with pytest.raises(NotPlain, match=reason):
        word_counts.counter(library)


def test_text_between_the_words_is_the_librarys(library):
    library.pre_tokenizer = splitter(r"\p{L}+|\p{N}+")
    count = word_counts.counter(library)
    assert count("abc12") == count_of(library, "abc12")
    assert count("abc 12") is None


def test_a_planted_difference_is_seen(library, monkeypatch):
    monkeypatch.setattr(word_counts, "_KIND_OF", dict.fromkeys("LNZMPSC", "0"))
    monkeypatch.setattr(word_counts, "KINDS", word_counts.Kinds())
    with pytest.raises(NotPlain, match="words are counted otherwise"):
        word_counts.counter(library)


class Fast:
    """The layers above the library."""

    def __init__(self, library):
        self._tokenizer = library

    def tokenize(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).tokens

    def get_vocab(self):
        return self._tokenizer.get_vocab()


Fast.tokenize.__module__ = token_counts._LIBRARY_LAYER


def test_the_counting_tokenizer_asks_for_words_first(library, monkeypatch):
    own, theirs = token_counts.CountingTokenizer(Fast(library)), Fast(library)
    for text in [*random_texts(300), *TEXTS, "a<think>b"]:
        assert len(own.tokenize(text)) == len(theirs.tokenize(text))
    monkeypatch.setattr(token_counts, "_MOST", 0)
    library.enable_truncation(1)
    assert len(own.tokenize("the quick brown fox")) > 1


def test_a_token_that_is_added_later(library):
    own = token_counts.CountingTokenizer(Fast(library))
    own.get_vocab()
    before = len(own.tokenize("quick fox"))
    library.add_tokens(["quick fox"])
    own.get_vocab()
    assert len(own.tokenize("quick fox")) == 1 < before

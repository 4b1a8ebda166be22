"""New text out of new token ids, without the layers above the tokenizers library."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api import detokenising
from fd_postproc.fastdeploy.api._chunks import forget_totals, totals
from fd_postproc.fastdeploy.api.plans import NotPlain

PIECES = [
    b" the",
    b"a",
    "é".encode(),
    b"\xc3",
    b"\xa9",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\xff",
    b"",
    "日本".encode(),
    b"\n",
]


def decoded(ids, skip_special_tokens=True):
    """As a byte-level tokenizer; one that strips the first space, as those with a metaspace do."""
    return b"".join(PIECES[one % len(PIECES)] for one in ids).decode(errors="replace").removeprefix(" ")


def cleaned(ids, skip_special_tokens=True):
    """As WordPiece: what comes later changes what was there."""
    return decoded(ids).replace("aa", "A").replace("\ufffd", "?")


class Library:
    """The tokenizers library's Tokenizer."""

    def __init__(self, decode=decoded):
        self.decode = decode

    def get_vocab_size(self):
        return 4 * len(PIECES)

    def get_added_tokens_decoder(self):
        return {7: "</s>"}

    def encode(self, text, add_special_tokens=True):
        return SimpleNamespace(ids=[ord(letter) % 44 for letter in text])


class Tokenizer:
    """Restates the layers: PaddleFormers' decode_token on transformers' decode and _decode."""

    def __init__(self, library=None):
        self._tokenizer = library or Library()

    def decode_token(self, ids, prefix, read):
        before, text = (self.decode(window) for window in (ids[prefix:read], ids[prefix:]))
        if len(text) > len(before) and not text.endswith("\ufffd") and not text[:-1].endswith("\ufffd"):
            if text.startswith(before):
                return text[len(before) :], read, len(ids)
            return "", prefix, len(ids)
        return "", prefix, read

    def decode(self, ids):
        return self._decode([int(one) for one in ids])

    def _decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class Processor:
    """Restates FastDeploy's data processor."""

    def __init__(self, tokenizer=None):
        self.tokenizer, self.decode_status = tokenizer or Tokenizer(), {}

    def ids2tokens(self, token_id, task_id):
        if envs.FD_USE_HF_TOKENIZER:
            self.decode_status[task_id] = [[], [], ""]
            return "hf", [], ""
        status = self.decode_status.setdefault(task_id, [0, 0, [], ""])
        previous_texts = status[3]
        status[2].extend(token_id)
        text, status[0], status[1] = self.tokenizer.decode_token(status[2], status[0], status[1])
        status[3] += text
        return text, status[2], previous_texts


envs = SimpleNamespace(FD_USE_HF_TOKENIZER=False)


@pytest.fixture(autouse=True)
def layers(monkeypatch):
    forget_totals()
    for name in detokenising.LAYERS:
        monkeypatch.setitem(detokenising.LAYERS, name, __name__)
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Library))
    monkeypatch.setattr(detokenising, "KNOWN_NAMES", detokenising.KNOWN_NAMES | {"setdefault"})


@pytest.fixture
def ours():
    cls = type("Copy", (Processor,), dict(vars(Processor)))
    restore = detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs))
    yield cls
    restore()
    assert cls.ids2tokens is Processor.ids2tokens


@given(st.lists(st.lists(st.integers(0, 43), max_size=4), max_size=12), st.sampled_from([decoded, cleaned]))
def test_the_same_text_and_the_same_state(steps, decode):
    cls = type("Copy", (Processor,), dict(vars(Processor)))
    detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs))
    tokenizer = Tokenizer(Library(decode))
    own, theirs = cls(tokenizer), Processor(tokenizer)
    tokenizer.decode_token = None  # is not asked
    del tokenizer.decode_token
    for number, step in enumerate(steps):
        name = f"answer {number % 2}"
        assert own.ids2tokens(step, name) == theirs.ids2tokens(step, name)
        assert own.decode_status == theirs.decode_status
    assert totals()[1] == {}


def test_the_layers_are_passed_over(ours, monkeypatch):
    processor = ours()
    monkeypatch.setattr(Tokenizer, "_decode", None)
    assert processor.ids2tokens([0, 1], "a") == ("thea", [0, 1], "")
    assert processor.ids2tokens([9], "a") == ("日本", [0, 1, 9], "thea")


def test_the_list_of_ids_is_the_live_one(ours):
    processor = ours()
    _, ids, _ = processor.ids2tokens([1], "a")
    assert ids is processor.decode_status["a"][2]


def test_ids_that_the_library_refuses(ours):
    """They raise, or are turned into integers, as ever."""
    own, theirs = ours(), Processor()
    for ids in ([1.0], (1,), ["x"]):
        outcomes = []
        for processor in (own, theirs):
            try:
                outcomes.append(processor.ids2tokens(ids, "a"))
            except ValueError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        assert own.decode_status == theirs.decode_status


def test_another_tokenizer_of_the_environment(ours, monkeypatch):
    processor = ours()
    monkeypatch.setattr(envs, "FD_USE_HF_TOKENIZER", True)
    for _ in range(2):
        assert processor.ids2tokens([1], "a") == ("hf", [], "")


class OwnDecode(Tokenizer):
    def decode(self, ids):
        return "own"


OwnDecode.decode.__module__ = "elsewhere"


def changed():
    tokenizer = Tokenizer()
    tokenizer.decode_token = lambda ids, prefix, read: ("x", 0, 0)
    return tokenizer


def other_library():
    tokenizer = Tokenizer()
    tokenizer._tokenizer = SimpleNamespace(decode=decoded)
    return tokenizer


class Differs(Tokenizer):
    """Has the layers that are known, which do something else."""

    def _decode(self, ids):
        return super()._decode(ids).replace("日", "天")


class Slotted:
    __slots__ = ()


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (OwnDecode(), "own decode"),
        (changed(), "own decode_token"),
        (other_library(), "none of the tokenizers library's"),
        (Differs(), "is expected"),
        (Slotted(), "own decode_token"),
        (Tokenizer(Library(None)), "TypeError"),
    ],
)
def test_a_tokenizer_that_does_more_is_fastdeploys(ours, tokenizer, reason):
    processor = ours(tokenizer)
    theirs = Processor(tokenizer)
    for _ in range(2):
        outcomes = []
        for one in (processor, theirs):
            try:
                outcomes.append(one.ids2tokens([9, 1], "a"))
            except (AttributeError, TypeError) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
    assert any(reason in told for told in totals()[1])
    assert len(totals()[1]) == 1


def test_each_tokenizer_is_tried_once_and_again_when_what_is_below_changes(ours, monkeypatch):
    tried = []
    plain_decode = detokenising.plain_decode
    monkeypatch.setattr(detokenising, "plain_decode", lambda one: tried.append(one) or plain_decode(one))
    processor = ours()
    for _ in range(3):
        processor.ids2tokens([1], "a")
    assert len(tried) == 1
    processor.tokenizer._tokenizer = Library(cleaned)
    processor.ids2tokens([1], "b")
    assert len(tried) == 2
    first, processor.tokenizer = processor.tokenizer, Tokenizer()
    processor.ids2tokens([1], "c")
    assert len(tried) == 3
    processor.tokenizer = first
    processor.ids2tokens([1], "d")
    assert len(tried) == 3


def test_a_tokenizer_that_is_gone_is_forgotten():
    tokenizers = detokenising.Tokenizers()
    assert tokenizers.decode_of(Tokenizer()) is not None
    assert tokenizers.known == {}


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        (lambda text, prefix, read, ids: (text, prefix, read), False),
        (lambda text, prefix, read, ids: (text[:-1], prefix, read), True),
        (lambda text, prefix, read, ids: (text, read, read), True),
        (lambda text, prefix, read, ids: (text, prefix, len(ids)), True),
    ],
)
def test_a_planted_difference_is_seen(monkeypatch, planted, seen):
    right = detokenising.decode_token
    monkeypatch.setattr(
        detokenising,
        "decode_token",
        lambda decode, ids, *offsets: planted(*right(decode, ids, *offsets), ids),
    )
    if seen:
        with pytest.raises(NotPlain, match="is expected"):
            detokenising.plain_decode(Tokenizer())
    else:
        detokenising.plain_decode(Tokenizer())


def test_another_method_stays(caplog):
    class More(Processor):
        def ids2tokens(self, token_id, task_id):
            return self.transliterate(token_id)

    class Arguments(Processor):
        def ids2tokens(self, token_id):
            return token_id

    for cls, text in ((More, "looks at more: transliterate"), (Arguments, "other arguments")):
        stock = cls.ids2tokens
        with pytest.raises(NotPlain, match=text):
            detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs))
        assert cls.ids2tokens is stock

"""New text out of new token ids, without the layers above the tokenizers library."""

import contextlib
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api import detokenising
from fd_postproc.fastdeploy.api.chunks._chunks import forget_totals, totals
from fd_postproc.fastdeploy.api.chunks.model_fields import NotPlain

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


class ByteLevel:
    """The library's decoder of byte-level tokenizers."""


class Library:
    """The tokenizers library's Tokenizer."""

    def __init__(self, decode=decoded):
        self.decode, self.decoder = decode, None

    def get_vocab_size(self):
        return 4 * len(PIECES)

    def get_added_tokens_decoder(self):
        return {7: "</s>"}

    def encode(self, text, add_special_tokens=True):
        return SimpleNamespace(ids=[ord(letter) % 44 for letter in text])


ADDED = {7: "</s>", 8: "日本 ", 9: "<é>"}
NAMES = {
    n: ADDED.get(n, "".join(letters))
    for n, letters in enumerate(
        [
            *(
                [letter for byte in piece for letter, own in detokenising.BYTES_OF.items() if own == byte]
                for piece in PIECES
            ),
            *detokenising.BYTES_OF,
        ]
    )
    if n not in (3, 4)
}
"""Tokens of a byte-level tokenizer by id: the pieces, added ones, two ids without, and all single bytes.

The library takes an added token whose characters are all in the alphabet for bytes, too: ``<é>`` is broken.
"""


def bytes_of(name):
    known = all(letter in detokenising.BYTES_OF for letter in name)
    return bytes(detokenising.BYTES_OF[letter] for letter in name) if known else name.encode()


def byte_level(wrong=lambda ids, text: text):
    """A library whose texts are the bytes of tokens in a row."""
    library = Library()
    library.decoder, library.asked = ByteLevel(), []
    library.get_vocab_size = lambda: len(PIECES) + 256
    library.get_added_tokens_decoder = lambda: ADDED
    library.id_to_token = NAMES.get
    library.token_to_id = lambda name: len(PIECES) + [*detokenising.BYTES_OF].index(name)
    library.encode = lambda text, add_special_tokens: SimpleNamespace(
        ids=[
            library.token_to_id(letter)
            for byte in text.encode()
            for letter, own in detokenising.BYTES_OF.items()
            if own == byte
        ]
    )

    def decode(ids, skip_special_tokens=True):
        if not all(isinstance(one, int) for one in ids):
            raise TypeError
        library.asked.append([*ids])
        text = b"".join(bytes_of(NAMES[one]) for one in ids if one in NAMES).decode(errors="replace")
        return wrong(ids, text)

    library.decode = decode
    return library


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
    module = SimpleNamespace(Tokenizer=Library, decoders=SimpleNamespace(ByteLevel=ByteLevel))
    for name in detokenising.LAYERS:
        monkeypatch.setitem(detokenising.LAYERS, name, __name__)
    monkeypatch.setitem(sys.modules, "tokenizers", module)


@pytest.fixture
def ours():
    cls = type("Copy", (Processor,), dict(vars(Processor)))
    restore = detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs, __name__=__name__))
    yield cls
    restore()
    assert cls.ids2tokens is Processor.ids2tokens


TOKENIZERS = [Tokenizer(Library(decoded)), Tokenizer(Library(cleaned)), Tokenizer(byte_level())]
"""As with a metaspace, as WordPiece, and byte-level."""


@given(
    st.lists(st.lists(st.integers(0, len(PIECES) + 255), max_size=4), max_size=12),
    st.sampled_from(TOKENIZERS),
)
def test_the_same_text_and_the_same_state(steps, tokenizer):
    cls = type("Copy", (Processor,), dict(vars(Processor)))
    detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs, __name__=__name__))
    own, theirs = cls(tokenizer), Processor(tokenizer)
    tokenizer.decode_token = None  # is not asked
    del tokenizer.decode_token
    for number, step in enumerate(steps):
        name = f"answer {number % 2}"
        assert own.ids2tokens(step, name) == theirs.ids2tokens(step, name)
        assert own.decode_status == theirs.decode_status
    assert totals()[1] == {}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_what_a_stream_interval_has_joined_says_the_same_as_id_by_id(tokenizer, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_STREAM_INTERVAL", "4")
    cls = type("Copy", (Processor,), dict(vars(Processor)))
    detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs, __name__=__name__))
    own, theirs = cls(tokenizer), Processor(tokenizer)
    for step in ([0], [1, 9, 7], [0, 1, 3], [4, 0, 5], [0, 5, 6, 5]):  # 3 and 5 begin a character
        said = [theirs.ids2tokens([one], "a") for one in step]
        assert own.ids2tokens(step, "a") == ("".join(text for text, _, _ in said), said[-1][1], said[0][2])
        assert own.decode_status == theirs.decode_status
    if tokenizer is TOKENIZERS[0]:
        assert Processor(tokenizer).ids2tokens([0, 1, 3], "a")[0] == ""  # all of it waits in FastDeploy


def test_the_layers_are_passed_over(ours, monkeypatch):
    monkeypatch.setattr(detokenising, "is_serving", lambda: True)
    processor = ours()  # tries its tokenizer, which another process never needs
    monkeypatch.setattr(Tokenizer, "_decode", None)
    assert processor.ids2tokens([0, 1], "a") == ("thea", [0, 1], "")
    assert processor.ids2tokens([9], "a") == ("日本", [0, 1, 9], "thea")


def test_a_byte_level_tokenizer_is_not_asked_again(ours):
    tokenizer = Tokenizer(byte_level())
    processor = ours(tokenizer)
    given = [0, 1, 2, 5, 6, 8, 9, 10, 2, 1]
    told = [processor.ids2tokens([one], "a")[0] for one in given]
    assert told == [" the", "a", "é", "", "😀", "日本 ", "", "<\ufffd>\n", "é", "a"]
    asked = tokenizer._tokenizer.asked
    asked.clear()
    assert [processor.ids2tokens([one], "b")[0] for one in given] == told
    assert asked == []
    processor.ids2tokens([3], "b")  # no token's: the library leaves it out
    assert asked


def test_a_window_of_any_size(ours):
    """One that never ends in a whole character grows with the answer."""
    own, theirs = ours(Tokenizer(byte_level())), Processor(Tokenizer(byte_level()))
    for step in range(60):
        ids = [8] * 40 + [5] if step < 55 else [6, 1]
        assert own.ids2tokens(ids, "a") == theirs.ids2tokens(ids, "a")


@pytest.mark.parametrize(
    "state", [(-1, 0), (0, 9), (3, 1), (9, 9)], ids=["negative", "behind the end", "backwards", "both behind"]
)
def test_offsets_that_somebody_changed(ours, state):
    own, theirs = ours(Tokenizer(byte_level())), Processor(Tokenizer(byte_level()))
    for processor in (own, theirs):
        processor.ids2tokens([1, 2, 1], "a")
        processor.decode_status["a"][:2] = state
    assert own.ids2tokens([2, 1], "a") == theirs.ids2tokens([2, 1], "a")
    assert own.decode_status == theirs.decode_status


@pytest.mark.parametrize("ids", [[1 << 70], [-1], [True], [1.0], [5000], ["x"], [None]])
def test_ids_of_another_kind_are_the_librarys(ours, ids):
    outcomes = []
    for processor in (ours(Tokenizer(byte_level())), Processor(Tokenizer(byte_level()))):
        processor.ids2tokens([1], "a")
        try:
            outcomes.append([processor.ids2tokens(ids, "a"), processor.decode_status])
        except (TypeError, ValueError, OverflowError) as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            lambda ids, text: text.replace("the", "The") if 0 in ids else text,
            "shown as something else than its bytes",
        ),
        (lambda ids, text: text if len(ids) < 2 else text.removeprefix(" "), "by their bytes: "),
        (lambda ids, text: text.replace("\ufffd\ufffd", "\ufffd"), "by their bytes: "),
    ],
    ids=["a token", "its neighbours", "broken characters"],
)
def test_a_byte_level_tokenizer_that_does_more(ours, wrong, reason):
    own, theirs = ours(Tokenizer(byte_level(wrong))), Processor(Tokenizer(byte_level(wrong)))
    for step in ([0, 1], [2], [2, 0, 1], [5, 5], [6], [1], [2]):
        assert own.ids2tokens(step, "a") == theirs.ids2tokens(step, "a")
    assert any(reason in told for told in totals()[1])


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
    ways_of = detokenising.ways_of
    monkeypatch.setattr(detokenising, "ways_of", lambda one: tried.append(one) or ways_of(one))
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
    assert tokenizers.ways_of(Tokenizer()).decode is not None
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
            detokenising.ways_of(Tokenizer())
    else:
        detokenising.ways_of(Tokenizer())


def test_another_method_stays(caplog):
    class Arguments(Processor):
        def ids2tokens(self, token_id):
            return token_id

    stock = Arguments.ids2tokens
    with pytest.raises(NotPlain, match="other arguments"):
        detokenising.install(SimpleNamespace(BaseTextProcessor=Arguments, envs=envs, __name__=__name__))
    assert Arguments.ids2tokens is stock


class ExtendsLast(Processor):
    """As in FastDeploy 2.5: ids that the tokenizer refuses are not kept."""

    def ids2tokens(self, token_id, task_id):
        status = self.decode_status.setdefault(task_id, [0, 0, [], ""])
        previous_texts = status[3]
        text, status[0], status[1] = self.tokenizer.decode_token(status[2] + token_id, status[0], status[1])
        status[2] += token_id
        status[3] += text
        return text, status[2], previous_texts


def test_ids_that_are_refused_are_kept_only_where_fastdeploy_keeps_them():
    for base in (Processor, ExtendsLast):
        cls = type("Copy", (base,), dict(vars(base)))
        detokenising.install(SimpleNamespace(BaseTextProcessor=cls, envs=envs, __name__=__name__))
        own, theirs = cls(), base()
        for ids in ([1], ["x"], [2]):
            for processor in (own, theirs):
                with contextlib.suppress(ValueError):
                    processor.ids2tokens(ids, "a")
            assert own.decode_status == theirs.decode_status

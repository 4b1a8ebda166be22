"""New text out of new token ids, without the layers above the libraries: real tokenizers of four kinds."""

import contextlib
import random
import re
from types import SimpleNamespace

import pytest

from fd_postproc.fastdeploy.api.chunks._chunks import TokenBytes
from fd_postproc.fastdeploy.api.text import detokenising, mends, ways
from fd_postproc.fastdeploy.api.text.answers import Answers, answers_of
from fd_postproc.fastdeploy.events.counters import forget, noted
from fd_postproc.fastdeploy.gate.seams import NotPlain
from tests.lib import restated_parsers
from tests.lib.children import in_a_child
from tests.lib.restated_parsers import Processor
from tests.lib.restated_tokenizers import KINDS, MODELS, MODULE, SENTENCES, Fast, Pieces, of_paddleformers
from tests.lib.rows import each

pytestmark = pytest.mark.framework  # its allocations are none of a sanitizer's


@pytest.fixture(autouse=True)
def layers(monkeypatch):
    forget()
    for name in ways.LAYERS:
        monkeypatch.setitem(ways.LAYERS, name, MODULE)


def install(base=Processor):
    cls = type("Copy", (base,), dict(vars(base)))
    return cls, detokenising.install(restated_parsers.module_of(cls))


@pytest.fixture
def sides():
    """A function that gives a data processor with ours, and one of FastDeploy's, for a tokenizer."""
    cls, restore = install()
    yield lambda tokenizer: (cls(None, None, tokenizer), Processor(None, None, tokenizer))
    restore()
    assert cls.ids2tokens is Processor.ids2tokens


def answers(tokenizer, count, seed=1):
    """Random answers as results bring them: a few ids, which may be those of parts of characters."""
    draw, size = random.Random(seed), len(tokenizer)
    texts = [tokenizer.ids_of(text) for text in SENTENCES]
    for _ in range(count):
        ids = []
        for _ in range(draw.randint(1, 5)):
            ids += draw.choice(texts)[: draw.randint(1, 9)]
            ids += [draw.randrange(size) for _ in range(draw.randint(0, 2))]
        results = []
        while ids:
            results.append(ids[: draw.randint(0, 4)])
            del ids[: len(results[-1])]
        yield results


def same(own, theirs, results, name="a"):
    for ids in results:
        outcomes = []
        for processor in (own, theirs):
            try:
                outcomes.append(processor.ids2tokens(ids, name))
            except (AttributeError, TypeError, ValueError, OverflowError) as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]
        assert own.decode_status == theirs.decode_status


@each("make, options", [(Fast, {"kind": kind}) for kind in KINDS] + [(Pieces, one) for one in MODELS])
def test_the_same_text_and_the_same_state(make, options, sides):
    tokenizer = make(**options)
    own, theirs = sides(tokenizer)
    quick = ways.ways_of(tokenizer).new_text is not None
    assert quick is (make is Pieces or options["kind"] == "bytebpe")
    for number, results in enumerate(answers(tokenizer, 40)):
        same(own, theirs, results, f"answer {number % 7}")
    assert noted() == {}


BYTE = re.compile("<0x[0-9A-F]{2}>")


def whole_text(tokenizer, ids):
    """The text of all ids; the library makes U+FFFD of a metaspace tokenizer's whole characters, too."""
    if isinstance(tokenizer, Pieces) or "\u2581" not in "".join(tokenizer._tokenizer.get_vocab()):
        return tokenizer.decode(ids)
    names = map(tokenizer._tokenizer.id_to_token, ids)
    raw = [bytes([int(one[3:-1], 16)]) if BYTE.fullmatch(one) else one.encode() for one in names]
    text = b"".join(raw).decode(errors="fd_postproc_bytes")
    return text.replace("\u2581", " ").removeprefix(" ")


@each("make", [Fast, lambda: Fast("metaspace"), *(lambda one=one: Pieces(**one) for one in MODELS)])
def test_no_text_is_lost(make, monkeypatch):
    """The mends: an answer's text is that of all its ids, with U+FFFD for what never became a character."""
    monkeypatch.setenv("FD_POSTPROC_MENDS", "1")
    tokenizer = make()
    new_text, own = ways.ways_of(tokenizer).new_text, Answers(Processor.ids2tokens, None)
    for results in answers(tokenizer, 80):
        known, text, prefix, read, state = [], "", 0, 0, [0, 0, [], ""]
        for ids in results:
            known += ids
            more, prefix, read = new_text(known, prefix, read)
            text += more
            assert own.advance(tokenizer, state, ids) == more
        rest = new_text(known, prefix, read, to_the_end=True)[0]
        assert own.hold_text(tokenizer, state) is (rest != "")
        assert own.advance(tokenizer, state, [], mends.END) == rest
        assert text + rest == whole_text(tokenizer, known), known


@each("make", [Fast, Pieces, lambda: Fast("metaspace")])
def test_a_tokenizer_is_not_asked_again(make, sides, monkeypatch):
    """Nor the layers above a library; a process that serves tries its tokenizer at the start."""
    monkeypatch.setattr(detokenising, "is_serving", lambda: True)
    tokenizer = make()
    own, theirs = sides(tokenizer)
    results = [[one] for one in tokenizer.ids_of(SENTENCES[2])]
    told = [theirs.ids2tokens(ids, "a")[0] for ids in results]
    if make in (Fast, Pieces):
        assert [own.ids2tokens(ids, "a")[0] for ids in results] == told
    if make is Fast:
        tokenizer._tokenizer.decode = None
    monkeypatch.setattr(type(tokenizer), "_decode", None)
    assert [own.ids2tokens(ids, "b")[0] for ids in results] == told


@each("make", [Fast, Pieces])
def test_windows_of_any_size_and_place(make, sides):
    """One that never ends in a whole character grows with the answer; offsets may be changed by somebody."""
    tokenizer = make()
    if make is Fast:
        byte = [tokenizer._tokenizer.token_to_id(one) for one in "\u00f0\u0141\u013a\u0122"]  # of an emoji
    else:
        byte = tokenizer.convert_tokens_to_ids(["<0xEF>", "<0xBF>", "<0xBD>", "</s>"])
    words = tokenizer.ids_of("the fox")
    same(*sides(tokenizer), [*[words * 9 + byte[:1]] * 40, byte[1:], words])
    new_text, ids = ways.ways_of(tokenizer).new_text, [*byte, *words]
    for read in range(len(ids) + 1):
        for prefix in range(read + 1):
            assert new_text(ids, prefix, read) == tokenizer.decode_token(ids, prefix, read)
    for state in (-1, 0), (0, 9), (3, 1), (9, 9):
        own, theirs = sides(tokenizer)
        for processor in (own, theirs):
            processor.ids2tokens(words, "a")
            processor.decode_status["a"][:2] = state
        same(own, theirs, [words[:1]])


@each("make", [Fast, Pieces])
def test_ids_of_another_kind_are_the_tokenizers(make, sides):
    """They raise, or are turned into integers, as ever."""
    tokenizer = make()
    new_text = ways.ways_of(tokenizer).new_text
    assert new_text([5], 1, 0) is new_text([5], 0, 2) is None
    own, theirs = sides(tokenizer)
    for number, ids in enumerate(([10**6], [-1], [True], [1.0], (1,), ["x"], [1 << 70])):
        if type(ids) is list:
            assert new_text(ids, 0, 0) is None
        if make is Fast:
            same(own, theirs, [[5], ids, [6]], str(number))


@each(
    "wrong, reason",
    [
        (lambda ids, text: text.replace("the", "The") if len(ids) == 1 else text, "something else than its"),
        (lambda ids, text: text if len(ids) < 2 else text.removeprefix(" "), "by their bytes: "),
        (lambda ids, text: text.replace("\ufffd\ufffd", "\ufffd"), "by their bytes: "),
    ],
)
def test_a_byte_level_tokenizer_that_does_more(sides, wrong, reason):
    forget()
    tokenizer = Fast()
    library, decode = tokenizer._tokenizer, tokenizer._tokenizer.decode
    library.decode = lambda ids, skip_special_tokens=True: wrong(ids, decode(ids, skip_special_tokens=False))
    for number, results in enumerate(answers(tokenizer, 20)):
        same(*sides(tokenizer), results, str(number))
    assert any(reason in told for told in noted())


def test_a_token_that_is_not_shown_as_its_bytes_is_the_tokenizers_each_time():
    forget()
    library = Fast()._tokenizer
    decode, token = library.decode, library.token_to_id("t")
    library.decode = lambda ids, **options: decode(ids, **options).replace("t", "T")
    new_text = ways.bytes_way(library)
    assert [new_text([token], 0, 0) for _ in range(3)] == [None] * 3


def test_ids_that_go_while_a_tokenizer_is_asked():
    """Its code has the list, too: an error, after which FastDeploy's own is called."""

    def work():
        ids = []

        def go(token):
            ids.clear()
            return "t"

        ids[:] = [5, 6, 7]
        with pytest.raises(IndexError):
            TokenBytes(lambda token: (b"t", go(token).encode(), 0), True, 9).new_text(ids, 0, 0)

    in_a_child(work)


def fast_with(**values):
    return with_own(Fast(), **values)


def with_own(tokenizer, **values):
    vars(tokenizer).update(values)
    return tokenizer


def fast_without_decode():
    tokenizer = Fast()
    tokenizer._tokenizer.decode = None
    return tokenizer


@of_paddleformers
class Differs(Fast):
    def _decode(self, ids):
        return Fast._decode(self, ids).replace("t", "d")


@of_paddleformers
class Waits(Pieces):
    """Another rule for characters that are not complete."""

    def decode_token(self, ids, prefix, read):
        before, text = self.decode(ids[prefix:read]), self.decode(ids[prefix:])
        return text[len(before) :], read, len(ids)


class OwnDecode(Fast):
    def decode(self, ids):
        return "own"


class Slotted:
    __slots__ = ()


@each(
    "make, reason",
    [
        (OwnDecode, "own decode"),
        (lambda: fast_with(decode_token=lambda ids, prefix, read: ("x", 0, 0)), "own decode_token"),
        (
            lambda: fast_with(_tokenizer=SimpleNamespace(decode=lambda ids, **_: "x")),
            "none of the tokenizers",
        ),
        (fast_without_decode, "TypeError"),
        *(
            (lambda name=name: with_own(pieces := Pieces(), **{name: getattr(pieces, name)}), f"own {name}")
            for name in ways.PIECE_LAYERS
        ),
        (Differs, "is expected"),
        (Waits, "is expected"),
        (Slotted, "own decode_token"),
    ],
)
def test_a_tokenizer_that_does_more_is_fastdeploys(sides, make, reason):
    forget()
    same(*sides(make()), [[9, 1], [5, 6]])
    assert any(reason in told for told in noted())
    assert len(noted()) == 1


def test_each_tokenizer_is_tried_once_and_again_when_what_is_below_changes(sides, monkeypatch):
    tried = []
    ways_of = ways.ways_of
    monkeypatch.setattr(ways, "ways_of", lambda one: tried.append(one) or ways_of(one))
    first, second = Fast(), Fast("wordpiece")
    own, _ = sides(first)
    below = first._tokenizer, second._tokenizer
    for name, tokenizer, library, times in (
        *(("a", first, below[0], 1), ("a", first, below[0], 1), ("b", first, below[1], 2)),
        *(("c", second, below[1], 3), ("d", first, below[1], 3)),
    ):
        own.tokenizer, first._tokenizer = tokenizer, library
        own.ids2tokens([1], name)
        assert len(tried) == times


def test_a_tokenizer_that_is_gone_is_forgotten():
    known = ways.Tokenizers()
    assert known.ways_of(Fast()).decode is not None
    assert known._known._held == {}


def test_a_planted_difference_is_seen(monkeypatch):
    right, real = ways.decode_token, ways.TokenBytes
    for planted in (
        lambda text, prefix, read, ids: (text[:-1], prefix, read),
        lambda text, prefix, read, ids: (text, read, read),
        lambda text, prefix, read, ids: (text, prefix, len(ids)),
    ):
        monkeypatch.setattr(
            ways,
            "decode_token",
            lambda decode, ids, *offsets, planted=planted: planted(*right(decode, ids, *offsets), ids),
        )
        with pytest.raises(NotPlain, match="is expected"):
            ways.ways_of(Fast("metaspace"))
    monkeypatch.setattr(
        ways,
        "TokenBytes",  # every piece as it is in the middle of a text
        lambda meet, *others: real(lambda one: (met := meet(one)) and (met[1], *met[1:]), *others),
    )
    with pytest.raises(NotPlain, match="is expected"):
        ways.ways_of(Pieces())


@each("times", [1, 100])
@pytest.mark.falls_back
def test_a_failure_of_ours_is_fastdeploys_method(sides, times, monkeypatch):
    """Text and state are FastDeploy's, also in the middle of an answer; after three in a row for good."""
    own, theirs = sides(Fast("metaspace"))
    guard, right, left = answers_of(type(own).ids2tokens).guard, ways.decode_token, [0]

    def failing(*arguments):
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError("planted")
        return right(*arguments)

    monkeypatch.setattr("fd_postproc.fastdeploy.api.text.answers.decode_token", failing)
    for number, results in enumerate(answers(own.tokenizer, 3)):
        same(own, theirs, results[:1], number)
        left[0] = times
        same(own, theirs, results[1:], number)
    assert guard.is_on is (times == 1)


def test_the_abstract_method_stays():
    class BaseDataProcessor(Processor):
        def ids2tokens(self, token_id, task_id=None):
            raise NotImplementedError

    stock = BaseDataProcessor.ids2tokens
    with pytest.raises(NotPlain, match="defines no ids2tokens"):
        detokenising.install(restated_parsers.module_of(BaseDataProcessor))
    assert BaseDataProcessor.ids2tokens is stock


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
        own, theirs = install(base)[0](None, None, Fast()), base(None, None, Fast())
        for ids in ([1], ["x"], [2]):
            for processor in (own, theirs):
                with contextlib.suppress(ValueError):
                    processor.ids2tokens(ids, "a")
            assert own.decode_status == theirs.decode_status

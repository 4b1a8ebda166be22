"""Stand-ins beside the pydantic models that they stand in for."""

import copy
import gc
import math
import pickle
import warnings
from types import SimpleNamespace

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fd_postproc.fastdeploy.api.chunks import _chunks
from fd_postproc.fastdeploy.api.chunks._chunks import StandIn, full
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style, models_of
from fd_postproc.fastdeploy.events.counters import forget, noted
from fd_postproc.fastdeploy.gate.seams import NotPlain
from tests.lib.children import in_a_child
from tests.lib.rows import each
from tests.restated.api import models
from tests.restated.api.streams import PARTS

texts = st.one_of(st.text(max_size=8), st.sampled_from(['"\\/\x00\x1f\x7f', "\u2028", "😀", "\ud800"]))
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.booleans())
odd = st.one_of(
    st.none(), numbers, texts, st.lists(numbers, max_size=3), st.just({"a": math.nan}), st.just(b"x")
)
masks = st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=2)
speculation = st.sampled_from(
    [
        None,
        {
            "accepted_tokens": 5, "rejected_tokens": 1, "accept_ratio": 1, "average_accept_length": 2.5,
            "accepted_tokens_per_head": [3], "accept_ratio_per_head": [0],
        },
        {"accepted_tokens": "x"},
    ]
)  # fmt: skip
reasons = st.sampled_from(["stop", "length", "abort", "nothing known", None])


def some(strategy):
    """Usually of the right kind."""
    return st.one_of(strategy, strategy, strategy, strategy, st.none(), odd)


DELTA = {
    "role": some(texts), "content": some(texts),
    "multimodal_content": st.one_of(st.none(), st.lists(odd, max_size=2)),
    "prompt_token_ids": some(st.lists(st.integers(-5, 2**40), max_size=3)), "reasoning_content": some(texts),
    "tool_calls": st.sampled_from([None, [], [{"index": 0}], [models.DeltaToolCall(index=1, id="x")], "no"]),
    "prompt_tokens": some(texts), "completion_tokens": some(texts), "unknown": odd,
}  # fmt: skip
CHOICE = {
    "index": st.integers(0, 3), "sampling_mask": some(masks), "finish_reason": some(reasons),
    "arrival_time": some(numbers), "speculate_metrics": speculation, "logprobs": st.none(),
}  # fmt: skip
CHUNK = {
    "id": some(texts), "object": some(texts), "created": some(st.integers()), "model": some(texts),
    "metrics": st.one_of(st.none(), st.dictionaries(texts, numbers, max_size=2)),
}  # fmt: skip


def given_of(kinds):
    """Some of a model's fields, in any order."""
    return st.lists(st.sampled_from(sorted(kinds)), unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: kinds[name] for name in names})
    )


STOOD_IN = {cls: None for cls in vars(models).values() if hasattr(cls, "model_fields")}
OURS = SimpleNamespace(**{name: models_of(getattr(models, name), STOOD_IN, float_style()) for name in PARTS})


def outcome(function):
    """What is returned, or the kind and text of what is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's, at a field that was assigned another type
        try:
            return function()
        except Exception as error:
            return type(error).__name__, str(error)


def chunk(parts, delta, choice, whole, assigned, unset):
    entry = parts.DeltaMessage(**copy.deepcopy(delta))
    for name, value in assigned.items():
        setattr(entry, name, value)
    made = parts.ChatCompletionStreamResponse(
        choices=[parts.ChatCompletionResponseStreamChoice(delta=entry, **choice)], **whole
    )
    return made.model_dump_json(exclude_unset=unset), repr(made.model_dump()), repr(made)


@given(given_of(DELTA), given_of(CHOICE), given_of(CHUNK), given_of(DELTA), st.booleans(), st.booleans())
@example({}, {}, {}, {}, True, True)
def test_the_same_bytes_or_the_same_error(delta, choice, whole, assigned, unset, lacks):
    assigned.pop("unknown", None)
    choice.setdefault("index", 0)
    for name, value in (("id", "x"), ("created", 1), ("model", "m"))[: 3 - lacks]:
        whole.setdefault(name, value)
    theirs = outcome(lambda: chunk(models, delta, choice, whole, assigned, unset))
    assert outcome(lambda: chunk(OURS, delta, choice, whole, assigned, unset)) == theirs


def delta(parts, **values):
    return parts.DeltaMessage(role="assistant", tool_calls=None, **values)


def test_lists_are_copied_when_given_and_kept_when_assigned():
    for parts in (models, OURS):
        ids = [1, 2]
        made = delta(parts, prompt_token_ids=ids)
        made.completion_token_ids = ids
        ids.append(3)
        assert made.prompt_token_ids == [1, 2]
        assert made.model_dump()["completion_token_ids"] is not ids
        assert made.completion_token_ids is ids
        assert '"completion_token_ids":[1,2,3]' in made.model_dump_json()


def test_what_it_says_of_itself():
    forget()
    before = _chunks.written()
    made = delta(OURS, content="é")
    assert isinstance(made, StandIn)
    assert isinstance(made, OURS.DeltaMessage)
    assert not isinstance(made, OURS.UsageInfo)
    assert made.__class__ is type(made)
    assert OURS.UsageInfo.model_fields is models.UsageInfo.model_fields
    assert type(OURS.UsageInfo.model_validate({"prompt_tokens": 1})) is models.UsageInfo
    assert (made.role, made.content, made.completion_tokens) == ("assistant", "é", None)
    assert (_chunks.written() - before, noted()) == (0, {})  # none of it makes the full model
    with pytest.raises(AttributeError):
        made.nothing  # noqa: B018
    with pytest.raises(ValueError, match="no field"):
        made.nothing = 1


def test_it_becomes_the_full_model_and_stays_it():
    theirs, ours = delta(models, content="x"), delta(OURS, content="x")
    assert ours == theirs
    assert ours.model_fields_set == theirs.model_fields_set
    assert ours.model_copy() == theirs
    assert pickle.loads(pickle.dumps(ours)) == theirs
    assert type(copy.copy(ours)) is type(copy.deepcopy(ours)) is models.DeltaMessage
    assert dict(ours) == dict(theirs)
    assert (repr(ours), str(ours)) == (repr(theirs), str(theirs))
    ours.content = theirs.content = "after"
    assert ours.model_dump_json(exclude_unset=True) == theirs.model_dump_json(exclude_unset=True)
    choice = OURS.ChatCompletionResponseStreamChoice(index=0, delta=ours)
    assert '"after"' in choice.model_dump_json(exclude_unset=True)
    assert type(full(choice).delta) is models.DeltaMessage
    with pytest.raises(TypeError):
        hash(ours)


def test_options_of_the_dump_are_the_models():
    theirs, ours = delta(models, content="x"), delta(OURS, content="x")
    for options in ({"exclude_none": True}, {"exclude_unset": True, "indent": 2}, {"include": {"role"}}):
        assert ours.model_dump_json(**options) == theirs.model_dump_json(**options)
        assert delta(OURS, content="x").model_dump(exclude_none=True) == theirs.model_dump(exclude_none=True)


def test_models_of_another_kind_are_not_stood_in_for():
    check = pydantic.field_validator("a")(lambda value: value)
    own = {"model_dump_json": lambda self, **options: "{}", "__module__": __name__}
    for cls, reason in (
        (pydantic.create_model("Aliased", a=(int, pydantic.Field(alias="b"))), "another name"),
        (pydantic.create_model("Checked", a=(int, ...), __validators__={"check": check}), "validators"),
        (pydantic.create_model("Configured", a=(int, ...), __config__={"extra": "forbid"}), "configured"),
        (type("Own", (pydantic.BaseModel,), own), "its own"),
    ):
        with pytest.raises(NotPlain, match=reason):
            models_of(cls, {}, float_style())


@each("value", [5, 0, 11, "5", "x", None, 1.5])
def test_a_field_with_a_constraint_keeps_it(value):
    class Bounded(pydantic.BaseModel):
        a: int = pydantic.Field(ge=1, le=10)
        b: int = 0

    named = models_of(Bounded, {}, float_style())

    def made(cls):
        return outcome(lambda: cls(a=value).model_dump_json())

    assert made(named) == made(Bounded)


def test_nothing_stays_behind():
    """Objects of a chunk are freed at once, without the collector."""
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(100):
            chunk(OURS, {"content": "x"}, {"index": 0}, {"id": "x", "created": 1, "model": "m"}, {}, True)
        assert len(gc.get_objects()) - before < 50
    finally:
        gc.enable()


@pytest.mark.falls_back
def test_a_failure_of_ours_is_fastdeploys_class():
    """At the making of a part: a value whose class raises when it is asked for its type."""

    class Whole(models.BaseModel):
        index: int

    made = models_of(Whole, {Whole: None}, float_style())
    for _ in range(3):
        made.guard.failed(KeyError("in a test"))
    assert not made.guard.is_on
    one = made(index=3)
    assert type(one) is Whole
    assert one.model_dump_json() == Whole(index=3).model_dump_json()


@pytest.mark.falls_back
def test_failures_that_are_not_in_a_row_switch_nothing_off():
    """At the writing: what raises is shown by FastDeploy's class, which raises, too."""

    class Whole(models.BaseModel):
        data: dict

    made = models_of(Whole, {Whole: None}, float_style())

    def fails(times):
        for _ in range(times):
            with pytest.raises(ValueError, match="serialize"):
                made(data={"a": object()}).model_dump_json()

    for _ in range(3):
        fails(2)
        assert made(data={"a": 1}).model_dump_json() == '{"data":{"a":1}}'
    assert made.guard.is_on
    fails(3)
    assert not made.guard.is_on


def test_a_part_that_is_replaced_while_it_is_shown():
    """A model's own code does that; the freed part is the one that is made next."""

    class Item(pydantic.BaseModel):
        @pydantic.model_serializer
        def shown(self):
            answer.part = None
            made.extend(part(items=[], name="another") for _ in range(200))
            return 1

    class Part(pydantic.BaseModel):
        items: list[Item]
        name: str

    class Answer(pydantic.BaseModel):
        part: Part | None

    def work():
        assert answer.model_dump() == {"part": {"items": [1], "name": "own"}}

    made, part = [], models_of(Part, {Item: None}, float_style())
    answer = models_of(Answer, {Part: None}, float_style())(part=part(items=[Item()], name="own"))
    in_a_child(work)

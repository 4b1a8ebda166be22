"""The suite beside other engines, as far as it needs none of them: load, clock, load generator, tables."""

import pytest

from benchmarks.peers.load import Answers, Load, Model, WrongAnswer, check
from tests.lib.rows import each

pytestmark = pytest.mark.framework


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return Model(tmp_path_factory.mktemp("model"))


def answers_of(load, model, message):
    """What an engine has to answer, text and all."""
    right = [load.right(message, stream) for stream in range(load.streams)]
    return [answer._replace(text=model.text(answer.ids)) for answer in right]


def test_right_answers_pass(model):
    load = Load(3, 2, 20)
    sent = load.messages(model.usable)[:2]
    check(load, model, sent, [answers_of(load, model, one) for one in sent])
    numbers = Load(3, 2, None, texts=False)
    sent = numbers.messages(model.usable)[:1]
    check(numbers, model, sent, [[numbers.right(sent[0], stream) for stream in range(3)]])


@each(
    ("change", "what"),
    [
        (lambda one: one._replace(text=one.text + "!"), "text"),
        (lambda one: one._replace(text=""), "text"),
        (lambda one: one._replace(ids=one.ids[::-1]), "tokens"),
        (lambda one: one._replace(logprobs=one.logprobs[::-1]), "logprobs"),
        (lambda one: one._replace(logprobs=[row[:-1] for row in one.logprobs]), "logprobs"),
        (lambda one: one._replace(logprobs=None), "logprobs"),
    ],
)
def test_a_wrong_answer_is_not_timed(model, change, what):
    load = Load(2, 2, 5)
    sent = load.messages(model.usable)[:1]
    got = answers_of(load, model, sent[0])
    with pytest.raises(WrongAnswer, match=what):
        check(load, model, sent, [[got[0], change(got[1])]])


def test_no_token_is_twice_among_the_likeliest(model):
    """Behind the sampled token, which is the likeliest."""
    messages = Load(64, 2, 20).messages(model.usable)
    for ids in [message.ids for message in messages] + [Answers(model.usable).ids]:
        assert all(len({*row[1:]}) == 20 for row in ids.tolist())

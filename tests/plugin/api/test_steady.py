"""Chunks written from the engine's message: the bytes, what changes, and what is left to FastDeploy."""

import asyncio
import contextlib
import json
import random
from types import SimpleNamespace

import msgpack
import pytest

from fd_postproc.environment import STREAM_INTERVAL
from fd_postproc.fastdeploy.api.answer_text import AnswerText
from fd_postproc.fastdeploy.api.chunks._chunks import (
    ARRIVAL,
    COUNT,
    LOGPROBS,
    TEXT,
    TOTAL,
    ByteTokens,
    ChatColumns,
    Premises,
    SteadyStream,
    Unknown,
    set_steady,
    steady_totals,
    unpack,
)
from fd_postproc.fastdeploy.api.chunks.model_fields import float_style
from fd_postproc.fastdeploy.api.connections import RequestMap
from fd_postproc.fastdeploy.api.detokenising import BYTES_OF
from fd_postproc.fastdeploy.api.stream_queue import Queue
from fd_postproc.fastdeploy.api.unpacking import UnpackingMsgpack

from .test_logprobs import chat

NAME = "chatcmpl-a_0"
TOP = [[[1, 2], [3, 4]], [[-0.5, -1.5], [-0.25, -2.5]], [1, 1]]
WORDS = ["", " a", "b", ' "', "é", "\n"]


def new_text(ids, prefix, read):
    if 99 in ids:
        return None
    return "".join(WORDS[one] for one in ids[read:]), read, len(ids)


def waiter_at(queue, loop):
    """The future at which a task would wait now."""

    async def wait():
        return queue.get().send(None)

    if not loop.is_running():
        return loop.run_until_complete(wait())
    return queue.get().send(None)


class Stream(SimpleNamespace):
    """A parked stream; its own attributes are those of a lane."""

    def __init__(self, loop, name=NAME, interval=None, new_text=new_text, **options):
        queue = Queue()
        waiter = waiter_at(queue, loop)
        requests = RequestMap({})
        super().__init__(
            written=[], held=True, cycle=SimpleNamespace(disconnected=False, transport=self),
            flow=SimpleNamespace(write_paused=False), queue=queue, waiter=waiter, counts=[7],
            starts=[100.0], pending=[], requests=requests, name=name,
            write=lambda data: self.written.append(data), flush=self.flush,
            status=[0, 1, [5], AnswerText("\n")],
        )  # fmt: skip
        answers = {name: self.status}
        premises = Premises(
            lambda: self.held, requests, answers, new_text, AnswerText, float_style(), interval
        )
        slots = [TEXT, LOGPROBS, ARRIVAL, COUNT, TOTAL]
        parts = [b'data: {"t":', b',"l":', b',"a":', b',"n":', b',"m":', b"}\n\n"]
        options = {"prompt": 10, "end_of_audio": 2, "audio": {}, "drafts": True} | options
        self.stream = stream = SteadyStream(
            self, premises, parts, slots, build=ChatColumns(chat(), 1, True), **options
        )
        set_steady(name, stream)

    def flush(self):
        self.written += self.pending
        self.pending.clear()

    def state(self):
        self.stream.give_back()
        return [*self.written, *self.counts, *self.status[:2], [*self.status[2]], str(self.status[3])]


def result(outputs=None, metrics=None, **more):
    return {
        "request_id": NAME, "finished": False, "error_code": 200, "prompt": None,
        "metrics": {"engine_recv_latest_token_time": 101.25, "other": [1, {"a": None}]} | (metrics or {}),
        "outputs": {
            "index": 0, "send_idx": 3, "token_ids": [1, 4], "decode_type": 0, "top_logprobs": TOP,
            "draft_top_logprobs": None, "reasoning_token_num": 0,
        } | (outputs or {}),
    } | more  # fmt: skip


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture
def stream(loop):
    asyncio.set_event_loop(loop)
    made = Stream(loop)
    yield made
    set_steady(NAME, None)
    asyncio.set_event_loop(None)


def framed(text):
    body = f"data: {text}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def told(stream):
    """The values of the chunks written until now."""
    body, found = b"".join(stream.written), []
    while body:
        size, _, body = body.partition(b"\r\n")
        found.append(json.loads(body[6 : int(size, 16)]))
        body = body[int(size, 16) + 2 :]
    return found


def test_a_result_is_a_chunk(stream):
    before = steady_totals()
    assert unpack(msgpack.packb([[result(outputs={"top_logprobs": None})]])) == []
    assert stream.written == [framed('{"t":" aé","l":null,"a":1.25,"n":9,"m":19}')]
    assert stream.state()[1:] == [9, 1, 3, [5, 1, 4], "\n aé"]
    assert steady_totals() == (before[0] + 1, 1)


def test_its_log_probabilities_are_the_builders(stream):
    unpack(msgpack.packb([[result()]]))
    expected = chat().build(TOP, True, 1, True).model_dump(exclude_unset=True)
    assert told(stream)[0]["l"] == expected


def test_several_groups_of_a_message_are_one_write(stream):
    assert unpack(msgpack.packb([[result()], [result(), result()]])) == []
    assert len(stream.written) == 1
    assert [one["n"] for one in told(stream)] == [9, 11, 13]


UNUSUAL = {
    "the end": result(finished=True),
    "an error": result(error_code=500),
    "a key that is not known": result(more=1),
    "no metrics": {key: one for key, one in result().items() if key != "metrics"},
    "another request": result(request_id="chatcmpl-b_0"),
    "a first result": result(outputs={"send_idx": 0}),
    "no token": result(outputs={"token_ids": []}),
    "many tokens": result(outputs={"token_ids": [1] * 65}),
    "the end of audio": result(outputs={"token_ids": [1, 2]}),
    "a token that the tokenizer has to see": result(outputs={"token_ids": [99]}),
    "a token that is none": result(outputs={"token_ids": [1000]}),
    "an image": result(outputs={"decode_type": 1}),
    "images": result(outputs={"num_image_tokens": 1}),
    "cached tokens": result(outputs={"num_cache_tokens": 1}),
    "a mask": result(outputs={"sampling_mask": [[1]]}),
    "thoughts": result(outputs={"reasoning_token_num": 1}),
    "thoughts that are none": result(outputs={"reasoning_token_num": None}),
    "drafts": result(outputs={"draft_top_logprobs": TOP}),
    "an output that is not known": result(outputs={"more": 1}),
    "log-probabilities of another kind": result(outputs={"top_logprobs": [[[1]], [[1]], [1]]}),
    "an empty row": result(outputs={"top_logprobs": [[[]], [[]], [1]]}),
    "a time that is no float": result(metrics={"engine_recv_latest_token_time": 101}),
    "metrics of speculation": result(metrics={"speculate_metrics": {"a": 1}}),
    "no outputs": result() | {"outputs": None},
}


@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=UNUSUAL)
def test_anything_else_is_left_as_it_is(stream, unusual):
    before = stream.state()
    message = [[unusual], [result()]]
    left = 1 if unusual["request_id"] != NAME else 2
    assert unpack(msgpack.packb(message)) == message[:left]
    if left == 2:  # nothing overtakes
        assert stream.state() == before


def test_a_key_that_comes_twice_is_left(stream):
    packed = msgpack.packb(result()).replace(
        msgpack.packb("prompt") + b"\xc0", msgpack.packb("finished") + b"\xc2"
    )
    assert len(unpack(b"\x91\x91" + packed)) == 1
    assert stream.written == []


def closed(stream):
    stream.cycle.disconnected = True


def paused(stream):
    stream.flow.write_paused = True


def with_items(stream):
    stream.queue._queue.append(1)


def woken(stream):
    stream.waiter.set_result(None)


def gone(stream):
    stream.queue.put_nowait(1)


def another(stream):
    stream.waiter = None


def not_held(stream):
    stream.held = False


def not_started(stream):
    stream.starts[0] = 0


def forgotten(stream):
    stream.status.pop()


@pytest.mark.parametrize(
    "change", [closed, paused, with_items, woken, gone, another, not_held, not_started, forgotten]
)
def test_a_stream_that_does_not_only_wait_is_left_alone(stream, change):
    change(stream)
    before = [*stream.counts, [*stream.status[2]]]
    assert unpack(msgpack.packb([[result()]])) == [[result()]]
    assert [*stream.counts, [*stream.status[2]]] == before
    assert stream.written == []


@pytest.mark.parametrize("change", [closed, paused, gone, not_held])
def test_a_stream_is_left_alone_when_it_no_longer_waits(stream, change):
    say()
    change(stream)
    assert unpack(msgpack.packb([[result()]])) == [[result()]]
    assert [one["n"] for one in told(stream)] == [9]
    assert stream.counts == [9]
    assert stream.status[:3] == [1, 3, [5, 1, 4]]


def test_a_long_answer_is_whole(stream):
    for _ in range(1500):
        say()
    stream.stream.give_back()
    assert stream.status[2] == [5, *[1, 4] * 1500]
    assert stream.status[:2] == [2999, 3001]
    assert str(stream.status[3]) == "\n" + " aé" * 1500


def test_streams_that_come_in_another_order(loop):
    asyncio.set_event_loop(loop)
    names = [f"chatcmpl-{n}_0" for n in range(4)]
    streams = {name: Stream(loop, name) for name in names}
    orders = [names, names[::-1], names, [names[2], names[0]], names]
    for number, order in enumerate(orders):
        if number == 4:
            set_steady(names[1], None)
        message = [[result(request_id=name)] for name in order]
        left = [] if number < 4 else [[result(request_id=names[1])]]
        assert unpack(msgpack.packb(message)) == left
    assert [told(streams[name])[-1]["n"] for name in names] == [17, 13, 17, 15]
    for name in names:
        set_steady(name, None)
    asyncio.set_event_loop(None)


def test_chunks_wait_for_the_next_message(stream):
    stream.pending.append(b"before")
    unpack(msgpack.packb([[result()]]))
    assert stream.written[0] == b"before"
    assert len(stream.written) == 2


def test_what_only_msgpack_unpacks_is_not_written_twice(stream):
    """The message's other groups are unpacked by FastDeploy's msgpack, without those that are written."""
    other = {"request_id": "b_0", "outputs": msgpack.ExtType(99, b"x")}
    message = [[result()], [{"a": 1}], [result(), other, result()], [result()]]
    made = UnpackingMsgpack(msgpack).unpackb(msgpack.packb(message))
    assert made == [[{"a": 1}], [other, result()], [result()]]
    assert [one["n"] for one in told(stream)] == [9, 11]


def test_no_cut_message_is_taken(stream):
    packed = msgpack.packb([[result()]])
    for cut in range(len(packed)):
        with pytest.raises(Unknown):
            unpack(packed[:cut])
    assert stream.written == []


@pytest.mark.parametrize("value", range(0, 256, 5))
def test_no_damage_is_more_than_another_value(stream, value):
    packed = bytearray(msgpack.packb([[result()]]))
    for at in range(len(packed)):
        damaged = packed[:]
        damaged[at] = value
        with contextlib.suppress(Unknown, UnicodeDecodeError):
            unpack(bytes(damaged))
    stream.stream.give_back()
    assert stream.counts[0] == 7 + len(stream.status[2]) - 1
    assert all(len(one) > 40 for one in stream.written)


def test_a_template_has_a_place_for_each_value(loop):
    with pytest.raises(ValueError, match="1 values are not between 1 parts"):
        SteadyStream(None, Premises(bool, None, {}, None, str, float_style()), [b""], [TEXT], build=None,
                     prompt=0, end_of_audio=None, audio=(), drafts=False)  # fmt: skip


class Bytes:
    """A byte-level tokenizer: each token is one byte, but for a few."""

    texts = (*(bytes([n]) for n in range(256)), b"ab", "é日".encode(), "\ufffd".encode(), b"")
    letters = {byte: letter for letter, byte in BYTES_OF.items()}  # noqa: RUF012

    def id_to_token(self, token):
        return "".join(self.letters[byte] for byte in self.texts[token])

    def decode(self, ids, skip_special_tokens=False):
        return b"".join(self.texts[one] for one in ids).decode(errors="replace")


@pytest.mark.parametrize("letters", ["", "aé日😀\ufffd"])
def test_texts_of_bytes_are_those_of_the_decoder(loop, letters):
    """Random bytes, and characters that come in pieces: text, offsets and ids are new_text's."""
    asyncio.set_event_loop(loop)
    tokens = ByteTokens(Bytes(), BYTES_OF, len(Bytes.texts))
    one, other = (Stream(loop, f"chatcmpl-{n}_0", new_text=way, end_of_audio=None) for n, way in enumerate(
        [tokens.new_text, lambda *window: tokens.new_text(*window)]
    ))  # fmt: skip
    draw = random.Random(1)
    for stream in one, other:
        stream.status[:] = [0, 0, [], AnswerText("")]
    for number in range(3000):
        if letters:
            ids = [*draw.choice(letters).encode(), 256][: draw.randint(1, 5)]
        else:
            ids = [draw.randrange(len(Bytes.texts)) for _ in range(draw.randint(1, 3))]
        message = [[result({"token_ids": ids}, request_id=stream.name)] for stream in (one, other)]
        assert unpack(msgpack.packb(message)) == []
        if number % 7 == 0:
            assert one.state() == other.state()
    for stream in one, other:
        set_steady(stream.name, None)
    assert one.state() == other.state()
    whole = Bytes().decode(one.status[2])
    assert whole.startswith(str(one.status[3]))
    assert len(str(one.status[3])) > 2000
    asyncio.set_event_loop(None)


async def with_interval(act, tokens=5, seconds=60.0):
    """A stream whose chunks have so many tokens at least."""
    made = Stream(asyncio.get_running_loop(), interval=(tokens, seconds))
    try:
        return await act(made)
    finally:
        set_steady(NAME, None)


def say(top=TOP, **more):
    unpack(msgpack.packb([[result(outputs={"top_logprobs": top}, **more)]]))


def test_tokens_wait_until_a_chunk_is_full():
    async def act(stream):
        say()
        say()
        assert stream.written == []
        assert stream.state() == [11, 3, 5, [5, 1, 4, 1, 4], "\n aé aé"]
        say(metrics={"engine_recv_latest_token_time": 107.0})
        (chunk,) = told(stream)
        whole = [one * 3 for one in TOP]
        assert chunk == {
            "t": " aé" * 3, "a": 7.0, "n": 13, "m": 23,
            "l": chat().build(whole, True, 1, True).model_dump(exclude_unset=True),
        }  # fmt: skip
        say()
        assert len(told(stream)) == 1

    asyncio.run(with_interval(act))


def test_waiting_tokens_go_before_anything_else():
    async def act(stream):
        say()
        assert stream.stream.release()
        assert not stream.stream.release()
        stream.flush()
        assert [(one["t"], one["n"]) for one in told(stream)] == [(" aé", 9)]
        say()
        say()
        say()
        assert [one["n"] for one in told(stream)] == [9, 15]

    asyncio.run(with_interval(act))


def test_waiting_tokens_are_written_in_time():
    async def act(stream):
        written = asyncio.Event()
        stream.flush = lambda: (Stream.flush(stream), written.set())
        for count in 9, 11:
            say()
            assert stream.pending == []
            await asyncio.wait_for(written.wait(), 30)
            written.clear()
            assert told(stream)[-1]["n"] == count

    asyncio.run(with_interval(act, seconds=0.01))


def test_what_cannot_wait_is_left_to_the_task():
    async def act(stream):
        say()
        before = stream.state()
        message = [[result(outputs={"top_logprobs": None})]]
        assert unpack(msgpack.packb(message)) == message
        assert stream.state() == before
        assert stream.stream.release()

    asyncio.run(with_interval(act))


@pytest.mark.parametrize(
    ("text", "value"), [("", None), ("8", (8, 1.0)), ("2,1", (2, 0.001)), ("1024,10000", (1024, 10.0))]
)
def test_an_interval(text, value):
    assert STREAM_INTERVAL.of(text) == value


@pytest.mark.parametrize("text", ["1", "0", "1025", "8,", "8,0", "8,10001", ",5", "8,5,5", "x", "-8", "8.5"])
def test_an_interval_that_is_none(text):
    with pytest.raises(ValueError, match=r"FD_POSTPROC_STREAM_INTERVAL=.* is not a number of tokens from 2"):
        STREAM_INTERVAL.of(text)

"""FastDeploy's loop that fetches results and sends them, and ours in its place."""

import random
import threading
from collections import defaultdict
from types import SimpleNamespace
from unittest import mock

import msgpack
import numpy as np
import pytest

from tests.lib.plugged import new_result as result
from tests.lib.plugged import sent_by
from tests.lib.quiet import Double, imported
from tests.lib.rows import each
from tests.lib.waiting import until

pytestmark = pytest.mark.framework
double = Double()
LOOP = "_zmq_send_generated_tokens"


@pytest.fixture
def service():
    return double.engine__common_engine.EngineService


@pytest.fixture
def loop(delivery):
    return delivery


def both(plan, loop, engine, *steps):
    """What one round of FastDeploy's loop sends and of ours, and what is left behind."""
    outcomes = []
    workers = dict(engine.request_worker_map)
    once = double.engine__common_engine._Once(engine)
    for one in (lambda: loop.stock.loop(once), lambda: loop.round(engine)):
        engine.scheduler.requests.update(dict.fromkeys("abcd"))
        engine.request_worker_map = dict(workers)
        for step in steps:
            engine.scheduler.put_results(step(plan))
        one()
        state = engine.scheduler.requests, engine.scheduler.responses, engine.request_worker_map
        outcomes.append([sent_by(engine), [dict(table) for table in state]])
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


STEPS = {  # by ours, all of them
    "one result each": (lambda plan: [result(plan, "a"), result(plan, "b"), result(plan, "d")],),
    "two steps": (
        lambda plan: [result(plan, "a"), result(plan, "b")],
        lambda plan: [result(plan, "a")],
    ),
    "an end": (lambda plan: [result(plan, "a", finished=True), result(plan, "b"), result(plan, "c")],),
    "an end without a token": (lambda plan: [result(plan, "a", (), finished=True), result(plan, "b")],),
    "a text of the engine's": (lambda plan: [result(plan, "a", decode_type=2)],),
}
BY_RULES = {  # one of the requests by FastDeploy's
    "no token": (lambda plan: [result(plan, "a", ()), result(plan, "b")],),
    "theirs": (lambda plan: [plan.fd.RequestOutput("a", finished=True, error_code=500), result(plan, "b")],),
    "no outputs": (lambda plan: [result(plan, "a", finished=True), result(plan, "b", outputs=None)],),
    "tokens in a tuple": (lambda plan: [result(plan, "a"), result(plan, "b", token_ids=(5, 6))],),
}


@each("what", [*STEPS, *BY_RULES])
def test_a_round_of_ours(what, plan, loop, engine):
    before = loop.rounds, loop.sending.others
    assert both(plan, loop, engine, *{**STEPS, **BY_RULES}[what])[0]
    assert (loop.rounds, loop.sending.others) == (before[0] + 1, before[1] + (what in BY_RULES))


def test_texts_of_the_engine(plan, loop, engine, monkeypatch):
    monkeypatch.setenv("FD_ENABLE_RETURN_TEXT", "1")
    for steps in STEPS.values():
        assert "text" in both(plan, loop, engine, *steps)[0][0][0][0]["outputs"]
    assert loop.rounds == len(STEPS) < loop.sending.others


@each("name, value", [("FD_ENABLE_INTERNAL_ADAPTER", "1"), ("ZMQ_SEND_BATCH_DATA", "0"), ("workers", None)])
def test_where_no_batches_are_sent_fastdeploys_loop_runs(name, value, loop, engine, monkeypatch):
    loop.begin()
    engine.running = True
    assert loop.sending.serves(engine)
    if value is None:
        del engine.request_worker_map
    else:
        monkeypatch.setenv(name, value)
    given, stock = [], loop.stock
    loop.stock = stock._replace(loop=given.append)
    getattr(engine, LOOP)()
    loop.stock = stock
    loop.end()
    assert given == [engine]
    assert loop.rounds == 0


def test_a_message_that_cannot_be_packed_is_fastdeploys_error(plan, loop, engine, monkeypatch):
    """Where FastDeploy's lines are shown, it packs."""
    log = double.inter_communicator__zmq_server.llm_logger
    told = []
    monkeypatch.setattr(log, "error", told.append)
    monkeypatch.setattr(log, "isEnabledFor", lambda level: True)
    engine.scheduler.put_results([result(plan, "a", prompt=object())])
    loop.round(engine)
    assert sent_by(engine) == []
    assert told == ["sending to 1 failed: object cannot be packed"]


class TooLarge:
    """As msgpack says of what has more than 4 GiB."""

    def tolist(self):
        raise ValueError("list is too large")


@each("value, words", [(object(), "TypeError"), (1 << 70, "TypeError"), (TooLarge(), "too large")])
@pytest.mark.falls_back
def test_a_request_that_cannot_be_packed_ends_with_an_error_in_words(
    value, words, plan, loop, engine, monkeypatch
):
    told = []
    monkeypatch.setattr(double.inter_communicator__zmq_server.llm_logger, "error", told.append)
    engine.request_worker_map.update(a=1, b=1, c=1, d=1)
    engine.scheduler.requests.update(dict.fromkeys("abcd"))
    engine.scheduler.put_results(
        [result(plan, "a"), result(plan, "b", prompt=value), result(plan, "c", finished=True)]
    )
    loop.round(engine)
    (message,) = sent_by(engine)
    by_name = {one["request_id"]: one for (one,) in message}
    assert [*by_name] == ["a", "b", "c"]
    assert by_name["a"]["outputs"]["token_ids"] == by_name["c"]["outputs"]["token_ids"] == [5]
    error = by_name["b"]
    assert (error["finished"], error["error_code"]) == (True, 500)
    assert "results of request b cannot be sent" in error["error_msg"]
    assert words in error["error_msg"]
    assert "Ask for fewer" in error["error_msg"]
    assert len(told) == 1
    assert error["error_msg"] in told[0]
    with monkeypatch.context() as planted:  # msgpack refuses nothing here: ours alone does
        failing = mock.Mock(pack=mock.Mock(side_effect=RuntimeError("planted")))
        planted.setattr(loop.sending, "messages", failing)
        engine.scheduler.put_results([result(plan, "a")])
        loop.round(engine)
    ((((one,),)),) = sent_by(engine)
    assert one["outputs"]["token_ids"] == [5]
    assert loop.sending.guard.in_a_row == 1
    loop.sending.guard.worked()


def test_an_array_over_msgpacks_limit_is_refused_before_it_is_read(plan, loop, engine, tmp_path):
    """Four GiB of a sparse file: lists of as many numbers would end the process."""
    experts = np.memmap(tmp_path / "experts", np.uint8, "w+", shape=(1 << 16, 46, 1 << 11))
    engine.scheduler.put_results([result(plan, "a"), result(plan, "c", prompt=experts)])
    loop.round(engine)
    (message,) = sent_by(engine)
    by_name = {one["request_id"]: one for (one,) in message}
    assert by_name["a"]["outputs"]["token_ids"] == [5]
    assert by_name["c"]["error_code"] == 500
    assert f"an array of {experts.nbytes} bytes is too large" in by_name["c"]["error_msg"]


MOST_ON_THE_WAY = 8
"""Messages: one in each of the two queues, and what the two threads of ZeroMQ hold between them."""


@pytest.mark.realtime
def test_a_full_socket_holds_the_sender_and_loses_nothing(plan, loop, engine, tmp_path):
    """ZeroMQ's high-water marks of one message (``FD_ZMQ_SNDHWM=1``), and a reader that is slow."""
    zmq = pytest.importorskip("zmq")
    rounds, address = 16, f"ipc://{tmp_path}/results"
    experts = [np.full((1000, 46, 8), number, np.uint8) for number in range(rounds)]
    stock, context, begun = engine.send_response_server.socket, zmq.Context(), []
    reader, writer = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    try:
        for one in (reader, writer):
            one.hwm = 1
        reader.bind(address)
        writer.connect(address)
        engine.send_response_server.socket = writer

        def send():
            for one in experts:
                begun.append(None)
                engine.scheduler.put_results([result(plan, "a", prompt=one)])
                loop.round(engine)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        for number in range(rounds):
            assert reader.poll(30_000)
            assert len(begun) <= number + MOST_ON_THE_WAY
            ((told,),) = msgpack.unpackb(reader.recv())
            assert (len(told["prompt"]), told["prompt"][-1]) == (1000, [[number] * 8] * 46)
        sender.join(30)
        assert not sender.is_alive()
    finally:
        engine.send_response_server.socket = stock
        context.destroy(linger=0)


def test_a_method_that_was_replaced_is_called(plan, loop, engine, monkeypatch):
    """Of the class, and of the server."""
    given, server = [], type(engine.send_response_server)
    assert loop.sending is not None
    with monkeypatch.context() as patched:
        patched.setattr(server, "_send_batch_response", lambda self, *some, **named: given.append(some))
        engine.scheduler.put_results([made := result(plan, "a")])
        loop.round(engine)
    engine.send_response_server.send_response = lambda *some, **named: given.append((some, named))
    engine.scheduler.put_results([again := result(plan, "a")])
    loop.round(engine)
    assert given == [([[made]],), ((None, [[again]]), {"worker_pid": 1})]


def test_random_rounds(plan, loop, engine):
    rng = random.Random(5)
    for number in range(150):

        def step(plan, seed=number):
            own = random.Random(seed)
            return [
                result(
                    plan, own.choice("abcd"), range(own.choice((0, 1, 2, 2, 2))), finished=own.random() < 0.1
                )
                if own.random() < 0.97
                else plan.fd.RequestOutput(own.choice("abcd"), finished=True)
                for _ in range(own.randrange(1, 4))
            ]

        engine.request_worker_map = {name: rng.choice((1, 2, None)) for name in "abcd" if rng.random() < 0.8}
        both(plan, loop, engine, *[step] * rng.choice((1, 2)))
    assert loop.rounds == 150
    assert 15 < loop.sending.others < 225


def test_another_decode_is_asked(plan, loop, engine):
    engine._decode_token = lambda token_ids, req_id, is_end: ("text", token_ids)
    both(plan, loop, engine, *STEPS["one result each"])
    assert loop.sending.others == 3


def test_a_token_that_cannot_be_decoded_costs_nothing_before_it_and_no_other_request(plan, loop, engine):
    """FastDeploy's own loses a whole round then."""
    engine._decode_token = mock.Mock(side_effect=[("text", [5]), ValueError("planted"), ("text", [5])])
    engine.scheduler.put_results([result(plan, "a")])
    engine.scheduler.put_results([result(plan, "a"), result(plan, "b")])
    loop.round(engine)
    codes = {}
    for one in (one for message in sent_by(engine) for results in message for one in results):
        codes.setdefault(one["request_id"], []).append(one["error_code"])
    assert codes == {"a": [200, 500], "b": [200]}


@each("waited, sleeps", [(0.001, 1), (0.004, 1), (0.006, 0), (0.5, 0)])
def test_nothing_to_send(waited, sleeps, loop, engine):
    """FastDeploy's pause is for a wait that is none."""
    clock = SimpleNamespace(monotonic=mock.Mock(side_effect=[7.0, 7.0 + waited]), sleep=mock.Mock())
    with mock.patch.object(imported("fd_postproc.fastdeploy.engine.delivery.delivery"), "time", clock):
        loop.round(engine)
    assert clock.sleep.call_args_list == [mock.call(0.005)] * sleeps
    assert loop.rounds == 0


def test_what_fails_for_one_request_loses_no_other(plan, loop, engine):
    """FastDeploy's own loses a whole round then."""
    recycle = type(engine.scheduler)._recycle

    def failing(self, name):
        recycle(self, name)
        if name == "a":
            raise ValueError("it is not in the list")

    with mock.patch.object(type(engine.scheduler), "_recycle", failing):
        engine.scheduler.put_results([result(plan, "a", finished=True), result(plan, "b", finished=True)])
        loop.round(engine)
    assert sorted(one["request_id"] for message in sent_by(engine) for (one,) in message) == ["a", "b"]


# ---- put in and taken out --------------------------------------------------------------------------


def test_a_thread_uses_it_while_it_is_there_and_fastdeploys_then(plan, loop, service, engine):
    loop.begin()
    assert vars(service)[LOOP].__name__ == LOOP
    engine.scheduler.wait_response_timeout = 0.2
    engine.running = True

    def put_and_wait():
        engine.scheduler.put_results(STEPS["one result each"][0](plan))
        got = []
        until(lambda: got.extend(sent_by(engine)) or len(got) == 3)  # of three processes

    sender = threading.Thread(target=getattr(engine, LOOP), daemon=True)
    sender.start()
    try:
        put_and_wait()
        assert loop.rounds == 1
        loop.end()
        put_and_wait()  # while ours waits
        put_and_wait()
        put_and_wait()
        assert loop.rounds <= 2
    finally:
        engine.running = False
        sender.join(60)
    assert not sender.is_alive()


def test_a_round_that_fails_does_not_end_the_thread(plan, loop, engine):
    engine.llm_logger, server = mock.Mock(), mock.Mock()
    engine.send_response_server = server
    put = iter([*STEPS.values()])

    def fails(*arguments, **named):
        step = next(put, None)
        engine.running = step is not None
        if step:
            engine.scheduler.requests.update(dict.fromkeys("abcd"))
            engine.scheduler.put_results(step[0](plan))
        raise RuntimeError("in a test")

    server.send_response = fails
    engine.scheduler.put_results(STEPS["a text of the engine's"][0](plan))
    loop.begin()
    engine.running = True
    getattr(engine, LOOP)()
    assert loop.rounds > 1
    texts = [call.args[0] for call in engine.llm_logger.error.call_args_list]
    assert sum("were lost" in text for text in texts) == loop.sending.unsent > 3
    server.close = mock.Mock()


@each("error", [LookupError, SystemExit])
@pytest.mark.falls_back
def test_one_that_cannot_fetch_leaves_it_to_fastdeploys(error, plan, loop, service, engine):
    stock, calls = loop.stock, []
    loop.sends = type(loop.sends)("sending")
    loop.begin()

    def fails(engine):
        calls.append(1)
        raise error("in a test")

    loop.round = fails
    loop.stock = stock._replace(loop=lambda engine: calls.append(2))
    engine.running = True
    getattr(engine, LOOP)()
    loop.stock = stock
    assert calls == [1, 1, 1, 2]


@pytest.mark.falls_back
def test_rounds_that_fail_now_and_then_end_nothing(loop, engine, monkeypatch):
    stock, rounds = loop.stock, iter([1, 1, 0] * 4)

    def often_fails(_):
        fails = next(rounds, None)
        engine.running = fails is not None
        if fails:
            raise LookupError("in a test")

    loop.sends = type(loop.sends)("sending")
    loop.begin()
    monkeypatch.setattr(loop, "round", often_fails)
    monkeypatch.setattr(loop, "stock", stock._replace(loop=None))  # not called
    engine.running = True
    getattr(engine, LOOP)()
    assert loop.sends.is_on
    assert next(rounds, None) is None


def test_a_scheduler_that_is_not_known_is_no_failure(plan, loop, engine, fallbacks):
    """Its own methods put and take, also when the loop ends."""
    before, scheduler = fallbacks("delivery"), engine.scheduler
    scheduler.requests = defaultdict(None, scheduler.requests)
    loop.put(scheduler, [result(plan, "a")])
    loop.round(engine)
    loop.run(engine)  # which is not ours any more
    assert loop.sends_so_far == (1, 0)
    assert fallbacks("delivery") == before


def test_what_waits_for_the_interval_leaves_by_fastdeploys_loop(plan, loop, engine):
    scheduler, loop.interval = engine.scheduler, (9, 100.0)
    handover = loop.handover_in(scheduler)
    handover.join_for({}, frozenset([None]))
    for token in 5, 6:
        handover.take()
        loop.put(scheduler, [result(plan, "a", [token])])
    loop.run(engine)  # which is not ours any more
    assert [one.outputs.token_ids for one in scheduler.get_results()["a"]] == [[6]]


def test_a_thread_of_fastdeploys_that_has_ended(loop, engine):
    """One that ends at its start, as on decode nodes, is no fault; nor is any while the engine stops."""
    ends = threading.Event()
    engine.schedule_request_thread, engine.insert_task_to_scheduler_thread = (
        threading.Thread(target=target, daemon=True) for target in (ends.wait, lambda: None)
    )
    for name in "schedule_request_thread", "insert_task_to_scheduler_thread":
        getattr(engine, name).start()
    engine.insert_task_to_scheduler_thread.join(60)
    assert loop.ended_threads() == []
    loop.begin()
    loop.round = lambda _: setattr(engine, "running", False)
    engine.running = True
    getattr(engine, LOOP)()
    engine.running = True
    assert loop.ended_threads() == []
    ends.set()
    engine.schedule_request_thread.join(60)
    assert loop.ended_threads() == ["schedule_request_thread"]
    engine.running = False
    assert loop.ended_threads() == []


def test_a_second_one_takes_the_place_of_the_first(plan, loop, service):
    stock = vars(service)[LOOP]
    loop.begin()
    second = type(loop)(plan, loop._scheduler)
    assert second.stock.loop is stock
    second.begin()
    loop.end()
    assert vars(service)[LOOP] is not stock
    second.end()
    assert vars(service)[LOOP] is stock


def test_a_loop_that_somebody_has_wrapped_stays(plan, service, engine, monkeypatch):
    made = imported("fd_postproc.fastdeploy.engine.delivery.delivery")
    monkeypatch.setattr(service, LOOP, wrapper := lambda self: None)
    one = made.Delivery(plan, engine.scheduler)
    one.begin()
    assert vars(service)[LOOP] is wrapper
    assert not one.is_installed


# ---- in the engine ---------------------------------------------------------------------------------


def test_a_token_processor_puts_it_in_from_its_construction_to_its_end(service, rig_of, ops_queue):
    rig = rig_of("topk", ["a"])
    stock = rig.processor.parts.pairing.delivery.stock.loop
    assert vars(service)[LOOP] is not stock
    rig.start()
    rig.processor.stop(60)
    assert vars(service)[LOOP] is stock


def test_a_process_that_is_gone_gets_nothing(plan, loop, engine):
    """Its results are dropped; the others' are sent."""
    loop.api_processes.gone.add(1)
    engine.scheduler.put_results([result(plan, "a", finished=True), result(plan, "b")])
    loop.round(engine)
    (message,) = sent_by(engine)
    assert loop.sends_so_far == (1, 0)
    assert [[one["request_id"] for one in group] for group in message] == [["b"]]
    assert "a" not in engine.request_worker_map


def test_the_loop_looks_at_the_processes(loop, engine, monkeypatch):
    looks = []

    def look(one, envs):
        looks.append((one, envs.ZMQ_SEND_BATCH_DATA))
        engine.running = False

    loop.begin()
    engine.running = True
    monkeypatch.setattr(loop.api_processes, "look", look)
    monkeypatch.setattr(loop, "round", lambda one: None)
    loop.run(engine)
    assert looks == [(engine, 1)]

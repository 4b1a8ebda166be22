"""Rounds of FastDeploy's schedule thread: left out where nothing can have changed, made everywhere else."""

from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from fd_postproc.fastdeploy.engine import scheduling
from fd_postproc.fastdeploy.engine.scheduling import LONGEST_S, FetchedTasks, Rounds, Scheduling
from tests.lib.rows import each


class EngineWorkerQueue:
    """Counts the questions that reach the manager's process."""

    def __init__(self):
        self.exist, self.asked, self.put, self.meanwhile = False, 0, [], lambda: None

    def exist_tasks(self):
        self.asked += 1
        exist = self.exist
        self.meanwhile()
        return exist

    def put_tasks(self, tasks):
        if tasks is None:
            raise ConnectionError("the manager's process is gone")
        self.put.append(tasks)
        self.exist = True


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def queue():
    return EngineWorkerQueue()


@pytest.fixture
def clock():
    return Clock()


def test_the_worker_is_asked_for_after_a_put_until_it_has_fetched(queue, clock):
    fetched = FetchedTasks(queue, clock)
    fetched.put_tasks(["a task"])
    assert queue.put == [["a task"]]
    assert [fetched.exist_tasks() for _ in range(3)] == [True] * 3
    assert queue.asked == 3
    queue.exist = False
    assert [fetched.exist_tasks() for _ in range(9)] == [False] * 9
    assert queue.asked == 4
    fetched.put_tasks(["another"])
    assert fetched.exist_tasks()


def test_an_answer_is_given_again_for_a_while(queue, clock):
    fetched = FetchedTasks(queue, clock)
    for _ in range(3):
        assert [fetched.exist_tasks() for _ in range(4)] == [False] * 4
        clock.now += LONGEST_S
    assert queue.asked == 3
    queue.exist = True  # put by nobody that is known
    assert fetched.exist_tasks()


@each("when", ["before the flag is set", "after it"])
def test_a_put_while_the_answer_is_on_its_way(when):
    """Another thread's put begins before the question or after it, and ends after the answer."""

    class Slow(EngineWorkerQueue):
        def put_tasks(self, tasks):
            if when == "before the flag is set":
                assert not fetched.exist_tasks()
            super().put_tasks(tasks)

    queue = Slow()
    fetched = FetchedTasks(queue, Clock())
    if when == "after it":
        queue.meanwhile = lambda: queue.put or fetched.put_tasks(["a task"])
        assert not fetched.exist_tasks()
    else:
        fetched.put_tasks(["a task"])
    assert fetched.exist_tasks()


def test_a_put_that_fails_is_raised_and_the_next_answer_is_asked_for(queue, clock):
    fetched = FetchedTasks(queue, clock)
    fetched.exist_tasks()
    with pytest.raises(ConnectionError):
        fetched.put_tasks(None)
    fetched.exist_tasks()
    assert queue.asked == 2


def test_an_error_of_the_manager_is_raised_each_time(queue, clock):
    def fail():
        raise ConnectionError("the manager's process is gone")

    fetched = FetchedTasks(queue, clock)
    queue.meanwhile = fail
    for _ in range(3):
        with pytest.raises(ConnectionError):
            fetched.exist_tasks()


class ResourceManagerV1:
    """Counts rounds; `given` is what they give."""

    def __init__(self, role="mixed"):
        cache = SimpleNamespace(block_size=16, prealloc_dec_block_slot_num_threshold=3)
        self.config = SimpleNamespace(
            cache_config=cache, scheduler_config=SimpleNamespace(splitwise_role=role)
        )
        self.rounds, self.given, self.max_num_seqs = 0, ([], []), 4
        self.waiting, self.waiting_abort_req_id_set = deque(), set()
        self.need_block_num_signal = SimpleNamespace(value=np.zeros(4, np.int32))
        self.running = [request() for _ in range(2)]
        self.scheduler_unhandled_request_num = 0

    def schedule(self):
        self.rounds += 1
        return self.given


def request(**other):
    values = {"num_computed_tokens": 9, "need_prefill_tokens": 8, "block_tables": [1], "num_total_tokens": 10}
    return SimpleNamespace(**{**values, "use_extend_tables": False, **other})


@pytest.fixture
def manager():
    return ResourceManagerV1()


@pytest.fixture
def counters():
    return SimpleNamespace(steps=0, lost_steps=0)


def test_a_second_round_is_left_out(manager, counters, clock):
    rounds = Rounds(manager, counters, clock)
    assert [rounds.schedule() for _ in range(9)] == [([], [])] * 9
    assert manager.rounds == 1


def full(manager):
    manager.running += [request(), request()]
    manager.waiting.append(request())


def left(counters, clock, manager):
    rounds = Rounds(manager, counters, clock)
    before = manager.rounds
    rounds.schedule()
    rounds.schedule()
    return manager.rounds == before + 1


def test_requests_that_wait_for_a_slot_change_nothing(manager, counters, clock):
    full(manager)
    assert left(counters, clock, manager)
    manager.running.pop()
    assert not left(counters, clock, manager)


@each(
    "change",
    [
        lambda manager, counters, clock: setattr(counters, "steps", 1),
        lambda manager, counters, clock: setattr(counters, "lost_steps", 1),
        lambda manager, counters, clock: manager.running.pop(),
        lambda manager, counters, clock: manager.waiting.append(request()),
        lambda manager, counters, clock: full(manager),
        lambda manager, counters, clock: manager.waiting_abort_req_id_set.add("a"),
        lambda manager, counters, clock: manager.need_block_num_signal.value.put(3, 1),
        lambda manager, counters, clock: setattr(manager, "scheduler_unhandled_request_num", 1),
        lambda manager, counters, clock: setattr(clock, "now", clock.now + LONGEST_S),
    ],
)
def test_what_changes_calls_for_a_round(change):
    manager, counters, clock = ResourceManagerV1(), SimpleNamespace(steps=0, lost_steps=0), Clock()
    rounds = Rounds(manager, counters, clock)
    rounds.schedule()
    change(manager, counters, clock)
    rounds.schedule()
    assert manager.rounds == 2


def test_a_step_that_ends_during_a_round_calls_for_another(manager, counters, clock):
    class Slow(ResourceManagerV1):
        def schedule(self):
            counters.steps += 1
            return super().schedule()

    manager.__class__ = Slow
    assert not left(counters, clock, manager)


@each(
    "needs",
    [
        {"num_computed_tokens": 7},  # of 8 that are to be prefilled
        {"num_total_tokens": 13},  # 3 slots are left: the least, at which blocks are taken
        {"block_tables": []},
        {"use_extend_tables": True},
    ],
)
def test_a_request_that_needs_something_is_asked_for_each_time(needs):
    manager, counters, clock = ResourceManagerV1(), SimpleNamespace(steps=0, lost_steps=0), Clock()
    manager.running = [request(num_computed_tokens=8, num_total_tokens=12), request()]
    assert left(counters, clock, manager)
    manager.running.append(request(**needs))
    assert not left(counters, clock, manager)


@each("given", [(["a task"], []), ([], [("a", "no room")])])
def test_what_a_round_gives_is_passed_on_and_the_next_is_made(given):
    manager, counters, clock = ResourceManagerV1(), SimpleNamespace(steps=0, lost_steps=0), Clock()
    rounds = Rounds(manager, counters, clock)
    rounds.schedule()
    counters.steps, manager.given = 1, given
    assert [rounds.schedule() for _ in range(2)] == [given] * 2
    manager.given = ([], [])
    assert rounds.schedule() == ([], [])
    assert manager.rounds == 4


def test_tasks_of_another_class_stay_of_that_class(manager, counters, clock):
    """Development versions give a BatchRequest, which may be empty."""

    class BatchRequest(list):
        pass

    manager.given = (BatchRequest(), [])
    rounds = Rounds(manager, counters, clock)
    assert [type(rounds.schedule()[0]) for _ in range(2)] == [BatchRequest] * 2
    assert manager.rounds == 1


@pytest.mark.falls_back
def test_where_ours_raises_fastdeploys_round_is_made(manager, counters, clock):
    del manager.need_block_num_signal
    rounds = Rounds(manager, counters, clock)
    assert [rounds.schedule() for _ in range(5)] == [([], [])] * 5
    assert manager.rounds == 5


# ---- In FastDeploy's places ----------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(scheduling.gate, "judge", lambda *_: SimpleNamespace(reason=None))


def installed(manager, queue, counters):
    ours = Scheduling(counters)
    ours.begin(manager, queue)
    ours.end()
    assert not {"schedule", "exist_tasks", "put_tasks"} & {*vars(manager), *vars(queue)}
    return ours.applies


def test_answers_stand_in_the_places_until_the_end(known, manager, queue, counters):
    ours = Scheduling(counters)
    ours.begin(manager, queue)
    assert ours.is_installed
    for _ in range(3):
        assert (manager.schedule(), queue.exist_tasks()) == (([], []), False)
    queue.put_tasks(["a task"])
    assert (manager.rounds, queue.asked, queue.put) == (1, 1, [["a task"]])
    ours.end()
    manager.schedule()
    assert (manager.rounds, ours.is_installed) == (2, False)
    assert installed(manager, queue, counters)


@each("role", ["prefill", "decode"])
def test_nodes_of_other_roles_make_each_round(known, queue, counters, role):
    assert not installed(ResourceManagerV1(role), queue, counters)


def test_the_cache_manager_of_version_1_is_called_in_each_round(known, manager, queue, counters):
    manager.enable_cache_manager_v1 = True
    assert not installed(manager, queue, counters)


def test_an_operator_can_keep_the_rounds(known, manager, queue, counters, monkeypatch):
    monkeypatch.setenv("FD_POSTPROC_KEEP_POLLING", "1")
    assert not installed(manager, queue, counters)


def test_a_method_that_somebody_has_set_on_an_object_stays(known, manager, queue, counters):
    queue.exist_tasks = theirs = lambda: False
    ours = Scheduling(counters)
    ours.begin(manager, queue)
    assert not ours.applies
    assert queue.exist_tasks is theirs


def test_new_code_keeps_its_rounds(monkeypatch, manager, queue, counters):
    monkeypatch.setattr(scheduling.gate, "judge", lambda *_: SimpleNamespace(reason="new code"))
    ours = Scheduling(counters)
    ours.begin(manager, queue)
    assert ours.applies
    assert not ours.is_installed

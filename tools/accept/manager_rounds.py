"""The trial of the rounds of the scheduler that ours leaves out.

FastDeploy's own manager schedules made-up requests.  Each round that ours would leave out is made all the
same: it has to give nothing, and to leave everything as it was.
"""

import copy
import importlib
import random
import threading
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np

from fd_postproc.fastdeploy.engine.scheduling import Rounds

SLOTS, BLOCK, BUDGET = 6, 16, 64
MODULE = "fastdeploy.engine.sched.resource_manager_v1"


class FakeRequest:
    """A request as far as rounds look at it; `get` is FastDeploy's."""

    def __init__(self, name, prompt, status, tables):
        self.request_id, self.status, self.use_extend_tables = name, status, tables
        self.prompt_token_ids_len = self.need_prefill_tokens = prompt
        self.prompt_token_ids, self.output_token_ids = [7] * prompt, []
        self.block_tables, self.extend_block_tables, self.async_process_futures = [], [], []
        self.num_computed_tokens = self.num_cached_blocks = self.cached_block_num = 0
        self.idx = self.multimodal_inputs = self.task_type = None
        self.sampling_params = SimpleNamespace(max_tokens=50)
        self.skip_allocate = False

    @property
    def num_total_tokens(self):
        return self.prompt_token_ids_len + len(self.output_token_ids)

    def get(self, name, default=None):
        return getattr(self, name, default)

    def pop_cache_swap_metadata(self):
        return []

    pop_cache_evict_metadata = pop_cache_swap_metadata


class FakeCache:
    """Blocks of a cache manager, of which there may be too few."""

    num_cpu_blocks = 0

    def __init__(self, blocks):
        self.num_gpu_blocks, self.gpu_free_block_list = blocks, [*range(blocks)]

    def can_allocate_gpu_blocks(self, count, *_, **__):
        return count <= len(self.gpu_free_block_list)

    def allocate_gpu_blocks(self, count, *_):
        return [self.gpu_free_block_list.pop() for _ in range(count)]

    def recycle_gpu_blocks(self, blocks, *_):
        self.gpu_free_block_list += blocks


class Trial:
    """One random run of a manager; `first_difference` is empty where ours left out nothing that counts."""

    def __init__(self, module, seed):
        self.draw, self.module = random.Random(seed), module
        self.states = module.RequestStatus
        self.manager = self._manager(module.ResourceManagerV1, self.draw.choice((6, 12, 40)))
        self.counters = SimpleNamespace(steps=0, lost_steps=0)
        self.now, self.names, self.left_out, self.moved = 0.0, 0, 0, []
        self.ours = Rounds(self.manager, self.counters, lambda: self.now)

    def _manager(self, cls, blocks):
        speculative = self.draw.choice((None, "mtp"))
        cache = SimpleNamespace(
            block_size=BLOCK, enc_dec_block_num=1, prealloc_dec_block_slot_num_threshold=3,
            enable_prefix_caching=False, max_block_num_per_seq=40, kvcache_storage_backend=None,
        )  # fmt: skip
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(method=speculative, num_speculative_tokens=1),
            scheduler_config=SimpleNamespace(
                max_num_batched_tokens=BUDGET, splitwise_role="mixed", max_num_seqs=SLOTS
            ),
            cache_config=cache,
            model_config=SimpleNamespace(
                architectures=["Qwen2ForCausalLM"], enable_mm=False, max_model_len=500
            ),
            enable_mm_runtime=False,
        )
        manager = object.__new__(cls)
        names = ("to_be_rescheduled_request_id_set", "waiting_abort_req_id_set", "to_be_aborted_req_id_set")
        vars(manager).update(dict.fromkeys((*names, "abort_req_ids_set", "using_extend_tables_req_id")))
        vars(manager).update((name, set()) for name, value in [*vars(manager).items()] if value is None)
        vars(manager).update(
            config=config, cfg=config.cache_config, lock=threading.Lock(), running=[], waiting=deque(),
            requests={}, req_dict={}, max_num_seqs=SLOTS, tasks_list=[None] * SLOTS,
            stop_flags=[True] * SLOTS, cache_manager=FakeCache(blocks), need_block_num_map={},
            need_block_num_signal=SimpleNamespace(value=np.zeros(SLOTS, np.int32)), reuse_block_num_map={},
            encoder_cache=None, processor_cache=None, scheduler_unhandled_request_num=0, real_bsz=0,
            use_new_token_ratio_reserve=False, init_reserve_output_block_num=1, decay_output_block_num=0.1,
            min_reserve_output_block_num=0, current_reserve_output_block_num=1,
            current_reserve_output_block_num_float=1.0, can_relax_prefill_strategy=True,
            enable_cache_manager_v1=False, enable_max_prefill=False, speculative_method=speculative,
            waiting_prefill_schedule_threshold=0, preallocated_reqs={}, scheduler_metrics_logger=None,
        )  # fmt: skip
        return manager

    def first_difference(self, rounds):
        """The first round that ours would have left out, and that gave or changed something."""
        for _ in range(rounds):
            self._happen(self.draw.random())
            for _ in range(self.draw.randrange(1, 4)):
                self.now += 0.005
                try:
                    found = self._round()
                except RuntimeError:  # FastDeploy's own: it finds no slot
                    return ""
                if found:
                    return found
        return ""

    def _round(self):
        rounds, before = [], self._picture()
        stock = self.module.ResourceManagerV1.schedule
        self.ours._cls = SimpleNamespace(schedule=lambda one: rounds.append(stock(one)) or rounds[-1])
        given = self.ours.schedule()
        if rounds:
            return ""
        self.left_out += 1
        tasks, errors = stock(self.manager)
        if type(tasks) is not type(given[0]) or len(tasks) or len(given[0]) or errors or given[1]:
            return f"a round was left out that schedules {tasks!r} and {errors!r}"
        return "" if self._picture() == before else "a round was left out that changes the manager"

    def _picture(self):
        told = {name: value for name, value in vars(self.manager).items() if name not in ("lock", "config")}
        requests = [dict(vars(one)) for one in (*self.manager.running, *self.manager.waiting)]
        told["need_block_num_signal"] = told["need_block_num_signal"].value.tolist()
        told["cache_manager"] = [*self.manager.cache_manager.gpu_free_block_list]
        return repr(copy.copy(told) | {"each": requests})

    def _happen(self, chance):
        manager, running = self.manager, self.manager.running
        if chance < 0.25:
            self.names += 1
            name, prompt = f"request {self.names}", self.draw.choice((3, 30, 100))
            request = FakeRequest(name, prompt, self.states.WAITING, False)
            request.async_process_futures = [Future()] * (self.draw.random() < 0.3)
            manager.requests[name] = request
            manager.waiting.append(request)
        elif chance < 0.7:
            self._step()
        elif running and chance < 0.75:
            manager.add_abort_req_ids([self.draw.choice(running).request_id, "unknown"])
        elif running and chance < 0.78:
            manager.need_block_num_signal.value[self.draw.choice(running).idx] = 1
        elif chance < 0.8:  # cache that was moved elsewhere, or taken again
            self._move(manager.cache_manager.gpu_free_block_list)
        elif chance < 0.85:
            for future in {each for one in manager.waiting for each in one.async_process_futures}:
                future.cancel()
        elif running and chance < 0.88:  # FastDeploy frees blocks in a thread of its own
            self._free(self.draw.choice(running))
        elif chance < 0.9:
            manager.scheduler_unhandled_request_num = self.draw.randrange(3)

    def _move(self, free):
        if self.draw.random() < 0.5:
            free += self.moved
            self.moved = []
        else:
            self.moved += free[2:]
            del free[2:]

    def _step(self):
        """The worker's and the token thread's part: tokens, ends, and what was preempted or aborted."""
        manager = self.manager
        for one in [*manager.running]:
            if one.num_computed_tokens >= one.need_prefill_tokens:
                one.output_token_ids += [5] * self.draw.randrange(1, 3)
                one.status = getattr(self.states, "RUNNING_DECODE", getattr(self.states, "RUNNING", None))
                if self.draw.random() < 0.05:
                    self._free(one)
        for name in [*manager.to_be_rescheduled_request_id_set]:
            manager.to_be_rescheduled_request_id_set.discard(name)
            manager.waiting.appendleft(manager.requests[name])
        for name in [*manager.to_be_aborted_req_id_set]:
            manager.to_be_aborted_req_id_set.discard(name)
            self._free(manager.requests[name])
        self.counters.steps += 1

    def _free(self, one):
        manager = self.manager
        if one in manager.running:
            manager.running.remove(one)
        manager.cache_manager.recycle_gpu_blocks(one.block_tables)
        one.block_tables = []
        manager.requests.pop(one.request_id, None)
        if one.idx is not None:
            manager.tasks_list[one.idx], manager.stop_flags[one.idx] = None, True
            manager.req_dict.pop(one.request_id, None)


def first_difference(rounds, progress):
    """The first difference in random runs of this tree's manager; empty if there is none."""
    module = importlib.import_module(MODULE)
    left_out = 0
    for seed in range(rounds):
        if seed % 50 == 0:
            progress("rounds of the scheduler", seed, rounds)
        trial = Trial(module, seed)
        found = trial.first_difference(60)
        if found:
            return f"random run {seed}: {found}"
        left_out += trial.left_out
    return "" if left_out > rounds else f"ours leaves out {left_out} rounds of {rounds} runs only"

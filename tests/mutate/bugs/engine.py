"""Planted bugs of the engine's side and of the trial."""

from tests.mutate.bug import in_file

ENGINE = "fd_postproc/fastdeploy/engine"
PROCESSOR = f"{ENGINE}/processor"
RESULTS = f"{ENGINE}/results"
TRIAL = "fd_postproc/fastdeploy/trial"
TESTS = "tests/plugin/engine"

BUGS = [
    in_file(
        f"{ENGINE}/stale_messages.py",
        f"{TESTS}/test_startup.py",
        ("the age of a sender inverted", "sender < began)", "sender > began)"),
        (
            "messages of this run are older",
            "queue.last_send_time <= booted + began or",
            "queue.last_send_time >= booted + began or",
        ),
        ("what waits is drained though it is to be kept", "if is_on(KEEP_STALE):", "if False:"),
        (
            "a queue is looked at twice",
            "if key == self._settled_key:\n                return 0",
            "if False:\n                return 0",
        ),
        (
            "another service's queue is drained",
            "if QUEUE_ID.text.strip() not in own_queue_ids(self.cfg):",
            "if False:",
        ),
    ),
    in_file(
        f"{PROCESSOR}/finish.py",
        f"{TESTS}/test_release.py {TESTS}/test_faults.py",
        ("requests without a slot are forgotten", 'known.update(getattr(manager, "requests", ()))', "pass"),
        ("small tables are swept", "len(table) > MOST_REQUESTS:", "len(table) > 0:"),
        ("the client is told of no error", "result.error_code = ERROR", "result.error_code = 200"),
        (
            "a failed request goes on",
            "result.finished = True\n        result.error_code",
            "result.finished = False\n        result.error_code",
        ),
        (
            "what is kept of a slot stays",
            "commons[slot] = None",
            "pass",
            f"{TESTS}/test_results.py {TESTS}/test_faults.py",
            "equivalent: the next step's loop drops what is kept of a slot whose request is another one",
        ),
    ),
    in_file(
        f"{PROCESSOR}/finish.py",
        f"{TESTS}/test_faults.py",
        (
            "the outcome of a transfer is kept",
            "self.prefill_result_status.pop(name, None)",
            "self.prefill_result_status.get(name)",
        ),
        (
            "a slot of another request is handed over",
            "if tasks[slot] is not task:",
            "if tasks[slot] is None:",
        ),
        (
            "a transfer is waited for without a limit",
            "if clock.time() - began >= TRANSFER_WAIT_S:",
            "if clock.time() - began >= TRANSFER_WAIT_S * 9999:",
        ),
        (
            "the decode instance is told of nothing",
            "if done:\n            self.cached",
            "if not done:\n            self.cached",
        ),
    ),
    in_file(
        f"{PROCESSOR}/pairing.py",
        f"{TESTS}/test_faults.py {TESTS}/test_steps.py",
        (
            "results that wait are lost",
            "if self._batch_result_buffer:\n                    self.deliver_waiting()",
            "if False:\n                    self.deliver_waiting()",
        ),
        (
            "drafts go to the first of a request",
            "of.get((target.request_id, slot))",
            "of.get((target.request_id, None))",
            "equivalent: a request has one slot at a time, so that both keys name the same rows",
        ),
        (
            "an end waits for its draft",
            "if mtype == TARGET and not any(result.finished for result in batch_result):",
            "if mtype == TARGET:",
        ),
        (
            "the newer goes first",
            "self._batch_result_buffer = list(batch_result)",
            "self._batch_result_buffer = list(batch_result)[::-1]",
        ),
    ),
    in_file(
        f"{PROCESSOR}/finish.py",
        f"{TESTS}/test_release.py {TESTS}/test_steps.py {TESTS}/test_unit_tests_of_fastdeploy.py",
        ("a recovery stop is not told", "result.error_msg = RECOVERY_TEXT", "pass"),
        (
            "a prefilled request counts nowhere",
            "if not kind.prefill or completes_prefills(self.stock):",
            "if not kind.prefill:",
        ),
        (
            "clearing leaves the last slot",
            "for slot in range(manager.max_num_seqs):",
            "for slot in range(manager.max_num_seqs - 1):",
        ),
    ),
    in_file(
        f"{PROCESSOR}/advance.py",
        f"{TESTS}/test_steps.py {TESTS}/test_release.py",
        (
            "an abort before 2.6 ends nothing",
            "if name in manager.abort_req_ids_set and (gone if managed else plain):",
            "if name in manager.abort_req_ids_set and (gone if not managed else plain):",
        ),
        ("an abort before 2.6 is told twice", "manager.abort_req_ids_set.remove(name)", "pass"),
        (
            "an abort of another is told",
            "elif gone and managed and name in manager.to_be_aborted_req_id_set:",
            "elif gone and managed and manager.to_be_aborted_req_id_set:",
        ),
        ("the end token is hidden from all", "if not (hidden and token in ends):", "if not (token in ends):"),
        ("tokens behind the end", "ended = True\n                break", "ended = True"),
        (
            "every token has the first rank",
            "outputs.logprob = outputs.top_logprobs.logprobs[-1][0]",
            "outputs.logprob = outputs.top_logprobs.logprobs[0][0]",
        ),
        ("a decode instance tells dropped tokens", 'or (role == "decode" and self._is_left(name))', ""),
        (
            "one chunk too many",
            "return bool(task.prefill_chunk_num < len(task.prefill_chunk_info))",
            "return bool(task.prefill_chunk_num <= len(task.prefill_chunk_info))",
        ),
    ),
    in_file(
        f"{ENGINE}/delivery/delivery.py",
        f"{TESTS}/test_send_loop.py",
        (
            "a sender that cannot fetch goes round for ever",
            "if self.rounds == before:\n                    break",
            "if self.rounds != before:\n                    break",
        ),
    ),
    in_file(
        f"{ENGINE}/delivery/sending.py",
        f"{TESTS}/test_send_loop.py {TESTS}/test_delivery.py",
        ("names that are not known are no reason", "and names_of(found.__code__) <= KNOWN_NAMES", ""),
        ("the texts of the engine are left out", "if outputs.decode_type == 0:", "if False:"),
        ("another server is passed by", "type(server)._send_batch_response is not self.stock.send", "False"),
    ),
    in_file(
        f"{ENGINE}/delivery/trial.py",
        f"{TESTS}/test_send_loop.py {TESTS}/test_delivery.py",
        ("the outcome of a hand-over is ignored", "True, False) == theirs", "True, False) is not None"),
        ("the outcome of sending is ignored", "hands_over, True) == theirs", "hands_over, True) is not None"),
    ),
    in_file(
        f"{RESULTS}/_handover.pxi",
        f"{TESTS}/test_send_loop.py {TESTS}/test_delivery.py",
        (
            "the worker of an ended request is kept",
            "if ends:\n            processes.pop(name, None)",
            "if False:\n            processes.pop(name, None)",
        ),
        (
            "an ended request is not recycled",
            "if ends:\n                self._recycle(name, waiting)",
            "if False:\n                self._recycle(name, waiting)",
        ),
        (
            "a result without a token passes",
            "return PyList_GET_SIZE(<object>tokens) > 0 or <object>finished is True",
            "return True",
        ),
    ),
    in_file(
        f"{RESULTS}/_loop.pxi",
        f"{TESTS}/test_steps.py {TESTS}/test_random.py",
        (
            "a first token takes the fast path",
            "self.least_count = 2 if self.in_pairs else 1",
            "self.least_count = 1 if self.in_pairs else 0",
        ),
        (
            "the counter is one behind",
            "sent = PyLong_FromLongLong(before + count)",
            "sent = PyLong_FromLongLong(before + 1)",
        ),
        (
            "one token of several is kept",
            "for j in range(count):\n            PyList_Append",
            "for j in range(1):\n            PyList_Append",
        ),
        (
            "dropped requests are told",
            "if name in ids:\n                return None",
            "if name not in ids and False:\n                return None",
        ),
        (
            "accepted heads are one too many",
            "for head in range(count):\n            heads[head]",
            "for head in range(min(count + 1, self.most_heads)):\n            heads[head]",
        ),
    ),
    in_file(
        f"{ENGINE}/health/liveness.py",
        f"{TESTS}/test_liveness.py",
        ("a gone worker is none", "if sight.worker and not sight.state:", "if sight.worker and sight.state:"),
        ("a prefill is a death", "self._prefill if self._prefilling else self.patience", "self.patience"),
        ("a busy engine blames the worker", "self.patience) and not sight.busy:", "self.patience):"),
        ("the usual pace is forgotten at once", "self._usual * _FORGET)", "0.0)"),
    ),
    in_file(
        f"{TRIAL}/compatibility.py",
        "tests/plugin/trial",
        ("things that happened less often are equal", "if len(expected) != len(actual):", "if False:"),
        ("places are not compared", "if place != other_place:", "if False:"),
        ("ours raises and is used", 'return f"ours raises {type(error).__name__}: {error}"', "return None"),
        ("a missing name is no reason", "if not hasattr(module, name):", "if False:"),
    ),
]

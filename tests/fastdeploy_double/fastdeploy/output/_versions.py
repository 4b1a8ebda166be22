"""What a version does otherwise than 2.6: a class for each difference, chosen by what was recorded of it."""

from fastdeploy._shapes import recording
from tests.restated.step import CommonStep

BEHAVIOUR = recording()["behaviour"]
TRANSFER = BEHAVIOUR["failed_transfer"]


class LegacyHeaders:
    """No column counts: as many columns as there is room for."""

    def _topk_header(self):
        return self.output_tokens[1, 0], self.fd.K + 1

    def _spec_topk_header(self):
        return int(self.output_tokens[1, 0].item()), self.fd.K + 1


class EmptySlotsRaise:
    """A slot that is not stopped is taken to have a task."""

    passes_over_empty_slots = False


class NumberedChoices:
    """The number of a choice is marked as such in its name."""

    def _trace_id(self, name):
        return self.fd.get_base_request_id(name)


class OneRunningStatus:
    """The token processor knows no statuses."""

    def _mark_decoding(self, task):
        pass


class PrefillIsNoCompletion:
    """A request that a prefill instance hands over is not counted as completed there."""

    completes_prefill = False


class OneEndForAllRoles:
    """The end of inference is told of each role alike."""

    def _record_decode_time(self, task, current_time):
        self._observe_decode_time(task.metrics, current_time)
        self._print_trace(task, "INFERENCE_END")


class RunningGauge:
    """The gauge of running requests goes down here."""

    def _record_completion_metrics(self, task, current_time):
        super()._record_completion_metrics(task, current_time)
        self.fd.main_process_metrics.num_requests_running.dec(1)


class SilentTransfer:
    """Transfers of the cache are not traced."""

    def _trace_transfer(self, task_id, task, event):
        pass


class NoStorage:
    """The cache goes to the decode instance directly."""

    def _sends_through_storage(self):
        return False


class KeptAnswer:
    """How a transfer ended is remembered forever."""

    def _answer(self, task_id):
        return self.prefill_result_status[task_id]


class RecordedFailure:
    """A failed transfer is told in the version's words."""

    def _tell_failed_transfer(self, task_id, result, status):
        result.error_code = TRANSFER["error_code"]
        setattr(result, TRANSFER["says_so_in"], TRANSFER["text"].format(task_id=task_id, status=status))


def step_classes():
    """The bases that make up the recorded version's step."""
    told, names, switches = BEHAVIOUR, recording()["module"]["names"], recording()["switches"]
    prefill = told.get("prefill_events", [])
    choices = [
        (LegacyHeaders, not told.get("packed_topk")),
        (EmptySlotsRaise, told.get("slot_without_task") != "passed over"),
        (NumberedChoices, "get_base_request_id" in names),
        (OneRunningStatus, "RequestStatus" not in names),
        (PrefillIsNoCompletion, not told.get("prefill_completes")),
        (RunningGauge, "num_requests_running" in recording()["metrics"]),
        (OneEndForAllRoles, "DECODE_INFERENCE_END" not in told.get("decode_events", [])),
        (SilentTransfer, "CHECK_CACHE_TRANSFER_START" not in prefill),
        (NoStorage, "FD_PD_TRANSFER_VIA_STORAGE" not in switches),
        (KeptAnswer, TRANSFER.get("answer_is_kept")),
        (RecordedFailure, True),
    ]
    return [cls for cls, wanted in choices if wanted] + [CommonStep]

"""The socket loop (FD_USE_GET_SAVE_OUTPUT_V1): the names alone, which the plug-in looks up and replaces."""


def _only_in_fastdeploy(name):
    def method(self, *arguments):
        raise NotImplementedError(f"the double has no {name}; run a FastDeploy source tree")

    return method


class StreamsMixin:
    """Steps that come as objects."""

    process_sampling_results_use_zmq = _only_in_fastdeploy("process_sampling_results_use_zmq")
    _reschedule_preempt_task_use_zmq = _only_in_fastdeploy("_reschedule_preempt_task_use_zmq")
    _process_batch_output_use_zmq = _only_in_fastdeploy("_process_batch_output_use_zmq")
    _process_per_token = _only_in_fastdeploy("_process_per_token")

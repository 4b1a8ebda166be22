"""The engine around the token processor: which class, in what order it is started, and the send loop."""

import collections
import time

from fastdeploy import envs
from fastdeploy.engine.request import RequestOutput
from fastdeploy.plugins.token_processor import load_token_processor_plugins
from fastdeploy.scheduler.local_scheduler import LocalScheduler
from fastdeploy.utils import llm_logger


def _token_processor_class():
    try:
        plugin = load_token_processor_plugins()
        llm_logger.info(f"TokenProcessor plugin {plugin} loaded")
        return plugin
    except BaseException:  # FastDeploy's is a bare except: KeyboardInterrupt and SystemExit vanish as well
        from fastdeploy.output import token_processor

        return token_processor.TokenProcessor


TokenProcessor = _token_processor_class()


class EngineService:
    """What EngineService does with a token processor; worker, cache and API server are not here.

    Parameters
    ----------
    cfg : FDConfig
    resource_manager, engine_worker_queue, split_connector
        Objects with the methods that the token processor calls.
    """

    def __init__(self, cfg, resource_manager, engine_worker_queue=None, split_connector=None):
        self.cfg = cfg
        self.scheduler = LocalScheduler()
        self.resource_manager = resource_manager
        self.token_processor = TokenProcessor(
            cfg=cfg,
            cached_generated_tokens=self.scheduler,
            engine_worker_queue=engine_worker_queue,
            split_connector=split_connector,
        )
        self.token_processor.set_resource_manager(resource_manager)
        for setter in (
            "set_scheduler_metrics_logger",
            "set_benchmark_logger",
        ):  # as far as the version has them
            if hasattr(self.token_processor, setter):
                getattr(self.token_processor, setter)(None)
        self.request_worker_map, self.llm_logger = {}, llm_logger
        self.running = False

    def _zmq_send_generated_tokens(self):
        """Fetch what the scheduler has and send it: one message a step and process of the API server."""
        while self.running:
            try:
                results = self.scheduler.get_results()
                if len(results) == 0:
                    time.sleep(0.005)
                    continue

                def kept(contents):
                    """With text, as the client gets them; unfinished results without a token are dropped."""
                    new_contents = []
                    for content in contents:
                        if isinstance(content, RequestOutput) and content.outputs is not None:
                            text, token_ids = "", content.outputs.token_ids
                            if content.outputs.decode_type == 0:
                                text, token_ids = self._decode_token(
                                    token_ids, content.request_id, content.finished
                                )
                            if len(token_ids):
                                content.outputs.token_ids, content.outputs.text = token_ids, text
                            elif not content.finished:
                                name = content.request_id
                                self.llm_logger.warning(
                                    f"current tokens need to accumulate, req_id: {name} {token_ids}"
                                )
                                continue
                        new_contents.append(content)
                    return new_contents

                batches = collections.defaultdict(list)
                for request_id, contents in results.items():
                    new_contents = kept(contents)
                    if new_contents and envs.ZMQ_SEND_BATCH_DATA:
                        batches[self.request_worker_map.get(request_id)].append(new_contents)
                        if any(getattr(content, "finished", False) for content in new_contents):
                            self.request_worker_map.pop(request_id, None)
                    elif new_contents:
                        self.send_response_server.send_response(request_id, new_contents)
                for worker, batch in batches.items():
                    self.send_response_server.send_response(None, batch, worker_pid=worker)
            except Exception as error:
                self.llm_logger.error(f"sending failed: {error!r}")

    def _decode_token(self, token_ids, req_id, is_end):
        """(text, the token ids that it stands for); the double's text is the ids themselves."""
        if not envs.FD_ENABLE_RETURN_TEXT:
            return "", token_ids
        return " ".join(map(str, token_ids)), list(token_ids)


class _Once:
    """An engine whose loops end after a round."""

    def __init__(self, engine):
        self._engine, self._rounds = engine, 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    @property
    def running(self):
        self._rounds += 1
        return self._rounds == 1

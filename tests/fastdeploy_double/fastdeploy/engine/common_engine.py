"""The engine around the token processor: which class, in what order it is started, and the send loop."""

import threading

from fastdeploy import envs
from fastdeploy.engine.request import RequestOutput
from fastdeploy.inter_communicator.zmq_server import PUSH, ZmqIpcServer
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
        self.running = False

    def start(self, name="fastdeploy_double"):
        """Start the token thread and the send thread; the client connects to the ipc name `name`."""
        self.running = True
        self.send_response_server = ZmqIpcServer(name=name, mode=PUSH)
        self.token_processor.tasks_queue = None
        self.token_processor.run()
        self.sender = threading.Thread(target=self._zmq_send_generated_tokens, daemon=True)
        self.sender.start()

    def stop(self):
        """End the send thread.  The token thread has no end of its own, in FastDeploy neither."""
        self.running = False
        self.sender.join()
        self.send_response_server.close()

    def _zmq_send_generated_tokens(self):
        while self.running:
            try:
                self.send_generated_tokens_once()
            except Exception as error:
                llm_logger.error(f"sending failed: {error!r}")

    def send_generated_tokens_once(self):
        """Fetch what the scheduler has and send it: one message a step."""
        results = self.scheduler.get_results()
        if not results:
            return
        steps = results if envs.FD_ENABLE_INTERNAL_ADAPTER else list(results.values())
        batch = [kept for kept in map(self._with_text, steps) if kept]
        if envs.FD_ENABLE_INTERNAL_ADAPTER or envs.ZMQ_SEND_BATCH_DATA:
            if batch:
                self.send_response_server.send_response(None, batch)
            return
        for one_request in batch:
            self.send_response_server.send_response(one_request[0].request_id, one_request)

    def _with_text(self, contents):
        """`contents` as the client gets them; unfinished results without a token are dropped."""
        kept = []
        for content in contents:
            if isinstance(content, RequestOutput) and content.outputs is not None:
                text, token_ids = "", content.outputs.token_ids
                if content.outputs.decode_type == 0:
                    text, token_ids = self._decode_token(token_ids)
                if not token_ids and not content.finished:
                    continue
                content.outputs.token_ids, content.outputs.text = token_ids, text
            kept.append(content)
        return kept

    def _decode_token(self, token_ids):
        """(text, the token ids that it stands for); the double's text is the ids themselves."""
        if not envs.FD_ENABLE_RETURN_TEXT:
            return "", token_ids
        return " ".join(map(str, token_ids)), list(token_ids)

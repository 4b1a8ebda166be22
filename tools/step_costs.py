"""``python -m tools.step_costs``: what a step costs more where a fast path is left to FastDeploy.

CPU time of the engine's thread from a received message to the bytes, 256 requests with 2 tokens and 21
columns, on the double; the socket takes nothing.  `fd_postproc.fastdeploy.gate.seams` has the figures.
"""

import importlib
import inspect
import statistics
import threading
import time
import warnings
from types import SimpleNamespace

from benchmarks.cases import WIDE, check
from benchmarks.processors import OURS, RESTATED, load_case, loaded, step_call, token_processor_module
from fd_postproc.fastdeploy.engine.delivery.delivery import Delivery
from fd_postproc.fastdeploy.engine.delivery.wake_up import WakeUp

LEFT = ("sending", "delivery", "stamps", "metrics")
STEPS, DROPPED = 9, 2


class Engine:
    """A token processor with a full batch, and FastDeploy's engine around it as far as results go.

    Parameters
    ----------
    name : str
        The token processor; with ours comes all that the plug-in puts into FastDeploy.
    case : Case
    socket : object
        What results are sent by.
    """

    def __init__(self, name, case, socket):
        module = token_processor_module()
        service = importlib.import_module("fastdeploy.engine.common_engine").EngineService
        server = importlib.import_module("fastdeploy.inter_communicator.zmq_server")
        scheduler = importlib.import_module("fastdeploy.scheduler.local_scheduler").LocalScheduler
        self.work = loaded(name, module, case)
        few = scheduler.__init__.__code__.co_argcount <= 3
        self.scheduler = scheduler() if few else scheduler(0, 900, False, 1, 1, 1)
        self.scheduler.requests = {task.request_id: SimpleNamespace() for task in self.work.tasks}
        self.work.processor.cached_generated_tokens = self.scheduler
        self.step = step_call(self.work)
        sends = object.__new__(server.ZmqIpcServer)
        vars(sends).update(
            socket=socket, address="benchmark", response_token_lock=threading.Lock(), worker_push_addresses={}
        )
        self.engine = object.__new__(service)
        vars(self.engine).update(
            running=True,
            scheduler=self.scheduler,
            send_response_server=sends,
            request_worker_map={},
            llm_logger=server.llm_logger,
        )
        self.stock = inspect.unwrap(vars(service)["_zmq_send_generated_tokens"])
        self.delivery = None
        self._changes = []
        if name == OURS:
            plan = self.work.processor.plan
            self.delivery = Delivery(plan, self.scheduler, service, server)
            self.work.processor.parts.pairing.delivery = self.delivery
            self._changes = [WakeUp(self.scheduler), self.delivery]
            check(self.delivery.sending is not None, "FastDeploy's way is timed")
        for change in self._changes:
            change.begin()

    def send(self):
        """A round of the loop."""
        if self.delivery is None:
            self.stock(_OneRound(self.engine))
        else:
            self.delivery.round(self.engine)

    def close(self):
        for change in self._changes:
            change.end()


class _OneRound:
    """Engine whose loop ends after a round."""

    def __init__(self, engine):
        self._engine, self._asked = engine, iter((True, False))

    def __getattr__(self, name):
        return getattr(self._engine, name)

    @property
    def running(self):
        return next(self._asked)


class Socket:
    """Takes everything."""

    def send(self, *arguments, **named):
        pass

    send_multipart = send


def cost(name, left=""):
    """Milliseconds of a step, with one path left to FastDeploy."""
    engine = Engine(name, load_case(WIDE), Socket())
    processor = engine.work.processor
    if left == "sending":
        engine.stock = engine.delivery.stock.loop
        engine.delivery = None
    elif left == "delivery":
        processor.parts.pairing.delivery.handover_in = lambda scheduler: None
    elif left == "stamps":
        processor.parts.steps.steady_mode = lambda: None
    elif left == "metrics":
        usual = processor.parts.steps.steady_mode
        processor.parts.steps.steady_mode = lambda: usual()._replace(metrics=None)
    spent = []
    for _ in range(STEPS):
        engine.work.reset()
        began = time.process_time()
        engine.step()
        engine.send()
        spent.append(1000 * (time.process_time() - began))
    engine.close()
    return statistics.median(spent[DROPPED:])


def main():
    warnings.simplefilter("ignore")
    ours = cost(OURS)
    print(f"FastDeploy restated {cost(RESTATED):.1f} ms, ours {ours:.2f} ms")
    for left in LEFT:
        print(f"{left}: {cost(OURS, left) - ours:+.2f} ms")


if __name__ == "__main__":
    main()

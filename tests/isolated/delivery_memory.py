"""Program: steps on their way from the token thread to the socket's bytes; prints by how much memory grew.

``python delivery_memory.py STEPS`` lets requests end and others begin all the time, and prints the KiB by
which the resident memory grew in the second half.
"""

import gc
import resource
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

import fastdeploy.engine.common_engine as service  # noqa: E402
import fastdeploy.inter_communicator.zmq_server as server  # noqa: E402
import fastdeploy.scheduler.local_scheduler as schedulers  # noqa: E402

from tests.lib.rig import END, Rig  # noqa: E402

SLOTS, LIFE = 8, 50


def resident():
    """KiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def main(steps):
    rig = Rig("spec_topk", slots=SLOTS)
    scheduler = schedulers.LocalScheduler()
    rig.processor.cached_generated_tokens = scheduler
    engine = object.__new__(service.EngineService)
    engine.scheduler, engine.llm_logger, engine.request_worker_map = scheduler, server.llm_logger, {}
    engine.send_response_server = server.ZmqIpcServer("memory", "PUSH")
    sent = engine.send_response_server.socket.queue
    delivery = rig.processor.parts.pairing.delivery
    half, messages = 0, 0
    for number in range(steps):
        for slot in range(SLOTS):
            if number % LIFE == slot:
                name = f"request {number} {slot}"
                rig.insert(name, slot)
                rig.requests.clear()
                scheduler.requests[name] = None
                engine.request_worker_map[name] = slot % 2
        live = [slot for slot in range(SLOTS) if rig.manager.tasks_list[slot] is not None]
        last = number % LIFE == LIFE - 1
        rig.processor.parts.steps.process(
            rig.message({slot: [END] if last else [7, 8] for slot in live}, columns=21)
        )
        delivery.round(engine)
        while not sent.empty():
            sent.get_nowait()
            messages += 1
        rig.manager.calls.clear()  # the stand-in notes every request that has ended
        if number == steps // 2:
            gc.collect()
            half = resident()
    gc.collect()
    grown = resident() - half
    assert messages > steps
    assert delivery.sending.others == 0
    assert set(rig.processor.parts.ending.templates) == {None}
    print(grown)


if __name__ == "__main__":
    main(int(sys.argv[1]))

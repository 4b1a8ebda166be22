"""``python -m tools.step_costs``: what a step costs more where a fast path is left to FastDeploy.

CPU time of the engine's thread from a received message to the bytes, 256 requests with 2 tokens and 21
columns, on the double; the socket takes nothing.  `fd_postproc.fastdeploy.seams` has the figures.
"""

import statistics
import time
import warnings

from benchmarks import delivery
from benchmarks.cases import HEADLINE
from benchmarks.processors import OURS, RESTATED, load_case

LEFT = ("sending", "delivery", "stamps", "metrics")
STEPS, DROPPED = 9, 2


class Socket:
    """Takes everything."""

    def send(self, *arguments, **named):
        pass

    send_multipart = send


def cost(name, left=""):
    """Milliseconds of a step, with one path left to FastDeploy."""
    engine = delivery.Engine(name, load_case(HEADLINE[-1]), Socket())
    processor = engine.work.processor
    if left == "sending":
        engine._stock = engine.delivery.stock.loop
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

"""``python -m tests.restated times|profile|consumer``: the restated step beside FastDeploy's.

`fastdeploy` must be importable: FastDeploy itself, or in a checkout the double
(``PYTHONPATH=tests/fastdeploy_double``).
"""

import argparse
import importlib

from . import bind, consumer, shares, times
from .measured import BATCHES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.restated", description=__doc__)
    parser.add_argument("what", choices=("times", "profile", "consumer"))
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, help="of the table of times")
    parser.add_argument("--steps", type=int, default=50, help="in a pass")
    parser.add_argument("--passes", type=int, default=times.PASSES)
    parser.add_argument(
        "--installed", action="store_true", help="time FastDeploy's class, not the restated step"
    )
    arguments = parser.parse_args()
    module = importlib.import_module("fastdeploy.output.token_processor")
    cls = module.TokenProcessor if arguments.installed else bind(module)
    if arguments.what == "times":
        print(times.report(module, cls, arguments.batches, arguments.steps, arguments.passes))
    elif arguments.what == "consumer":
        print(consumer.report(module, cls, arguments.steps))
    else:
        print(shares.report(module, cls, arguments.steps, arguments.passes))


if __name__ == "__main__":
    main()

"""``vllm serve`` without a GPU, before a stand-in engine core: ``python -m ... MODEL [OPTIONS]``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    from vllm.entrypoints.cli.main import main as serve
    from vllm.v1.engine.core import EngineCoreProc

    from benchmarks.peers.vllm_core import run_engine_core

    EngineCoreProc.run_engine_core = staticmethod(run_engine_core)
    sys.argv = ["vllm", "serve", *sys.argv[1:]]
    serve()


if __name__ == "__main__":
    main()

"""FastDeploy's own step, restated: what the plug-in is measured against and compared with.

`StockStep` holds what FastDeploy's token processor does with one received message: decode the tensors,
advance each request, build the results, postprocess, recycle.  It is written anew from a description of
that class's behaviour, with its costs (BASELINE.md) and with its defects, which are marked ``as upstream``.

It needs names that only FastDeploy has.  They are looked up at each call in ``self.fd``, a namespace that
behaves as the module ``fastdeploy.output.token_processor``; `bind` makes a class that has one.  No
framework is imported.
"""

from __future__ import annotations

from typing import Any

from .step import CommonStep, StockStep

__all__ = ["CommonStep", "StockStep", "bind"]


def bind(module: Any) -> type:
    """A token processor whose step is the restated one.

    Parameters
    ----------
    module : module or namespace
        With the names of ``fastdeploy.output.token_processor``.  Its ``TokenProcessor`` gives construction
        and the receive loop; the test double's has the restated step already and is returned as it is.
    """
    stock = module.TokenProcessor
    return stock if issubclass(stock, CommonStep) else type("Restated", (StockStep, stock), {"fd": module})

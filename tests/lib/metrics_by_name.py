"""FastDeploy's metrics since its pull request #7865: every update goes through a method that is given a name.

The restated step updates metric objects.  `by_name` rewrites those calls, and only those, in a variant of the
double's module, so that it does what FastDeploy's later class does.
"""

import ast
import importlib
import inspect
import itertools
import textwrap

from tests.lib.quiet import imported

_METHODS = {"observe": "obs_value", "inc": "inc_value", "set": "set_value"}
_HEADS = "spec_decode_draft_single_head_acceptance_rate"
_numbers = itertools.count()  # metrics of one name would share a file in multiprocess mode


def make_manager(labels):
    """``main_process_metrics`` on a registry of its own; `labels` are the values that every metric gets."""
    base = imported("fastdeploy.metrics.metrics").MetricsManager
    prometheus = importlib.import_module("prometheus_client")  # not before: FastDeploy says in which mode
    prefix = f"named{next(_numbers)}:"

    class NamedMetrics(base):
        def _make(self, kind, name, description, **options):
            if name.startswith(_HEADS):
                options["labelnames"] = ("head",)
            options["labelnames"] = (*labels, *options.get("labelnames", ()))
            return kind(prefix + name, description, registry=self._registry, **options)

        def _init_speculative_metrics(self, speculative_method, num_speculative_tokens):
            super()._init_speculative_metrics(speculative_method, 0)
            if speculative_method == "mtp":
                setattr(self, _HEADS, self._make(prometheus.Gauge, _HEADS, "Acceptance rate of a head"))

        def _of(self, name, labelvalues):
            metric, values = getattr(self, name), {**labels, **(labelvalues or {})}
            return metric.labels(**values) if values else metric

        def obs_value(self, name, value, labelvalues=None):
            self._of(name, labelvalues).observe(value)

        def inc_value(self, name, value=1, labelvalues=None):
            self._of(name, labelvalues).inc(value)

        def set_value(self, name, value, labelvalues=None):
            self._of(name, labelvalues).set(value)

        def samples(self):
            """Every sample that is not zero, but for the times at which metrics were made."""
            return {
                (sample.name.removeprefix(prefix), *sample.labels.items()): sample.value
                for family in self._registry.collect()
                for sample in family.samples
                if sample.value and not sample.name.endswith("_created")
            }

    return NamedMetrics(prometheus.CollectorRegistry())


def by_name(module, labels):
    """Give a variant of the token processor's module metrics that are updated by name."""
    module.main_process_metrics = make_manager(labels)
    for cls in module.TokenProcessor.__mro__[:-1]:
        for name, function in vars(cls).items():
            if inspect.isfunction(function) and "main_process_metrics" in function.__code__.co_names:
                setattr(module.TokenProcessor, name, _rewritten(function))


def _rewritten(function):
    return _compiled(_ByName().visit(ast.parse(textwrap.dedent(inspect.getsource(function)))), function)


def _compiled(tree, function):
    made = {}
    code = compile(
        ast.fix_missing_locations(tree), inspect.getsourcefile(function), "exec", dont_inherit=True
    )
    exec(code, function.__globals__, made)
    return made[function.__name__]


class _ByName(ast.NodeTransformer):
    """``metrics.NAME.observe(x)`` becomes ``metrics.obs_value("NAME", x)``."""

    def visit_Call(self, node):
        self.generic_visit(node)
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr not in _METHODS:
            return node
        metric, labels = called.value, []
        if isinstance(metric, ast.Subscript):
            text = ast.Call(ast.Name("str", ast.Load()), [metric.slice], [])
            metric, labels = metric.value, [ast.Dict([ast.Constant("head")], [text])]
        method = ast.Attribute(metric.value, _METHODS[called.attr], ast.Load())
        arguments = node.args or [ast.Constant(1)]
        return ast.Call(method, [ast.Constant(metric.attr), *arguments, *labels], [])

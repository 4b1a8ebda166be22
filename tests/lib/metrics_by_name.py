"""FastDeploy's metrics since its pull request #7865: every update goes through a method that is given a name.

The restated step updates metric objects.  `by_name` rewrites those calls, and only those, in a variant of the
double's module, so that it does what FastDeploy's later class does.
"""

import importlib
import inspect
import itertools
import re
import textwrap

from tests.lib.quiet import imported

_METHODS = {"observe": "obs_value", "inc": "inc_value", "set": "set_value"}
_UPDATE = re.compile(r"metrics\.(\w+)(?:\[(\w+)\])?\.(observe|inc|set)\(")
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
                text = _UPDATE.sub(_named, textwrap.dedent(inspect.getsource(function)))
                made = {}
                exec(compile(text, "<by name>", "exec", dont_inherit=True), function.__globals__, made)
                setattr(module.TokenProcessor, name, made[name])


def _named(update):
    """``metrics.NAME.observe(`` becomes ``metrics.obs_value("NAME", ``."""
    name, head, method = update.groups()
    labels = f'labelvalues={{"head": str({head})}}, value=' if head else ""
    return f'metrics.{_METHODS[method]}("{name}", {labels}'

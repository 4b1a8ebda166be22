"""The gate: which statements are known, what does not count, and what a verdict says."""

import ast
import contextlib
import functools
import json
import types
from unittest.mock import Mock

import pytest

from fd_postproc.fastdeploy import called, code_watch, gate, logs, restated_data, seams
from fd_postproc.fastdeploy.seams import ENGINE, SEAMS
from fd_postproc.fastdeploy.statements import node_of, statements, statements_of, whole, whole_of
from tests.lib.quiet import Double, imported
from tests.lib.rows import each

KNOWN = """
def advance(self, tasks, now=None):
    if self.ready:
        for task in tasks:
            task.count += 1
            task.stamp(now)
    else:
        self.wait()
    return tasks
"""
COUNT, STAMP = "            task.count += 1\n", "            task.stamp(now)\n"
WAIT, END = "        self.wait()\n", "    return"
SAME = {
    "a docstring": ("    if self.ready", '    "What it does."\n    if self.ready'),
    "annotations": ("tasks, now=None)", "tasks: list, now: float = None) -> list"),
    "a log line": (WAIT, '        llm_logger.info(f"{len(tasks)} wait")\n' + WAIT),
    "what only a log reads": (WAIT, '        many = len(tasks)\n        log.debug("%s", many)\n' + WAIT),
    "a log line under a condition": (END, "    if self.debug:\n        llm_logger.debug(tasks)\n" + END),
    "an import of ops": (END, "    from fastdeploy.model_executor.ops.gpu import get_output\n" + END),
    "a comment": (END, "    # done\n" + END),
}
OTHER = {
    "a new statement": (END, "    self.done()\n" + END),
    "one less": (COUNT, ""),
    "the last one less": (STAMP, ""),
    "another order": (COUNT + STAMP, STAMP + COUNT),
    "one twice": (COUNT, COUNT * 2),
    "another condition": ("self.ready", "not self.ready"),
    "another branch": ("    else:\n" + WAIT, ""),
    "another default": ("now=None", "now=0"),
    "a decorator": ("def advance", "@again\ndef advance"),
    "made async": ("def advance", "async def advance"),
    "a log line that does something": (END, "    llm_logger.info(tasks.pop())\n" + END),
    "a log line with a named argument that does something": (
        END,
        "    llm_logger.info('', extra=tasks.pop())\n" + END,
    ),
    "something besides a log line under a condition": (
        END,
        "    if self.debug:\n        llm_logger.debug(tasks)\n    else:\n        self.done()\n" + END,
    ),
    "a value that nothing reads, of a call": (END, "    x = tasks.pop()\n" + END),
    "outside its condition": (STAMP, STAMP[4:]),
}


def digests(text):
    return {one.digest for one in statements(ast.parse(text).body[0])}


@each("what", [*SAME, *OTHER])
def test_what_only_readers_and_logs_see_does_not_count_and_any_other_change_does(what):
    changed = KNOWN.replace(*(SAME | OTHER)[what])
    assert changed != KNOWN
    assert (digests(changed) == digests(KNOWN)) is (what in SAME)
    assert (digests(changed) <= digests(KNOWN)) is (what in SAME)


def known_function(one, *, two=(1, 2)):
    """Ends with brackets below its last bytecode line."""
    return max(
        one,
        two,
    )


def test_a_function_is_read_alone_and_its_lines_are_the_files():
    node = node_of(known_function)
    assert node.name == "known_function"
    lines = {one.line for one in statements_of(known_function)}
    first = known_function.__code__.co_firstlineno
    assert lines == {first, first + 2}


@each("function", [len, lambda: 1, eval("lambda: 2"), print])
def test_without_a_source_it_stays_fastdeploys(function):
    verdict = gate.compared([("x", function)], {})
    assert verdict.reason == "x cannot be read: its source is not there"


def test_a_function_whose_whole_text_is_known_is_not_parsed(monkeypatch):
    monkeypatch.setattr(gate, "statements_of", lambda function: ())
    known = {"x": {whole_of(known_function): "+-"}}
    assert gate.compared([("x", known_function)], known, ("a", "b")) == ((), {"a": True, "b": False})
    assert gate.compared([("x", digests)], known).reason


BELOW = "\n\ndef other():\n    pass\n"


@each(
    "text, last",
    [
        ("def x():\n    return f(\n        1\n    )\n", 3),
        ("def x():\n    a()\n\n    # the end\n    pass\n", 2),
        ('def x():\n    return """\n    a\n    """\n', 2),
    ],
)
def test_a_whole_text_ends_below_its_bytecode(text, last):
    """Whatever stands below it; the recorder knows the last line from the syntax tree."""
    count = text.count("\n")
    told = whole((text + BELOW).splitlines(True), 1, last)
    assert told == whole(text.splitlines(True), 1, count)
    assert told != whole((text + "    more()\n" + BELOW).splitlines(True), 1, last)


def test_a_string_with_lines_at_the_margin_is_no_known_text():
    """Its function ends too early for the digest, and is parsed then."""
    told = whole(["def x():\n", '    return """\n', "a\n", '"""\n'], 1, 2)
    assert told != whole(["def x():\n", '    return """\n', "a\n", '"""\n'], 1, 4)


def test_the_reason_names_function_file_and_line():
    verdict = gate.compared([("One.x", known_function)], {})
    line = known_function.__code__.co_firstlineno
    assert verdict.reason.startswith(f"One.x has new code in line {line} of ")
    assert verdict.reason.endswith("test_gate.py")


def test_statements_of_versions_that_do_different_things_are_not_joined():
    told = [one.digest for one in statements_of(known_function)]
    both = {"x": dict(zip(told, "+-" * len(told), strict=False))}
    found = [("x", known_function)]
    assert "do different things" in gate.compared(found, both, ["a fact"]).reason
    for mark in ("++", "+-", ".+", "-"):
        verdict = gate.compared(found, {"x": dict.fromkeys(told, mark)}, ("one", "two"))
        assert (verdict.reason is None) == (len(mark) == 2 and "." not in mark)
        assert verdict.facts == {"one": mark[:1] == "+", "two": mark[1:2] == "+"}
    assert gate.compared(found, {"x": dict.fromkeys(told, "")}, ["a fact"]).reason


def test_a_function_that_does_not_run_still_tells_the_version():
    """A version may differ only in what does not run here: over ZeroMQ, in what reads the queue."""
    runs, other = ({one.digest: mark for one in statements_of(known_function)} for mark in ("", "-"))
    found = [("runs", known_function), ("other", known_function)]
    known = {"runs": runs, "other": other}
    assert gate.compared(found, known, ["a fact"], {"other"}) == ((), {"a fact": False})
    for new in (known_function, gate.Unknown("other", "", 0)):  # unknown there is not unknown here
        known = {"runs": other, "other": {}}
        assert not gate.compared([found[0], ("other", new)], known, ["a fact"], {"other"}).unknown
    assert gate.compared(found, {"runs": runs, "other": {}}, ["a fact"], {"other"}).unknown


def test_records_that_are_joined_keep_the_signs_that_agree():
    one, other = ({"seam": {"x": {"digest": mark}}} for mark in ("+-+", "+++"))
    assert gate.joined(one, one) == one
    assert gate.joined(one, other) == {"seam": {"x": {"digest": "+.+"}}}
    assert gate.joined(one, {"seam": {"x": {"digest": ""}}}) == {"seam": {"x": {"digest": ""}}}


class Base:
    def own(self):
        return 1

    def extended(self):
        return 1


class Extends(Base):
    def own(self):
        return 2

    def extended(self):
        return super().extended() + 1


def test_where_the_wrapper_around_ours_still_runs_what_is_below_is_judged():
    def stock():
        pass

    ours = type("Ours", (), {"__module__": "fd_postproc.fastdeploy", "__call__": stock})()
    ours.original = stock
    around = functools.wraps(ours)(lambda: ours())
    assert called.layers_of(around) == [around, stock]
    assert called.layers_of(around, calls_outer=True) == [stock]


def test_a_bases_method_is_judged_where_it_runs():
    found = [[*gate._called(Extends.__mro__, name, "", False)] for name in ("own", "extended")]
    assert found == [[Extends.own], [Extends.extended, Base.extended]]


def test_a_record_of_ones_own_is_known_besides(monkeypatch, tmp_path):
    told = {"a seam": {"x": " ".join(one.digest for one in statements_of(known_function))}}
    file = tmp_path / "known.json"
    file.write_text(json.dumps(told))
    monkeypatch.setenv("FD_POSTPROC_KNOWN", str(file))
    known = gate.record.__wrapped__()
    assert gate.compared([("x", known_function)], known["a seam"]).reason is None
    assert set(known) - {"a seam"}
    assert gate.packed(gate.unpacked(told)) == {
        "a seam": {"x": " ".join(sorted(told["a seam"]["x"].split()))}
    }


@each("text", [None, "", "no json", "[]", "{}", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"x": "hello"}}'])
def test_a_record_that_cannot_be_read_is_logged(text, monkeypatch, tmp_path):
    file = tmp_path / "known.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.delenv("FD_POSTPROC_KNOWN", raising=False)
    packages = gate.record.__wrapped__()
    monkeypatch.setenv("FD_POSTPROC_KNOWN", str(file))
    assert gate.record.__wrapped__() == packages
    monkeypatch.setattr(logs, "_complaints", {})
    log = Mock()
    logs.tell_variables(log)
    fault = "cannot be read: No such file" if text is None else "holds nothing that"
    (told,) = log.error.call_args.args
    assert f"FD_POSTPROC_KNOWN='{file}' {fault}" in told


def test_the_packages_record_is_of_seams_and_of_digests_only():
    for seam, functions in json.loads(
        (gate.importlib.resources.files("fd_postproc.fastdeploy") / "known_code.json").read_text()
    ).items():
        assert SEAMS[seam].stands_for
        for text in functions.values():
            assert all(one[:10].isalnum() and set(one[10:]) <= {*"+-."} for one in text.split())


# ---- What is called ----------------------------------------------------------------------------------------


class Called:
    """A class with `__call__` that passes for what it wraps, as wrapt's proxies do."""

    def __init__(self, wrapped):
        self.__wrapped__, self.__code__ = wrapped, getattr(wrapped, "__code__", None)

    @property
    def __class__(self):
        return types.FunctionType

    def __call__(self, *arguments, **named):
        return self.__wrapped__(*arguments, **named)


def traced(function):
    @functools.wraps(function)
    def traced_call(*arguments, **named):
        return function(*arguments, **named)

    return traced_call


def bare(function):
    return lambda *arguments, **named: function(*arguments, **named)


def same_text(function):
    names = {**function.__globals__, "__name__": "tracer"}
    return types.FunctionType(function.__code__, names, function.__name__, None, function.__closure__)


WRAPPERS = {
    "functools.wraps": traced,
    "a proxy": Called,
    "a partial": functools.partial,
    "a monkeypatch": bare,
    "the same text, other globals": same_text,
}
with contextlib.suppress(ImportError):  # with its C extension or without: WRAPT_DISABLE_EXTENSIONS
    import wrapt

    WRAPPERS["wrapt"] = wrapt.decorator(lambda wrapped, _, arguments, named: wrapped(*arguments, **named))


def _standing(row):
    """Each function of the double that a row stands for: its name, its class or module, its attribute."""
    for named in row.functions:
        where, _, name = named.rpartition(":")
        owner, _, attribute = name.rpartition(".")
        for place in [f"fastdeploy.{where}"] if where else row.modules:
            with contextlib.suppress(ImportError, RuntimeError):
                module = imported(place)
                classes = [one for one in vars(module).values() if isinstance(one, type)]
                own = [one for one in classes if one.__module__ == place]
                holders = own if owner == "*" else [getattr(module, owner, None) if owner else module]
                for holder in holders:
                    lineage = getattr(holder, "__mro__", (holder,))
                    for one in lineage[:1] if owner == "*" else lineage:
                        if attribute in getattr(one, "__dict__", {}):
                            yield attribute, module, one
                            break


@pytest.fixture
def double():
    """The double's modules by name."""
    return Double()


@pytest.mark.framework
@each("how", WRAPPERS)
def test_a_wrapper_around_each_function_is_named(how, double, monkeypatch):
    count = 0
    for seam, row in SEAMS.items():
        for name, module, holder in [*_standing(row)]:
            place = module if module.__name__ in row.modules else None
            before = gate.judge(seam, place).reason
            raw = vars(holder)[name]
            kind = type(raw) if type(raw) in (property, staticmethod, classmethod) else None
            inner = raw.fget if kind is property else raw.__func__ if kind else raw
            if type(inner) is not types.FunctionType or called.is_ours(inner):
                continue
            wrapper = WRAPPERS[how](inner)
            with monkeypatch.context() as patch:
                patch.setattr(holder, name, kind(wrapper) if kind else wrapper)
                unknown = gate.judge(seam, place).unknown
            assert [one for one in unknown if one.function.endswith(name) and one.change], (seam, name)
            assert gate.judge(seam, place).reason == before
            count += 1
    assert count > 30


@pytest.mark.framework
def test_new_code_in_each_function_closes_its_seam_and_no_other(double, monkeypatch):
    """Statements of one function that the record does not have."""
    known, count = gate.record(), 0
    for seam, row in SEAMS.items():
        if any(one.startswith("*.") for one in row.stands_for) or gate.judge(seam).reason:
            continue
        for name in row.functions:
            without = {
                one: {**functions, name: {}} if one == seam else functions for one, functions in known.items()
            }
            with monkeypatch.context() as patch:
                patch.setattr(gate, "record", lambda without=without: without)
                unknown = gate.judge(seam).unknown
                assert {one.function for one in unknown} <= {name}, (seam, name)
                assert all("has new code in line" in one.text for one in unknown)
                count += bool(unknown)
    assert count > 30


@pytest.mark.framework
def test_a_wrapper_after_the_start_is_named_once(double, monkeypatch):
    cls = double.scheduler__local_scheduler.LocalScheduler
    assert gate.judge("delivery", cls).reason is None
    log = Mock()
    monkeypatch.setattr(seams, "_is_off", {})
    said = set()
    monkeypatch.setattr(code_watch, "export", lambda *gauge: said.add(gauge))
    code_watch.report_known(ENGINE)
    assert said == {("known", "side", ENGINE, True)}
    said.clear()
    watch = code_watch.CodeWatch(ENGINE, log)
    mine = lambda texts: [one for one in texts if "put_results" in one and "(delivery)" in one]  # noqa: E731
    assert not mine(watch.look_now())
    monkeypatch.setattr(cls, "put_results", Called(cls.put_results))
    (text,) = mine(watch.look_now())
    assert "Called" in text
    assert "called from now on" in text  # `Handover` looks at it at each step
    assert not mine(watch.look_now())
    assert said == {("known", "side", ENGINE, False), ("fast_path", "path", "delivery", False)}


@pytest.mark.framework
def test_each_class_of_a_module_has_its_own_judgement(double, monkeypatch):
    monkeypatch.setattr(seams, "_is_off", {})
    base, judgements = double.scheduler__local_scheduler.LocalScheduler, {}
    monkeypatch.setattr(gate, "_judgements", judgements)
    one, other = (type(name, (base,), {"__module__": __name__}) for name in ("One", "Other"))
    assert not any(gate.judge("delivery", cls).reason for cls in (one, other))
    monkeypatch.setattr(one, "put_results", Called(one.put_results), raising=False)
    assert [*gate.changes(ENGINE)] == ["delivery"]


@pytest.mark.framework
def test_data_that_ours_restates_are_compared(double, monkeypatch):
    cls = double.scheduler__local_scheduler.LocalScheduler
    assert gate.judge("delivery", cls).reason is None
    monkeypatch.setattr(cls, "most", 3, raising=False)
    assert "LocalScheduler is other data" in gate.judge("delivery", cls).reason


def test_data_have_the_same_text_loaded_and_read(tmp_path):
    text = (
        "import enum, dataclasses\nLIMIT = 3\nclass Base: kind = 'a'\n"
        "class Method(str, enum.Enum):\n    A = 'a'\n    B = 'b'\n"
        "@dataclasses.dataclass\nclass Row(Base):\n    x: int = 1\n    most = (1, 2)\n"
        "class Plain(Base):\n    y: int = 4\n    z = None\n"
    )
    module = types.ModuleType("module")
    exec(text, vars(module))
    for name in ("LIMIT", "Base", "Method", "Row", "Plain", "Missing"):
        assert restated_data.value_in(module, name) == restated_data.value_of_source(ast.parse(text), name)

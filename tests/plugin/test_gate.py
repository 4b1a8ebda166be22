"""The gate: which statements are known, what does not count, and what a verdict says."""

import argparse
import ast
import contextlib
import dis
import functools
import gc
import importlib.util
import json
import linecache
import os
import py_compile
import sys
import types
from unittest import mock
from unittest.mock import Mock

import pytest

from fd_postproc.fastdeploy.events import code_watch, log
from fd_postproc.fastdeploy.gate import called, data, judgements, record
from fd_postproc.fastdeploy.gate.judgements import gate
from fd_postproc.fastdeploy.gate.seams import ENGINE, SEAMS
from fd_postproc.fastdeploy.gate.statements import (
    node_of,
    runs_its_text,
    statements,
    statements_of,
    whole,
    whole_of,
)
from tests.lib.quiet import Double, imported
from tests.lib.rows import each
from tools.accept import reading

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
    verdict = judgements.compared([("x", function)], {})
    assert verdict.reason == "x cannot be read: its source is not there"


def test_a_function_whose_whole_text_is_known_is_not_parsed(monkeypatch):
    monkeypatch.setattr(judgements, "statements_of", lambda function: ())
    known = {"x": {whole_of(known_function): "+-"}}
    assert judgements.compared([("x", known_function)], known, ("a", "b")) == ((), {"a": True, "b": False})
    assert judgements.compared([("x", digests)], known).reason


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
    verdict = judgements.compared([("One.x", known_function)], {})
    line = known_function.__code__.co_firstlineno
    assert verdict.reason.startswith(f"One.x has new code in line {line} of ")
    assert verdict.reason.endswith("test_gate.py")


def test_statements_of_versions_that_do_different_things_are_not_joined():
    told = [one.digest for one in statements_of(known_function)]
    both = {"x": dict(zip(told, "+-" * len(told), strict=False))}
    found = [("x", known_function)]
    assert "do different things" in judgements.compared(found, both, ["a fact"]).reason
    for mark in ("++", "+-", ".+", "-"):
        verdict = judgements.compared(found, {"x": dict.fromkeys(told, mark)}, ("one", "two"))
        assert (verdict.reason is None) == (len(mark) == 2 and "." not in mark)
        assert verdict.facts == {"one": mark[:1] == "+", "two": mark[1:2] == "+"}
    assert judgements.compared(found, {"x": dict.fromkeys(told, "")}, ["a fact"]).reason


def test_a_function_that_does_not_run_still_tells_the_version():
    """A version may differ only in what does not run here: over ZeroMQ, in what reads the queue."""
    runs, other = ({one.digest: mark for one in statements_of(known_function)} for mark in ("", "-"))
    found = [("runs", known_function), ("other", known_function)]
    known = {"runs": runs, "other": other}
    assert judgements.compared(found, known, ["a fact"], {"other"}) == ((), {"a fact": False})
    for new in (known_function, judgements.NewCode("other", "", 0)):  # unknown there is not unknown here
        known = {"runs": other, "other": {}}
        assert not judgements.compared([found[0], ("other", new)], known, ["a fact"], {"other"}).unknown
    assert judgements.compared(found, {"runs": runs, "other": {}}, ["a fact"], {"other"}).unknown


def test_records_that_are_joined_keep_the_signs_that_agree():
    one, other = ({"seam": {"x": {"digest": mark}}} for mark in ("+-+", "+++"))
    assert record.joined(one, one) == one
    assert record.joined(one, other) == {"seam": {"x": {"digest": "+.+"}}}
    assert record.joined(one, {"seam": {"x": {"digest": ""}}}) == {"seam": {"x": {"digest": ""}}}


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
    found = [[*judgements._called(Extends.__mro__, name, "", False)] for name in ("own", "extended")]
    assert found == [[Extends.own], [Extends.extended, Base.extended]]


def test_a_record_of_ones_own_is_known_besides(monkeypatch, tmp_path):
    told = {"a seam": {"x": " ".join(one.digest for one in statements_of(known_function))}}
    file = tmp_path / "known.json"
    file.write_text(json.dumps(told))
    monkeypatch.setenv("FD_POSTPROC_KNOWN", str(file))
    known = record.read()
    assert judgements.compared([("x", known_function)], known["a seam"]).reason is None
    assert set(known) - {"a seam"}
    assert record.packed(record.unpacked(told)) == {
        "a seam": {"x": " ".join(sorted(told["a seam"]["x"].split()))}
    }


@each("text", [None, "", "no json", "[]", "{}", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"x": "hello"}}'])
def test_a_record_that_cannot_be_read_is_logged(text, monkeypatch, tmp_path):
    file = tmp_path / "known.json"
    if text is not None:
        file.write_text(text)
    monkeypatch.delenv("FD_POSTPROC_KNOWN", raising=False)
    packages = record.read()
    monkeypatch.setenv("FD_POSTPROC_KNOWN", str(file))
    assert record.read() == packages
    monkeypatch.setattr(log, "_complaints", {})
    monkeypatch.setattr(log, "_told", set())
    fault = "cannot be read: No such file" if text is None else "holds nothing that"
    told = []
    for name in "a log", "another", "a log":  # once in each: the sides of a process have their own
        to = Mock()
        to.name = name
        log.tell_variables(to)
        told.append([call.args[0] for call in to.error.call_args_list])
    assert list(map(len, told)) == [1, 1, 0]
    assert f"FD_POSTPROC_KNOWN='{file}' {fault}" in told[0][0]


def test_the_packages_record_is_of_seams_and_of_digests_only():
    for seam, functions in json.loads(
        (record.importlib.resources.files("fd_postproc.fastdeploy.gate") / "known_code.json").read_text()
    ).items():
        assert SEAMS[seam].stands_for
        for text in functions.values():
            assert all(one[:10].isalnum() and set(one[10:]) <= {*"+-."} for one in text.split())


# ---- What runs ---------------------------------------------------------------------------------------------

FILE = """
from __future__ import annotations
import asyncio, functools

def again(function):
    @functools.wraps(function)
    def repeated(*arguments):
        return function(*arguments)
    return repeated

class _Base:
    def step(self, task, now=None, *, most=-0.0, kinds=("a", 1)):
        "What it does."
        assert task
        self.__count = [one for one in kinds if one in {1, 2.0, "c"}]
        return 1

class Known(_Base):
    @again
    def step(self, task, now=None, *, most=0.0):
        \"\"\"Ends with
text at the margin.\"\"\"
        def inner(x: int = 1) -> float:
            return x + self.__class__.__name__.count("a") + most
        more = lambda: super(Known, self).step(task)
        try:
            return inner() + more() + super().step(task)
        except ValueError as error:
            raise KeyError from error
        finally:
            self.done = True
        yield  # never reached
    async def wait(self):
        async with asyncio.Lock():
            return [x async for x in self]
"""
NAME = "fd_postproc_test_of_what_runs"


def functions_in(module):
    """The functions of a module, as the gate finds them: those below decorators, too."""
    for holder in (module, module._Base, module.Known):
        for value in vars(holder).values():
            if isinstance(value, types.FunctionType) and value.__module__ == NAME:
                yield from called.layers_of(value)


def loaded(path):
    spec = importlib.util.spec_from_file_location(NAME, path)
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {NAME: module}):
        spec.loader.exec_module(module)
        yield module


@pytest.fixture
def module(tmp_path):
    """A module out of a file with `FILE`."""
    path = tmp_path / f"{NAME}.py"
    path.write_text(FILE)
    yield from loaded(path)


def verdict_of(module):
    """What the gate says where each text is known."""
    found = [(one.__qualname__, one) for one in functions_in(module)]
    known = {}
    for name, one in found:
        known.setdefault(name, {})[whole_of(one)] = ""
        known[name] |= {each.digest: "" for each in statements_of(one)}
    return {one.function for one in judgements.compared(found, known).unknown}


def test_functions_of_every_kind_run_their_text(module):
    """Also once Python has adapted their code, while a tracer runs, and those of the standard library."""
    assert len([*functions_in(module)]) == 5
    assert verdict_of(module) == set()
    for tracer in (None, lambda *_: lambda *_: None):
        before = sys.gettrace()
        sys.settrace(tracer or before)
        try:
            for _ in range(200):  # Python specialises it before that
                [*module.Known().step(1)]
        finally:
            sys.settrace(before)
        assert verdict_of(module) == set()
    library = [one for one in vars(argparse.ArgumentParser).values() if type(one) is types.FunctionType]
    assert [one for one in library if not runs_its_text(one)] == []


def put_back(path, patched):
    """The file is patched, runs, and is put back with its old time."""
    before = path.stat()
    path.write_text(patched)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))
    py_compile.compile(path)
    path.write_text(FILE)
    os.utime(path, ns=(before.st_mtime_ns, before.st_mtime_ns))


def unchecked(path, patched):
    """It runs from a compiled file that Python never compares with its source."""
    path.write_text(patched)
    py_compile.compile(path, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_text(FILE)


PATCHES = {  # of equal size
    "a constant": ("return 1", "return 2"),
    "its type": ("in {1, 2.0,", "in {1, 2j ,"),
    "its sign": ("x: int = 1", "x: int =-1"),
    "a name": ("self.done", "self.gone"),
    "an inner function": ("return x + ", "return x - "),
    "a lambda": ("more = lambda: super(", "more = lambda: tuple("),
    "an error": ("except ValueError", "except OtherError"),
    "a default": ("now=None, *, most=0.0", "now=5555, *, most=0.0"),
    "a keyword's default": ("now=None, *, most=0.0", "now=None, *, most=5.0"),
    "no keyword": ("now=None, *, most=0.0", "now=None,    most=0.0"),
    "a generator": ("yield  # never", "pass   # never"),
    "an async comprehension": ("[x async for x in self]", "[x async for x in sel_]"),
    "a private name": ("self.__count", "self.a_count"),
}


@each("what", PATCHES)
@pytest.mark.parametrize("how", [put_back, unchecked])
def test_a_patch_that_is_not_in_the_file_is_found(how, what, tmp_path):
    patched = FILE.replace(*PATCHES[what])
    assert patched != FILE
    assert len(patched) == len(FILE)
    folder = tmp_path / str(len(os.listdir(tmp_path)))
    folder.mkdir()
    path = folder / f"{NAME}.py"
    path.write_text(FILE)
    how(path, patched)
    for module in loaded(path):
        assert len(verdict_of(module)) == 1
    assert path.read_text() == FILE


def test_code_of_another_patch_release_is_the_same(module):
    """Python goes on with what 3.13.0 has compiled once it is 3.13.1, whose iterators begin elsewhere."""
    step = module._Base.step
    for name in "NOP", "GET_ITER":
        step.__code__ = step.__code__.replace(
            co_code=bytes([dis.opmap[name], 0]) + step.__code__.co_code, co_stacksize=9
        )
        assert verdict_of(module) == set()
    code = bytearray(step.__code__.co_code)
    code[2 * [one.opname for one in dis.get_instructions(step)].index("NOP")] = dis.opmap["POP_TOP"]
    step.__code__ = step.__code__.replace(co_code=bytes(code))
    assert verdict_of(module) == {"_Base.step"}


def test_a_comment_or_another_line_is_no_other_code(tmp_path):
    path = tmp_path / f"{NAME}.py"
    path.write_text(FILE)
    put_back(path, FILE.replace("# never reached", "# or later on  "[:15]))
    for module in loaded(path):
        assert verdict_of(module) == set()


@each(
    "change, name",
    [
        (lambda step: setattr(step, "__code__", (lambda *_: None).__code__), "code"),
        (
            lambda step: setattr(
                step, "__code__", step.__code__.replace(co_flags=step.__code__.co_flags | 0x100)
            ),
            "flags",
        ),
        (lambda step: setattr(step, "__defaults__", (0,)), "a default"),
        (lambda step: setattr(step, "__defaults__", None), "none"),
        (lambda step: setattr(step, "__kwdefaults__", {"most": 0.0, "kinds": ()}), "0.0 is not -0.0"),
        (lambda step: setattr(step, "__kwdefaults__", {"most": -0.0, "kinds": ("a",)}), "less in a tuple"),
        (lambda step: setattr(step, "__kwdefaults__", {}), "no keyword's"),
    ],
)
def test_what_is_set_on_a_function_is_found(change, name, tmp_path):
    path = tmp_path / f"{NAME}.py"
    path.write_text(FILE.replace("most=-0.0", "most=0.125" if "keyword" in name else "most=-0.0"))
    linecache.checkcache(str(path))  # which the last row has filled
    for module in loaded(path):
        assert verdict_of(module) == set()
        change(module._Base.step)
        assert verdict_of(module) == {"_Base.step"}, name


@pytest.mark.framework
@each(
    "name, value",
    [("__code__", (lambda *_: None).__code__), ("__defaults__", (0,)), ("__kwdefaults__", {"a": 0})],
)
def test_what_is_set_on_a_function_after_the_start_is_named(name, value, double, monkeypatch):
    """The function is the same object."""
    cls = double.scheduler__local_scheduler.LocalScheduler
    monkeypatch.setattr(gate, "_judgements", {})
    monkeypatch.setattr(gate, "used", {})
    assert gate.judge("delivery", cls).reason is None
    assert gate.changes(ENGINE) == {}
    monkeypatch.setattr(cls.put_results, name, value)
    (change,) = gate.changes(ENGINE)["delivery"]
    assert "put_results" in change.text


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


class Meta(type):
    """Answers for its classes what wrapt's own does without its C extension."""

    __module__ = __mro__ = property(lambda cls: cls.__wrapped__.__module__)


class Proxy(metaclass=Meta):
    """A class that passes each name on to what it wraps, its own `__module__` too: wrapt's in Python."""

    __slots__ = ("__wrapped__",)
    __module__, __name__, __code__, __dict__ = (
        property(lambda self, name=name: getattr(self.__wrapped__, name))
        for name in ("__module__", "__name__", "__code__", "__dict__")
    )

    def __init__(self, wrapped):
        self.__wrapped__ = wrapped

    def __call__(self, *arguments, **named):
        return self.__wrapped__(*arguments, **named)


class Shy:
    """Raises whatever it is asked for; Python's own `property` and `staticmethod` can take it."""

    def __init__(self, wrapped):
        pass

    def __getattribute__(self, name):
        known = ("__doc__", "__module__", "__name__", "__qualname__", "__dict__")
        raise AttributeError(name) if name in known else RuntimeError(name)

    def __call__(self):
        pass


class Odd:
    """What it says of itself is of other types than anybody expects."""

    __module__, __wrapped__, __code__, _self_wrapper = 5, [], (), "no function"

    def __init__(self, wrapped):
        self.__name__ = self.__qualname__ = None

    def __call__(self):
        pass


def nameless(function):
    """A function that has lost its names."""
    wrapper = types.FunctionType(
        (lambda: function).__code__, {"__name__": []}, None, None, (lambda: function).__closure__
    )
    wrapper.__module__ = wrapper.__wrapped__ = wrapper
    return wrapper


def pythons_wrapt(function):
    wrappers = pytest.importorskip("wrapt.wrappers")
    return wrappers.FunctionWrapper(
        function, lambda wrapped, _, arguments, named: wrapped(*arguments, **named)
    )


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
    "a proxy whose class says another's names": Proxy,
    "wrapt without its C extension": pythons_wrapt,
    "one that raises": Shy,
    "one of odd values": Odd,
    "a function without names": nameless,
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


@each(
    "wrapper, name",
    [(Proxy, "Proxy"), (Shy, "Shy"), (Odd, "Odd"), (pythons_wrapt, "wrapt.wrappers.FunctionWrapper")],
)
def test_a_wrapper_of_an_odd_kind_is_named_by_its_class(wrapper, name):
    told, file, _ = called.place_of(wrapper(traced))
    assert told.endswith(name)
    assert file
    assert called.foreign_layer(wrapper(traced)) is not None


@each("module, is_foreign", [("paddle.utils", False), ("fastdeploy_ops", False), ("paddle_tracer", True)])
def test_whose_function_an_op_is(module, is_foreign):
    op = types.FunctionType(traced.__code__, {"__name__": module})
    assert (called.foreign_layer(op) is op) == is_foreign


@pytest.mark.framework
def test_a_look_that_raises_shows(double, monkeypatch):
    """Nobody knows then what is wrapped: the gauge says so, the log once."""
    monkeypatch.setattr(gate, "changes", Mock(side_effect=[ValueError("a"), ValueError("b"), {}]))
    exported = Mock()
    monkeypatch.setattr(code_watch, "export", exported)
    log = Mock()
    watch = code_watch.CodeWatch(ENGINE, log)
    assert [watch.look_now() for _ in range(3)] == [[], [], []]
    assert log.exception.call_count == 1
    exported.assert_called_once_with("known", "side", ENGINE, False)


@pytest.mark.framework
def test_new_code_in_each_function_closes_its_seam_and_no_other(double, monkeypatch):
    """Statements of one function that the record does not have."""
    known, count = gate.record, 0
    for seam, row in SEAMS.items():
        if any(one.startswith("*.") for one in row.stands_for) or gate.judge(seam).reason:
            continue
        for name in row.functions:
            without = {
                one: {**functions, name: {}} if one == seam else functions for one, functions in known.items()
            }
            with monkeypatch.context() as patch:
                patch.setattr(gate, "record", without)
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
    monkeypatch.setattr(gate, "used", {})
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
    change = judgements.NewCode("TokenProcessor.postprocess", "x.py", 3, "wrapped by traced")
    monkeypatch.setattr(gate, "changes", lambda side: {"token processor": [change], "api chunks": [change]})
    said.clear()
    assert len(watch.look_now()) == 2
    assert said == {("known", "side", ENGINE, False)}  # their gauge is another one


@pytest.mark.framework
def test_a_look_keeps_no_new_objects(monkeypatch):
    """An idle engine takes one every five seconds: CPython's free lists and type cache would keep them."""
    monkeypatch.setattr(gate, "used", {})
    monkeypatch.setattr(gate, "_judgements", {})
    for seam in ("token processor", "dictionaries", "delivery", "sending"):
        imported(SEAMS[seam].module)
        assert gate.judge(seam).reason is None
    watch = code_watch.CodeWatch(ENGINE, Mock())

    def kept(looks):
        before = sys.getallocatedblocks()
        for _ in range(looks):
            watch.look_now()
        return sys.getallocatedblocks() - before

    gc.collect()  # a full collection clears the free lists
    gc.disable()
    try:
        kept(50)
        assert kept(200) < 100
    finally:
        gc.enable()


@pytest.mark.framework
def test_why_a_seam_is_left_is_what_was_judged(double, monkeypatch):
    cls = double.scheduler__local_scheduler.LocalScheduler
    monkeypatch.setattr(gate, "_judgements", {})
    monkeypatch.setattr(cls, "put_results", Called(cls.put_results))
    reason, other = (gate.judge(name, cls).reason for name in ("delivery", "wake-up"))
    assert "put_results" in other
    assert gate.why_left({"delivery": False, "wake-up": True, "metrics": False}) == {"delivery": reason}


@pytest.mark.framework
def test_each_class_of_a_module_has_its_own_judgement(double, monkeypatch):
    monkeypatch.setattr(gate, "used", {})
    base = double.scheduler__local_scheduler.LocalScheduler
    monkeypatch.setattr(gate, "_judgements", {})
    one, other = (type(name, (base,), {"__module__": __name__}) for name in ("One", "Other"))
    assert not any(gate.judge("delivery", cls).reason for cls in (one, other))
    monkeypatch.setattr(one, "put_results", Called(one.put_results), raising=False)
    assert [*gate.changes(ENGINE)] == ["delivery"]


@pytest.mark.framework
def test_data_that_ours_restates_are_compared(double, monkeypatch):
    cls = double.scheduler__local_scheduler.LocalScheduler
    assert gate.judge("delivery", cls).reason is None
    monkeypatch.setattr(gate, "_judgements", {})
    monkeypatch.setattr(cls, "most", 3, raising=False)
    assert "LocalScheduler is other data" in gate.judge("delivery", cls).reason
    assert gate.is_wrapped(ENGINE)


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
        assert data.value_in(module, name) == reading.value_of_source(ast.parse(text), name)

"""Rules of the house, checked on the sources."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.lib.paths import ROOT
from tests.lib.rows import each

PACKAGE, THIS = ROOT / "fd_postproc", Path(__file__)
HEADERS = PACKAGE / "headers"
CUDA = ROOT / "cuda"
NATIVE = sorted(
    path
    for folder in (PACKAGE, CUDA)
    for suffix in ("pyx", "pxi", "pxd", "h", "cu")
    for path in folder.rglob(f"*.{suffix}")
)
PYTHON = sorted(PACKAGE.rglob("*.py"))


@cache
def code(path):
    """Source without comments and docstrings."""
    text = path.read_text()
    text = re.sub(r'""".*?"""', "", text, flags=re.S)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"#(?!define|include|if|else|endif|error).*", "", text)


def test_system_calls_and_errno_live_in_one_file():
    calls = r"\b(msgrcv|msgsnd|msgctl|msgget|errno)\b"
    assert [path.name for path in NATIVE if re.search(calls, code(path))] == ["sysv.h"]


# The headers that know what a message looks like, each with those that it includes.
WIRE = {
    "wire.h": ["<stddef.h>", "<stdint.h>", "<string.h>"],
    "checksum.h": ["crc32c.h", "wire.h"],
    "sections.h": ["<stdint.h>", "<string.h>"],
    "gate.h": ["checksum.h", "sections.h"],
    "block.h": ["wire.h"],
    "gather.h": ["block.h", "gate.h"],
    "write.h": ["block.h", "gate.h"],
    "pack.h": ["write.h", "request.h"],
}


@each("name", WIRE)
def test_the_wire_headers_make_no_system_call_and_know_no_python(name):
    text = code(HEADERS / name)
    assert re.findall(r'#include (?:"fd_postproc/headers/)?([^"\s]+)', text) == WIRE[name]
    assert not re.search(r"\b(malloc|free|Py[A-Z]\w*)\b", text)


def functions_with(pattern, path):
    """Names of the C functions of a header in whose bodies something is found."""
    function = r"^(?:static inline|FDP_FN)[^;{]*?(\w+)\([^;{]*\)\n\{\n(.*?)^\}"
    bodies = re.findall(function, code(path), flags=re.M | re.S)
    assert bodies
    return [name for name, body in bodies if re.search(pattern, body)]


def test_one_gate_reads_and_one_writes():
    """Only these turn an offset into an address."""
    found = [function for name in WIRE for function in functions_with(r"->data \+", HEADERS / name)]
    assert found == ["fdw_reach", "fdw_room"]


def test_the_kernel_needs_no_other_header():
    """NVRTC has no standard headers; the host's compilers have more, but the kernel gets on without."""
    assert "#include" not in code(HEADERS / "request.h")
    text = code(CUDA / "job.h")
    nvrtc, others = re.search(r"#ifdef __CUDACC_RTC__\n(.*?)#else\n(.*?)#endif", text, re.S).groups()
    assert "#include" not in nvrtc
    assert re.findall("#include (.*)", others) == ["<stddef.h>", "<stdint.h>"]
    assert re.findall("#include (.*)", text.replace(others, "")) == ['"fd_postproc/headers/request.h"']
    for name, below in {
        "scan.h": "job.h",
        "emit.h": "scan.h",
        "pack.h": "emit.h",
        "pack.cu": "pack.h",
    }.items():
        assert re.findall("#include (.*)", code(CUDA / name)) == [f'"cuda/{below}"']


def test_the_kernel_writes_in_one_place():
    """That it is never behind the message's end is tested with noise there (tests/cuda/test_kernel.py)."""
    kernel = ("job.h", "scan.h", "emit.h", "pack.h")
    assert [one for name in kernel for one in functions_with(r"payload\[", CUDA / name)] == ["fdk_put"]


@cache
def nodes_of(path):
    """The nodes of a Python file that rules look at: imports and attributes."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute))]


def imports(path):
    """The import statements of a Python file, wherever in it."""
    return [node for node in nodes_of(path) if isinstance(node, (ast.Import, ast.ImportFrom))]


def test_no_framework_is_imported():
    frameworks = {"paddle", "torch", "cupy", "fastdeploy"}
    for path in PYTHON:
        for node in imports(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""] if node.level == 0 else []
            assert not frameworks & {name.split(".")[0] for name in names}, f"{path}: line {node.lineno}"


def test_nothing_is_imported_on_the_way_of_a_message():
    """A thread that imports when the process forks leaves a lock that the child waits for, for ever."""
    for path in [*PACKAGE.glob("core/**/*"), *PACKAGE.glob("ops/*.py"), PACKAGE / "_core.pyx"]:
        if path.suffix in (".py", ".pyx", ".pxi"):
            # but the extension for tensors on a device, which a forked child cannot use anyway
            found = r"^[ \t]+(?:from \S+ )?import (?!_save( as extension)?$).*"
            assert not re.search(found, path.read_text(), flags=re.M), path


def imported(path):
    """Places in the package, as paths' parts, that a Python file of it imports, wherever in it."""
    place = path.relative_to(PACKAGE).with_suffix("").parts
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = [*place[: len(place) - node.level], *filter(None, (node.module or "").split("."))]
            for alias in node.names:
                inner = PACKAGE.joinpath(*above, alias.name)
                is_file = inner.is_dir() or any(inner.with_suffix(end).exists() for end in (".py", ".pyi"))
                yield (*above, alias.name) if is_file else tuple(above)


def test_no_circle_of_files_or_folders():
    """Imports inside functions count, too; of what is no plug-in only the highest folders are looked at."""
    files, folders, floors = TopologicalSorter(), TopologicalSorter(), TopologicalSorter()
    for path in [*PYTHON, *PACKAGE.rglob("*.pyi")]:
        here = path.relative_to(PACKAGE).with_suffix("").parts
        for there in imported(path) if here[-1] != "__init__" else ():
            below, above = (one[0].removeprefix("_core") or "core" for one in (there, here))  # one floor
            if below != above:
                floors.add(above, below)
            elif here[0] == "fastdeploy":
                files.add(here, there)
                if here[:-1] != there[:-1] and there[1:-1]:
                    folders.add(here[:-1], there[:-1])
    for graph in files, folders, floors:
        graph.prepare()


# House rules: words that may not occur; a table in docs/design.md says which files have them, and why.
HOUSE_RULES = {
    1: r"\bsetattr\(|\bsys\.modules\[[^]]*\] = |\bmock\b|\bmonkeypatch\b",
    2: r"\b_getframe\b|\bcurrentframe\b|\bf_(locals|back|globals)\b|\b(ag|cr|gi)_frame\b"
    r"|\bcell_contents\b|def __class__\b|\.__class__ = |\bgc\.get_ref",
    3: r"\b_getters\b|\b_putters\b|(?<!self)\._queue\b|_fut_waiter|_asyncio_future_blocking|\._ready\b"
    r"|\._scheduled\b|Py_BUILD_CORE|pycore_|\b_PyDict_|PyDictKeys|\bma_(keys|values|version)|\bdk_|\bob_(digit|sval|item|shash)\b"
    r"|\bPyDictObject\b|__builtin_prefetch|\bctypes\.pythonapi\b|\bd_member\b|\bPy_SET_SIZE\b"
    r"|\b_upper_bounds\b|\"_target\"|\._target\b",
    # What imitates another class: FastDeploy expects that class, or a plain built-in.
    4: r"def __getattr__\([^)]*\)[^:\n]*:(?! \.\.\.)|def get\(self\) -> "
    r"|^(cdef )?class \w+\((dict|list|str|int|float|bytes|tuple|AsyncGenerator)\b",
}


def exceptions(number):
    """Files that the table of docs/design.md lets break a house rule."""
    rows = re.findall(r"^\| (\d) \| `([^`]+)` \|", (ROOT / "docs" / "design.md").read_text(), flags=re.M)
    return {file for rule, file in rows if int(rule) == number}


FOREIGN = {
    *("cls", "client", "engine", "fd", "host", "manager", "module"),
    *("processor", "scheduler", "server", "service", "spec"),
}
"""Names that objects, classes and modules of FastDeploy's have in the plug-in."""
OURS = {"counters", "parts"}
"""What hangs on an object of FastDeploy's and is ours: it may be set."""
ADVANCED = {
    *("_batch_result_buffer", "max_num_emitted_tokens", "num_accepted_tokens"),
    *("num_draft_tokens", "num_emitted_tokens", "number_of_output_tokens", "total_step"),
    *("timestamp_for_alive_after_handle_batch", "timestamp_for_alive_before_handle_batch"),
}
"""A token processor's own state, which the one of ours advances in FastDeploy's place."""


def is_foreign(node, names=frozenset()):
    """Whether an expression reaches an object of FastDeploy's, as the last that is known of its way."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        name = node.attr if isinstance(node, ast.Attribute) else ""
        if name in OURS:
            return False
        if name.strip("_") in FOREIGN:
            return True
        called_with = node.args[:1] if isinstance(node, ast.Call) and ast.unparse(node.func) == "vars" else ()
        node = called_with[0] if called_with else node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and (node.id.strip("_") in FOREIGN or node.id in names)


def set_on_foreign_objects(text):
    """Attributes that a source sets or deletes on what may be FastDeploy's, as texts."""
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
            continue
        nodes = [node for part in function.body for node in ast.walk(part)]
        names = {
            target.id
            for node in nodes
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Attribute)
            and is_foreign(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in nodes:
            target = node
            if isinstance(node, ast.Call):
                target, _, name = ast.unparse(node.func).rpartition(".")
                is_dictionary = target.startswith("vars(") or target.endswith("__dict__")
                if name in ("__setattr__", "__delattr__"):
                    is_set = is_foreign(node.args[0] if node.args[1:] else node.func.value, names)
                else:
                    is_set = name in ("update", "pop", "clear", "setdefault") and is_dictionary
                    is_set = is_set and is_foreign(node.func.value, names)
            elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                is_set = node.attr not in ADVANCED and is_foreign(node.value, names)
            elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                is_set = re.match(r"vars\(|.*__dict__$", ast.unparse(node.value)) is not None
                is_set = is_set and is_foreign(node.value, names)
            else:
                continue
            if is_set:
                yield ast.unparse(node)


@each(
    "line",
    [
        "self.host.parts_of_it.put_results = None",
        "self.host.fd.TokenProcessor.postprocess = None",
        "self._server.send_response = ours",
        "del host.scheduler.get_results",
        "a, self.host.healthy = 1, 2",
        "engine.scheduler.requests.total += 1",
        "self.fd.envs.FD_DEBUG = True",
        "host.fd.__dict__['postprocess'] = ours",
        "vars(self.manager)['read'] = ours",
        "vars(self.host.fd).update(postprocess=ours)",
        "object.__setattr__(self.host, 'healthy', ours)",
        "type.__setattr__(host.fd.TokenProcessor, 'healthy', ours)",
        "owner = self.host.fd.TokenProcessor\nowner.healthy = ours",
        "for self.host.healthy in (): pass",
        "with ours as self.host.healthy: pass",
    ],
)
def test_what_is_set_on_objects_of_fastdeploys_is_seen(line):
    assert [*set_on_foreign_objects(line)]
    inner = line.replace("\n", "\n        ")
    assert [*set_on_foreign_objects(f"class Part:\n    def run(self, host):\n        {inner}")]


@each(
    "line",
    [
        "self.host = host",
        "self._engine, self.fd = engine, host.fd",
        "host.total_step += 1",
        "host.parts.queue.keys = True",
        "host.prefill_result_status[name] = status",
        "read = vars(module)['msgpack']",
        "own = host.healthy()\nown.text = ''",
    ],
)
def test_what_is_no_replacement_is_none(line):
    assert not [*set_on_foreign_objects(line)]


@each("number", HOUSE_RULES)
def test_house_rule(number):
    allowed = exceptions(number)
    unused = set(allowed)
    for path in [*PYTHON, *NATIVE]:
        if number in (1, 4) and not path.is_relative_to(PACKAGE / "fastdeploy"):
            continue
        name = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name
        word = re.search(HOUSE_RULES[number], code(path), flags=re.M)
        found = [word.group()] if word else []
        if number == 1 and path.suffix == ".py":
            found += set_on_foreign_objects(path.read_text())
        if found:
            assert name in allowed, f"{name} has {found[0]!r}, and docs/design.md does not say why"
            unused.discard(name)
    assert not unused, f"exceptions that nothing needs: {unused}"


# The folders beside the package, and which of each other they may import.
ROOMS = {
    "fd_postproc": (),
    "harness": (),
    # What is measured against must be the step that the recorded runs hold to: restated once, under tests/.
    # Other engines are given the model folder of the real service, and measured beside it.
    "benchmarks": ("tests.restated", "harness.service", "tools.accept"),
    "tools": ("benchmarks", "tests"),
    "tests": ("harness", "tools"),
    # A benchmark may change or go without a test of anything else: only its own tests know it.
    "tests/benchmarks": ("benchmarks", "tests"),
}


def room_of(path):
    """The room that a file is in: of two that fit, the inner one."""
    name = str(path.relative_to(ROOT))
    return max((room for room in ROOMS if name.startswith(f"{room}/")), key=len, default=None)


def foreign_imports(text, room):
    """Modules of other rooms that a source imports, be it by a name in a string, without leave."""
    imported = rf"(?:from|import) ((?:{'|'.join(ROOMS)})\b[\w.]*)"
    in_a_string = r"""["']((?:benchmarks|harness|tools)\.\w[\w.]*)["']"""
    for one, quoted in re.findall(f"{imported}|{in_a_string}", text):
        name = one or quoted
        known = (room.partition("/")[0], "fd_postproc", *ROOMS[room])
        if not any(name == other or name.startswith(f"{other}.") for other in known):
            yield name


@each("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    paths = [path for path in (ROOT / room).rglob("*.py") if room_of(path) == room and path != THIS]
    assert paths
    found = {str(path): list(foreign_imports(path.read_text(), room)) for path in paths}
    assert not {path: names for path, names in found.items() if names}

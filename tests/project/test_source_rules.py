"""Rules of the house, checked on the sources."""

import ast
import re
from fnmatch import fnmatchcase
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


# Each file or folder of the package, the lowest first.
FLOORS = [
    *("_version", "_checkout", "subprocess_json", "checks", "codes", "patience", "environment", "errors"),
    *("layout", "process_stat", "queues", "core", "_core", "_save", "cuda", "needed_limits", "log_throttle"),
    *("flight", "explain", "recording", "data", "ops", "fastdeploy", "doctor", "cli", "__main__"),
]


@cache
def imports(path):
    """The import statements of a Python file, wherever in it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


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
    for path in [*PACKAGE.glob("core/*"), *PACKAGE.glob("ops/*.py"), PACKAGE / "_core.pyx"]:
        if path.suffix in (".py", ".pyx", ".pxi"):
            found = re.findall(r"^[ \t]+(?:from \S+ )?import .*", path.read_text(), flags=re.M)
            # the extension for tensors on a device, which a forked child cannot use anyway
            assert [line for line in found if "_save as extension" not in line] == [], path


def test_each_floor_imports_only_floors_below():
    for path in PYTHON:
        place = path.relative_to(PACKAGE).with_suffix("").parts
        if place == ("__init__",):
            continue
        allowed = set(FLOORS[: FLOORS.index(place[0]) + 1])
        for node in imports(path):
            if isinstance(node, ast.ImportFrom) and node.level:
                target = [*place[: len(place) - node.level], *(node.module or "").split(".")]
                below = {target[0]} if target[0] else {alias.name for alias in node.names}
                assert below <= allowed, f"{path}: line {node.lineno}: {below - allowed} is no floor below"


def plug_in_files():
    """Files of the plug-in by name; of an extension it is its stub."""
    top = PACKAGE / "fastdeploy"
    found = [*top.rglob("*.py"), *top.rglob("*.pyi")]
    return {
        path.relative_to(top).with_suffix("").as_posix(): path for path in found if path.stem != "__init__"
    }


def test_no_circle_of_files_or_folders_in_the_plug_in():
    """Imports inside functions count, too."""
    files = plug_in_files()
    by_file, by_folder = TopologicalSorter(), TopologicalSorter()
    for name, path in files.items():
        place, folder = ("fastdeploy", *name.split("/")), name.rpartition("/")[0]
        for node in imports(path):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            target = [*place[: len(place) - node.level], *filter(None, (node.module or "").split("."))]
            for alias in node.names if target[:1] == ["fastdeploy"] else ():
                other = "/".join([*target, alias.name][1:])
                other = other if other in files else "/".join(target[1:])
                if other in files:
                    by_file.add(name, other)
                    if other.rpartition("/")[0] not in ("", folder):
                        by_folder.add(folder, other.rpartition("/")[0])
    by_file.prepare()
    by_folder.prepare()


# House rules 1 to 3 (docs/design.md): words that may not occur, and files that may have them, with reasons.
HOUSE_RULES = {
    "replaces nothing but what seams.py lists": (
        r"\bsetattr\(|\bsys\.modules\[[^]]*\] = |\bmock\b|\bmonkeypatch\b",
        {
            "fastdeploy/replacements.py": "the one replacement",
            "fastdeploy/engine/activation.py": "a class of ours becomes FastDeploy's again",
            "fastdeploy/engine/processor/finish.py": "an object of ours passes on what is set",
            "fastdeploy/engine/results/result_classes.py": "classes of ours, and results made to ask them",
            "fastdeploy/engine/results/_dicts.pxi": "a holder whose dictionary shares its keys",
            "fastdeploy/engine/results/_messages.pxi": "a result made to ask FastDeploy's to_dict",
            "fastdeploy/statements.py": "nodes of a syntax tree",
            "fastdeploy/api/watchdog.py": "an attribute of our own name: the client's watchdog",
            "fastdeploy/api/chunks/whole_answers.py": "classes of ours",
            "fastdeploy/api/chunks/_models.pxi": "a stand-in passes on what is set",
            "fastdeploy/api/chunks/_stand_in.pxi": "a stand-in passes on what is set",
        },
    ),
    "reads no frame and no cell, and nothing depends on who asks": (
        r"\b_getframe\b|\bcurrentframe\b|\bf_(locals|back|globals)\b|\b(ag|cr|gi)_frame\b"
        r"|\bcell_contents\b|def __class__\b|\.__class__ = |\bgc\.get_ref",
        {
            "fastdeploy/engine/activation.py": "an object of ours becomes one of FastDeploy's, for good",
        },
    ),
    "relies on no private layout or attribute": (
        r"\b_getters\b|\b_putters\b|(?<!self)\._queue\b|_fut_waiter|_asyncio_future_blocking|\._ready\b|\._scheduled\b"
        r"|Py_BUILD_CORE|pycore_|\b_PyDict_|PyDictKeys|\bma_(keys|values|version)|\bdk_|\bob_(digit|sval|item)\b"
        r"|\bPyDictObject\b|__builtin_prefetch|\bctypes\.pythonapi\b",
        {},
    ),
}


@each("rule", HOUSE_RULES)
def test_house_rule(rule):
    words, excepted = HOUSE_RULES[rule]
    unused = set(excepted)
    for path in [*PYTHON, *NATIVE]:
        if rule.startswith("replaces") and not path.is_relative_to(PACKAGE / "fastdeploy"):
            continue
        name = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name
        word = re.search(words, code(path))
        if word:
            allowed = {one for one in excepted if fnmatchcase(name, one)}
            assert allowed, f"{name} has {word.group()!r}: the plug-in {rule}"
            unused -= allowed
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

"""Rules of the house, checked on the sources."""

import ast
import re
from functools import cache
from itertools import pairwise

import pytest

from tests.lib.paths import ROOT

PACKAGE = ROOT / "fd_postproc"
HEADERS = PACKAGE / "headers"
CUDA = ROOT / "cuda"
NATIVE = sorted(
    path
    for folder in (PACKAGE, CUDA)
    for suffix in ("pyx", "pxi", "pxd", "h", "cu")
    for path in folder.rglob(f"*.{suffix}")
)
PYTHON = sorted(PACKAGE.rglob("*.py"))


def code(path):
    """Source without comments and docstrings."""
    text = path.read_text()
    text = re.sub(r'""".*?"""', "", text, flags=re.S)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return re.sub(r"#(?!define|include|if|else|endif|error).*", "", text)


def test_there_is_something_to_check():
    assert {path.name for path in NATIVE} >= {"wire.h", "sysv.h", "_core.pyx", "step.pxi", "pack.h"}


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.name)
def test_system_calls_and_errno_live_in_one_file(path):
    if path.name == "sysv.h":
        return
    assert not re.search(r"\b(msgrcv|msgsnd|msgctl|msgget|errno)\b", code(path))


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


@pytest.mark.parametrize("name", WIRE)
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
    """That it is never behind the message's end is tested on the PTX, store by store (test_ptx_run.py)."""
    kernel = ("job.h", "scan.h", "emit.h", "pack.h")
    assert [one for name in kernel for one in functions_with(r"payload\[", CUDA / name)] == ["fdk_put"]


# Each file or folder of the package, the lowest first.
FLOORS = [
    *(
        "_version",
        "_checkout",
        "_child",
        "checks",
        "environment",
        "errors",
        "layout",
        "process_stat",
        "queues",
        "transport",
    ),
    *(
        "tensors",
        "arrays",
        "aio",
        "_core",
        "_save",
        "cuda",
        "needs",
        "complaints",
        "flight",
        "explain",
        "recording",
        "data",
    ),
    *("ops", "fastdeploy", "doctor", "cli", "__main__"),
]

# The files of the plug-in, the lowest first, as docs/design.md draws them.  An extension is its .pyi here.
PLUG_IN = [
    *("introspection", "ways", "logs", "build", "stream_frames"),
    *("trial/canned", "trial/differences", "trial/private_metrics", "trial/sandbox", "trial/scratch"),
    *("trial/filling", "trial/trial", "trial/facts", "trial/compatibility"),
    *("engine/context", "engine/_results", "engine/counters", "engine/decode_log", "engine/apart"),
    *("engine/deliveries", "engine/wake_up", "engine/messages", "engine/send_loop"),
    *("engine/shapes", "engine/stale", "engine/warmup", "engine/liveness"),
    *("engine/contract", "engine/reporter", "engine/pickles", "engine/framed", "engine/watch"),
    # The parts of the class: each inherits from others before it.
    *("engine/best_effort", "engine/tracing", "engine/release", "engine/pairing", "engine/transfers"),
    *("engine/finish", "engine/steady", "engine/advance", "engine/gauges", "engine/steps"),
    *("engine/streamed", "engine/receiving", "engine/sockets", "engine/health"),
    *("engine/quick_ways", "engine/lifecycle"),
    *("engine/activation", "engine/processor", "engine/entry"),
    *("worker/overlap", "worker/room", "worker/warmup", "worker/pieces", "worker/streams"),
    "worker/drafts",
    "worker/masks",
    "worker/sending",
    "worker/entry",
    *("api/_chunks", "api/loading", "api/texts", "api/waits", "api/plans", "api/building_blocks"),
    *("api/canned", "api/trial", "api/counters", "api/activation", "api/connections", "api/unpacking"),
    *("api/queues", "api/weights", "api/detokenising", "api/responses", "api/parts", "api/entry"),
    "report",
]


@cache
def imports(path):
    """The import statements of a Python file, wherever in it."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_framework_is_imported(path):
    for node in imports(path):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.level == 0 else []
        assert not {name.split(".")[0] for name in names} & {"paddle", "torch", "cupy", "fastdeploy"}


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_floor_imports_only_floors_below(path):
    place = path.relative_to(PACKAGE).with_suffix("").parts
    if place == ("__init__",):
        return
    allowed = FLOORS[: FLOORS.index(place[0]) + 1]
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = [*place[: len(place) - node.level], *(node.module or "").split(".")]
            below = {target[0]} if target[0] else {alias.name for alias in node.names}
            assert below <= set(allowed), f"line {node.lineno}: {below - set(allowed)} is no floor below"


def test_design_md_draws_the_plug_in():
    page = (ROOT / "docs" / "design.md").read_text()
    section = page[page.index("\n## The plug-in\n") : page.index("\n## The bounds gate\n")]
    drawn = set(re.findall(r"\w+", section[: section.index("| file |")]))
    told = set(re.findall(r"(\w+)\.pyx?`", section))
    for name in PLUG_IN:
        file = name.rpartition("/")[2]
        assert file in drawn, f"{name} is not in the picture"
        assert file in told, f"{name} is not in the table"


@cache
def plug_in_files():
    """Files of the plug-in by name; those of Python, and stubs of extensions."""
    top = PACKAGE / "fastdeploy"
    found = [*top.rglob("*.py"), *top.rglob("*.pyi")]
    return {
        path.relative_to(top).with_suffix("").as_posix(): path for path in found if path.stem != "__init__"
    }


def imported_files(name, path):
    """Names of the plug-in's files that one of them imports, wherever in it."""
    place = ("fastdeploy", *name.split("/"))
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = [*place[: len(place) - node.level], *(node.module or "").split(".")]
            target = [part for part in target if part]
            for alias in node.names:
                file = "/".join([*target, alias.name][1:])
                if target[:1] == ["fastdeploy"]:
                    yield node.lineno, file if file in PLUG_IN else "/".join(target[1:])


def test_the_drawn_order_of_the_plug_in_has_every_file():
    assert sorted(PLUG_IN) == sorted(plug_in_files())


@pytest.mark.parametrize("name", PLUG_IN)
def test_no_file_of_the_plug_in_imports_one_above_it(name):
    """So there is no circle of files, and none of folders: a folder's files are next to each other."""
    below = PLUG_IN[: PLUG_IN.index(name)]
    for line, file in imported_files(name, plug_in_files()[name]):
        assert file in below, f"line {line}: {file} is not below {name}"


def test_the_files_of_a_folder_are_next_to_each_other():
    folders = [name.rpartition("/")[0] for name in PLUG_IN[: PLUG_IN.index("report")]]
    changes = [one for one, other in pairwise(["/", *folders]) if one != other]
    assert len(changes) == len(set(changes)) == len(set(folders))


def test_the_parts_of_the_class_say_what_they_expect_of_it():
    """Their bases do; nobody hides that behind an annotation."""
    for name, path in plug_in_files().items():
        assert "self: Any" not in path.read_text() or name == "engine/shapes", name

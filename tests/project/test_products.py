"""Products of two sizes in C and Cython: by `fdo_times`, or here with the reason why none can overflow."""

import re

import pytest

from tests.lib.paths import ROOT

SIZES = {
    *(
        "rows",
        "cols",
        "columns",
        "batch",
        "slots",
        "depth",
        "width",
        "size",
        "sizes",
        "extent",
        "stride",
        "shape",
    ),
    *(
        "n",
        "each",
        "count",
        "cells",
        "words",
        "blocks",
        "threads",
        "item",
        "max_batch",
        "most_rows",
        "wire_cols",
    ),
    *("size_per_request", "size_per_row", "planned_rows", "fdw_depth", "fdk_most_rows", "fdp_min"),
}
"""Names of sizes: of variables, fields, and functions that return one."""
_NAME = r"(?:[A-Za-z_]\w*(?:->|\.))*(?P<{0}>[A-Za-z_]\w*)(?:\[[^\]]*\]|\((?:[^()]|\([^()]*\))*\))?"
PRODUCT = re.compile(
    _NAME.format("left")
    + r" \*=? (?=(?P<next>(?:\([\w ]+\)|<[\w ]+>)?(?:"
    + _NAME.format("right")
    + r"|\()))"
)

LAYOUT = (
    "numbers of a Layout, whose cells are bounded, or of a message that the gate has held to one; through "
    "FastDeploy's socket 65,536 requests of 255 rows and 2**31 columns, below 2**55"
)
STEP = "rows and columns of a Step, whose arrays lie in memory"
TENSOR = "the shape of an array that lies in memory, and was counted by fdl_elements or NumPy"
NUMBERS = "an answer's numbers, which lie in memory, and were counted when they were unpacked"
JOB = "batch and depth are within the job's Layout, whose cells are bounded; the width is cut to the depth"
PYTHON = "Python's own numbers, which have no end; Cython checks them where they become C's"

EXCEPTIONS = {
    "fd_postproc/headers/block.h": {"rows * cols": LAYOUT},
    "fd_postproc/headers/gate.h": {"layout->max_batch * fdw_depth(layout, channel)": LAYOUT},
    "fd_postproc/headers/gather.h": {"at->slots * at->depth": LAYOUT, "at->depth * at->width": LAYOUT},
    "fd_postproc/headers/pack.h": {"cols * (": TENSOR, "cols * n": TENSOR},
    "fd_postproc/headers/wire.h": {
        "slots * width": LAYOUT,
        "depth * (": LAYOUT,
        "depth * width": LAYOUT,
        "rows * cols": LAYOUT,
        "layout->max_batch * fdw_depth(layout, channel)": LAYOUT,
    },
    "fd_postproc/core/logprobs.pxi": {"self.rows * self.cols": STEP},
    "fd_postproc/core/part.pxi": {"self.shape[0] * (": STEP},
    "fd_postproc/core/step.pxi": {"a.rows * a.cols": STEP, "self.raw.rows * self.raw.cols": STEP},
    "fd_postproc/fastdeploy/engine/results/_lazy.pxi": {
        "rows * cols": "_adds_up has compared them with the bytes"
    },
    "fd_postproc/fastdeploy/engine/results/_lazy_outputs.pxi": {"rows * cols": STEP},
    "fd_postproc/fastdeploy/api/chunks/_compact.pxi": {"self.count *= size": NUMBERS},
    "fd_postproc/fastdeploy/api/chunks/_prompt_logprobs.pxi": {"self.count * self.width": NUMBERS},
    "cuda/_job.pxi": {"extent *= size": PYTHON, "value.size * item": PYTHON},
    "cuda/decide.h": {"job->batch * job->terms.depth": JOB},
    "cuda/emit.h": {"m->rows * job->wire_cols": JOB},
    "cuda/pack.h": {
        "blocks * threads": "of a launch: FDK_MOST_BLOCKS and FDK_THREADS bound them",
        "job->size_per_request * batch": JOB,
        "job->size_per_row * whole->rows": JOB,
    },
    "cuda/prepare.h": {
        "fdp_min(job->terms.width, job->terms.depth) * job->batch": JOB,
        "rows * (": JOB,
    },
    "cuda/ring_memory.h": {"pool->each * (size_t)r->n": "each is the padded longest message of a Layout"},
}
"""By file, the products that cannot overflow, as they are written, and why."""


def sources():
    """C and Cython that is written by hand."""
    patterns = (
        "fd_postproc/**/*.h",
        "fd_postproc/**/*.p[xy][xdi]",
        "cuda/*.h",
        "cuda/*.cu",
        "cuda/*.p[xy][xi]",
    )
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def code_of(path):
    """A file without its comments and docstrings."""
    text = path.read_text()
    if path.suffix in (".h", ".cu"):
        return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r'""".*?"""|#[^\n]*', " ", text, flags=re.S)


def products(text):
    """Products of two sizes, as they are written."""
    for found in PRODUCT.finditer(text):
        if found["left"] in SIZES and (found["right"] is None or found["right"] in SIZES):
            yield found[0] + found["next"]


def test_every_product_of_two_sizes_is_checked_or_explained():
    found = {str(path.relative_to(ROOT)): set(products(code_of(path))) for path in sources()}
    assert {name: each for name, each in found.items() if each} == {
        name: set(each) for name, each in EXCEPTIONS.items()
    }


@pytest.mark.parametrize(
    "line",
    [
        "cells = rows * cols;",
        "n = (int64_t)h->rows * (int64_t)h->cols;",
        "for k in range(t.ndim): size *= t.shape[k]",
        "cdef int64_t cells = <int64_t>head.rows * head.cols",
        "malloc(batch * job->depth * 4)",
    ],
)
def test_the_rule_finds(line):
    assert list(products(line))


@pytest.mark.parametrize(
    "line", ["const int32_t *rows, *cols;", "at = base + 4 * cols;", "p = ids + i * pitch"]
)
def test_the_rule_passes(line):
    assert not list(products(line))

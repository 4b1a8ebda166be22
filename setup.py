"""Build the Cython extensions; everything else about the package is in setup.cfg.

Environment
-----------
FD_POSTPROC_TRACE=1
    Build with line tracing, for coverage of the Cython sources.  Slow: never time such a build.
CFLAGS, LDFLAGS
    As usual; a sanitizer build needs nothing more (docs/development.md).
"""

import os
from glob import glob

from setuptools import Extension, setup

trace = os.environ.get("FD_POSTPROC_TRACE") == "1"
# Debug information is most of a small extension's size: keep it only where somebody asked for it.
keep_debug = trace or "-g" in os.environ.get("CFLAGS", "").split()


def extension(name, source, depends=()):
    ext = Extension(
        name,
        sources=[source],
        depends=list(depends),
        include_dirs=["fd_postproc"],
        extra_compile_args=["-O3", *([] if keep_debug else ["-g0"])],
        # sys.monitoring (Cython's default tracer on 3.13+) does not reach coverage's Cython plug-in.
        define_macros=[("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")] if trace else [],
    )
    ext.cython_directives = {"linetrace": trace, "profile": trace}
    return ext


HEADERS = sorted(
    path for ending in ("h", "pxd", "pxi") for path in glob(f"fd_postproc/**/*.{ending}", recursive=True)
)

setup(
    # Generated C stays out of the checkout, but coverage's Cython plug-in needs it beside the .pyx.
    options={"build_ext": {"cython_c_in_temp": not trace}},
    ext_modules=[
        extension("fd_postproc._core", "fd_postproc/_core.pyx", HEADERS),
        extension("fd_postproc.fastdeploy._results", "fd_postproc/fastdeploy/_results.pyx", HEADERS),
        extension("fd_postproc.bench._floor", "fd_postproc/bench/_floor.pyx", HEADERS),
        extension("fd_postproc.bench._objects", "fd_postproc/bench/_objects.pyx", HEADERS),
    ],
)

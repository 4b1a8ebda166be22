"""Build the Cython extensions; everything else about the package is in setup.cfg.

Environment
-----------
FD_POSTPROC_TRACE=1
    Build with line tracing, for coverage of the Cython sources.  Slow: never time such a build.
CFLAGS, LDFLAGS
    As usual; a sanitizer build needs nothing more (docs/development.md).
"""

import configparser
import os
import re
import runpy
import sys
import traceback
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

trace = runpy.run_path("fd_postproc/support/environment.py")["TRACE"].value
# Debug information is most of a small extension's size, and symbols a twentieth: only where asked for.
flags = os.environ.get("CFLAGS", "")
keep_debug = trace or re.search(r"(^| )-g", flags) is not None
optimised = [] if re.search(r"(^| )-O", flags) else ["-O3"]  # of two, the later counts


def extension(name, source, depends=(), libraries=()):
    ext = Extension(
        name,
        sources=[source],
        depends=list(depends),
        include_dirs=["."],
        libraries=list(libraries),
        extra_compile_args=[*optimised, *([] if keep_debug else ["-g0"])],
        extra_link_args=[] if keep_debug else ["-Wl,--strip-all"],
        # sys.monitoring (Cython's default tracer on 3.13+) does not reach coverage's Cython plug-in.
        define_macros=[("CYTHON_TRACE_NOGIL", "1"), ("CYTHON_USE_SYS_MONITORING", "0")] if trace else [],
    )
    ext.cython_include_dirs = ["."]  # cuda/ is no package; its source finds the package's .pxd files here
    ext.cython_directives = {"linetrace": trace, "profile": trace}
    return ext


def description():
    """README for a package index, which has neither its pictures nor the pages that it links to.

    Links lead to the tag's pages where setup.cfg has the repository's URL; without it they go.
    """
    text = Path("README.md").read_text(encoding="utf-8")
    config = configparser.ConfigParser()
    config.read("setup.cfg", encoding="utf-8")
    if url := config["metadata"]["url"]:
        tag = "v" + runpy.run_path("fd_postproc/_version.py")["__version__"]
        text = re.sub(r"(!\[.*?\]\()(?!https?:)", rf"\1{url}/raw/{tag}/", text.replace("](#", "](README.md#"))
        return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:)", rf"\1{url}/blob/{tag}/", text)
    text = re.sub(r"^!\[.*?\]\((?!https?:).*?\)\n+", "", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


class BuildExt(build_ext):
    """Embeds the kernel, and builds each extension in a process of its own.

    fdk_images.h holds the kernel as cuda/compile_ptx.py finds it in the tree.
    """

    def run(self):
        text = runpy.run_path("cuda/compile_ptx.py")["c_header"]()
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fdk_images.h").write_text(text)
        for ext in self.extensions:
            ext.include_dirs.append(str(folder))
        super().run()

    def build_extensions(self):
        """Half the time on two cores.  Threads (``build_ext --parallel``) would share Cython's state."""
        self.check_extensions_list(self.extensions)
        sys.stdout.flush()
        children = []
        for ext in self.extensions:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    self.build_extension(ext)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(status)
            children.append((pid, ext.name))
        failed = [name for pid, name in children if os.waitpid(pid, 0)[1]]
        if failed:
            raise CompileError(f"not built: {', '.join(failed)}; what went wrong is printed above")


def sources(*folders):
    """What the extensions of these folders include: their headers, declarations and parts."""
    endings = ("h", "pxd", "pxi")
    return sorted(path for one in folders for ending in endings for path in glob(f"{one}/*.{ending}"))


ENGINE = "fd_postproc/fastdeploy/engine"
KERNEL = ["cuda/pack.ptx", "cuda/pack.cubins.zip"]
BELOW = sources("fd_postproc", "fd_postproc/headers")  # what every extension includes
CORE = sources(*(f"fd_postproc/core{part}" for part in ("", "/step", "/queue")))

setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    cmdclass={"build_ext": BuildExt},
    # Generated C stays out of the checkout, but coverage's Cython plug-in needs it beside the .pyx.
    options={"build_ext": {"cython_c_in_temp": not trace}},
    ext_modules=[
        extension("fd_postproc._core", "fd_postproc/_core.pyx", BELOW + CORE),
        # dlopen and threads are in libraries of their own where glibc is older than 2.34.
        extension(
            "fd_postproc.core._save", "cuda/_save.pyx", BELOW + sources("cuda") + KERNEL, ["dl", "pthread"]
        ),
        extension(
            "fd_postproc.fastdeploy.engine.results._results",
            "fd_postproc/fastdeploy/engine/results/_results.pyx",
            BELOW + sources(f"{ENGINE}/results", f"{ENGINE}/delivery"),
        ),
        extension(
            "fd_postproc.fastdeploy.api.chunks._chunks",
            "fd_postproc/fastdeploy/api/chunks/_chunks.pyx",
            BELOW + sources("fd_postproc/fastdeploy/api/chunks"),
        ),
    ],
)

#!/usr/bin/env bash
# Build from the sources, check and time the CUDA kernel on a machine with a GPU, without network, on any Python
# from 3.10 on.
#
#     .ci/gpu-run/run.sh prepare [VERSION]   where there is a network: the wheels for a Python (3.12) into .whl
#     .ci/gpu-run/run.sh dry                 anywhere: the same program on the stub driver, with few steps
#     bash .ci/gpu-run/run.sh                on the machine with a GPU, with .whl carried along
#
# PYTHON names the interpreter, whose PyTorch and CuPy are used, OUT the folder of the results (.gpu-run).  It ends
# after GPU_RUN_S seconds (460) at the latest.  gpu.json and RESULTS.md there belong into benchmarks/.
set -uo pipefail
cd "$(dirname "$0")/../.."
export GPU_RUN_BEGAN=$(date +%s) GPU_RUN_S=${GPU_RUN_S:-460} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export CC=${CC:-gcc} # a Python made elsewhere may name a compiler that is not there
export FD_POSTPROC_CUDA=1 OUT
python=${PYTHON:-python3}
here=.ci/gpu-run
OUT=$(realpath -m "${OUT:-.gpu-run}")
needed=(sysv_ipc 'Cython>=3.1.6,<4' setuptools==80.9.0 'pytest>=9,<10' pytest-xdist hypothesis)
below=(pluggy iniconfig packaging pygments execnet sortedcontainers markdown-it-py mdurl tomli exceptiongroup
    typing_extensions)
say() { echo "[$(($(date +%s) - GPU_RUN_BEGAN)) s] $*"; }

prepare() { # for CPython on x86-64; a compiler is over there
    local system platforms=()
    for system in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux_2_5 manylinux1; do
        platforms+=(--platform "${system}_x86_64")
    done
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "${1:-3.12}" --implementation cp \
        "${platforms[@]}" -d .whl "${needed[@]}" "${below[@]}" 'numpy<2.5' rich && ls .whl
}

packages() { # what this Python lacks, from .whl, into a folder of its own
    local name lacks=("${needed[@]}")
    for name in numpy rich; do
        "$python" -c "import $name" 2> /dev/null || lacks+=("$name")
    done
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    export PYTHONPATH=$site:$PWD
    "$python" -m pip install -q --root-user-action=ignore --no-index --find-links .whl --no-compile --no-cache-dir --target "$site" "${lacks[@]}" ||
        { say "no wheels for this Python in .whl: $here/run.sh prepare VERSION, where there is a network"; exit 2; }
}

limits() { # run a command where a queue may hold FastDeploy's messages
    local raise='echo 1048576 > /proc/sys/kernel/msgmax && echo 67108864 > /proc/sys/kernel/msgmnb && exec "$@"'
    if unshare --ipc -- sh -c 'test -w /proc/sys/kernel/msgmax' 2> /dev/null; then
        unshare --ipc -- sh -c "$raise" sh "$@"
    elif [ -n "${GPU_RUN_BARE:-}" ]; then # the machine is this run's alone, and bare again afterwards
        say "no IPC namespace can be made: the machine's own limits are raised"
        sh -c "$raise" sh "$@"
    else
        say "no IPC namespace can be made: limits stay as they are (GPU_RUN_BARE=1 raises the machine's)"
        "$@"
    fi
}

facts() { # nothing is changed
    date -u
    uname -a
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,compute_mode --format=csv
    lscpu | grep -E 'Model name|^CPU\(s\)|MHz'
    gcc --version | head -1
    "$python" -c 'import sys, sysconfig; print(sys.version); print(sys.executable, sysconfig.get_paths()["include"])'
    for name in msgmax msgmnb msgmni; do echo "kernel.$name $(cat /proc/sys/kernel/$name)"; done
    command -v nvcc ncu compute-sanitizer cuobjdump
    "$python" -m pip list 2> /dev/null | grep -iE '^(torch|cupy|numpy|triton) '
}

build() { # within so many seconds
    local header imports='import fd_postproc._core, fd_postproc.core._save; from benchmarks import built'
    header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"] + "/Python.h")')
    [ -e "$header" ] || { say "there is no $header: nothing can be built"; return 1; }
    say building
    timeout "$1" "$python" setup.py -q build_ext --inplace > "$OUT/build.log" 2>&1 &
    local main=$!
    timeout "$1" "$python" -m benchmarks.extensions > "$OUT/build-benchmarks.log" 2>&1
    wait "$main" && "$python" -c "$imports" || { say "not built"; tail -n 40 "$OUT"/build.log "$OUT"/build-benchmarks.log; return 1; }
    say built
}

case ${1:-run} in
    prepare) prepare "${2:-}" ;;
    dry)
        mkdir -p "$OUT"
        packages
        export CFLAGS=${CFLAGS:--O0 -w} # nothing is measured
        build 600 || exit 1
        stub=$("$python" -c 'import sys; from tests.lib import stub_cuda; print(stub_cuda.build(sys.argv[1]))' "$OUT") || exit 1
        export GPU_RUN_STUB=$stub FD_POSTPROC_TEST_DRIVER=$stub
        LD_PRELOAD=$stub limits "$python" $here/stages.py
        ;;
    run)
        mkdir -p "$OUT"
        facts > "$OUT/facts.txt" 2>&1
        cat "$OUT/facts.txt"
        packages
        build 250 || exit 1
        limits "$python" $here/stages.py 2>&1 | tee "$OUT/log.txt"
        ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac

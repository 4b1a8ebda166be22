# What the checks share; sourced, not run.  Each runs in the root of a checkout.  PYTHON names another
# interpreter than python3 for those that make an environment of their own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1

# Special builds and real trees are slow: a test has ten minutes before it is told as a hang, where the suite has one.
hangs=(-o faulthandler_timeout=600)

apart() { # a copy of the tracked files and a fresh environment, where a special build leaves no trace
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/tree"
    git ls-files -z | xargs -0 cp --parents -t "$work/tree"
    "$python" -m venv "$work/venv"
    # shellcheck disable=SC1091
    . "$work/venv/bin/activate"
    cd "$work/tree"
}

"""A clock that is set while a service runs changes nothing: what decides is not the wall clock."""

import re

from tests.lib.paths import ROOT

WALL_CLOCK = r"\btime\.time(?:_ns)?\(|\bCLOCK_REALTIME|\bgettimeofday|\bdatetime\b|\btime\(NULL|\bst_mtime"
# How often each file looks at it: for texts, for FastDeploy's own stamps, for a name, for the order of files.
LOOKS = {
    "doctor/processes.py": 1,
    "fastdeploy/engine/processor/ending.py": 1,
    "fastdeploy/engine/processor/health_check.py": 1,
    "fastdeploy/engine/processor/loop.py": 2,
    "fastdeploy/engine/processor/object_step.py": 1,
    "fastdeploy/engine/processor/request.py": 1,
    "fastdeploy/engine/processor/step.py": 1,
    "fastdeploy/engine/processor/tracing.py": 1,
    "flight/files.py": 2,
    "recording.py": 1,
}


def test_where_the_wall_clock_is_looked_at():
    found = {}
    for folder in ROOT / "fd_postproc", ROOT / "cuda":
        for path in folder.rglob("*"):
            if path.suffix in (".py", ".pyx", ".pxi", ".h"):
                text = path.read_text()
                if looks := len(re.findall(WALL_CLOCK, text)):
                    found[str(path.relative_to(folder))] = looks
                for clock in re.findall(r"clock_gettime\((\w+)|setclock\(&\w+, (\w+)", text):
                    assert set(clock) == {"CLOCK_MONOTONIC", ""}, path
    assert found == LOOKS

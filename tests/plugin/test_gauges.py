"""The gauges of several processes, as a scrape of prometheus_client's multiprocess mode reads them."""

import os
import signal
import struct
import subprocess
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from fd_postproc.fastdeploy.engine import activation
from fd_postproc.fastdeploy.events import gauges
from tests.lib.children import python
from tests.lib.rows import each
from tests.lib.waiting import until

PROCESS = """
import os, signal, sys
from prometheus_client import Gauge
from fd_postproc.fastdeploy.events import gauges
from fd_postproc.fastdeploy.events.gauges import export, sweep
gauges.SWEEP_S = 0
foreign = Gauge("foreign", "one of FastDeploy's", multiprocess_mode="livesum")
for line in sys.stdin:
    what, *words = line.split()
    if what == "set":
        export(words[0], words[1], words[2], words[3] == "1")
    elif what == "folder":
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = words[0]
    elif what == "sweep":
        sweep()
    elif what == "fork":
        answer, told = os.pipe()
        child = os.fork()
        if child == 0:
            foreign.inc()  # every value of the parent's is made again, in a file of the child's
            os.write(told, b"x")
            sys.stdout.close()
            signal.pause()
        os.read(answer, 1)
        print(child, flush=True)
        continue
    print("done", flush=True)
"""
ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A command's beginning: it is process 1 of a PID namespace, as in a container."""


class Process:
    """A process of a service, which does what it is told, one line after the other."""

    def __init__(self, folder, begin=()):
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._made = subprocess.Popen([*begin, *python(PROCESS)], text=True, env=environment, **pipes)

    def tell(self, line):
        self._made.stdin.write(f"{line}\n")
        self._made.stdin.flush()
        return self._made.stdout.readline().strip()

    def set(self, *words):
        assert self.tell(" ".join(["set", *map(str, words)])) == "done"

    def end(self, how=signal.SIGKILL):
        self._made.send_signal(how)
        for pipe in (self._made.stdin, self._made.stdout):
            pipe.close()
        self._made.wait()


@pytest.fixture
def start(tmp_path):
    """A function that starts a `Process`; their folder is the test's own."""
    folder, begun = tmp_path / "service", []
    folder.mkdir()

    def start(begin=()):
        begun.append(Process(folder, begin))
        return begun[-1]

    yield start
    for process in begun:
        process.end()


@pytest.fixture
def samples(tmp_path):
    """A function that scrapes: samples by name and value of the label."""

    def scrape():
        registry = CollectorRegistry()
        MultiProcessCollector(registry, tmp_path / "service")
        return {
            " ".join([sample.name.removeprefix("fd_postproc_"), *sample.labels.values()]): sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if metric.name.startswith("fd_postproc_")
        }

    return scrape


def test_the_worst_of_the_living_counts(start, samples):
    table = [
        ("active", "side engine", (1, 0), 0),
        ("known", "side engine", (0, 1), 0),
        ("fast_path", "path sending", (1, 0), 0),
        ("unhealthy", "reason silent", (0, 1), 1),
        ("active", "side api", (1, 1), 1),
    ]
    processes = start(), start()
    for name, label, values, _ in table:
        for process, value in zip(processes, values, strict=True):
            process.set(name, label, value)
    assert samples() == {f"{name} {label.split()[1]}": worst for name, label, _, worst in table}


def test_a_killed_process_counts_no_more(start, samples):
    """The next process's start or another's look removes its file."""
    one, other = start(), start()
    one.set("unhealthy", "reason silent", 1)
    one.set("active", "side engine", 0)
    other.set("unhealthy", "reason silent", 0)
    other.set("active", "side engine", 1)
    other.tell("sweep")
    assert samples() == {"unhealthy silent": 1, "active engine": 0}
    one.end()
    until(lambda: other.tell("sweep") and samples() == {"unhealthy silent": 0, "active engine": 1})
    other.end()
    third = start()
    assert samples() == {"unhealthy silent": 0, "active engine": 1}  # nobody has looked
    third.set("unhealthy", "reason engine", 0)
    assert samples() == {"unhealthy engine": 0}


def test_a_forked_child_repeats_nothing_and_holds_nothing(start, samples):
    """prometheus_client makes each value of a parent's again in its child, as 0."""
    parent, other = start(), start()
    parent.set("active", "side engine", 1)
    parent.set("unhealthy", "reason silent", 1)
    child = int(parent.tell("fork"))
    try:
        assert samples() == {"active engine": 1, "unhealthy silent": 1}
        parent.end()
        until(lambda: other.tell("sweep") and samples() == {})
    finally:
        os.kill(child, signal.SIGKILL)


OWN = """
import os
from prometheus_client import REGISTRY
from fd_postproc.fastdeploy.events.gauges import export
def own():
    found = [REGISTRY.get_sample_value("fd_postproc_unhealthy", {"reason": one}) for one in ("a", "b")]
    print(*found, flush=True)
export("unhealthy", "reason", "a", True)
if os.fork() == 0:
    own()
    export("unhealthy", "reason", "b", True)
    own()
    os._exit(0)
os.wait()
own()
"""


def test_a_forked_childs_own_registry_repeats_nothing():
    """FastDeploy reads it where no folder is shared."""
    environment = {name: text for name, text in os.environ.items() if name != "PROMETHEUS_MULTIPROC_DIR"}
    told = subprocess.run(python(OWN), env=environment, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["None None", "None 1.0", "1.0 None"]


def test_the_number_of_an_ended_process_brings_nothing_back(start, samples):
    """A container has the same process numbers at each start, and may keep its folder."""
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("a PID namespace of its own is not permitted here")
    outside = start()
    outside.set("unhealthy", "reason engine", 0)
    for _ in range(2):
        inside, neighbour = start(begin=ALONE), start(begin=ALONE)  # both are process 1
        for process in (inside, neighbour):
            process.set("unhealthy", "reason silent", 0)
        inside.set("unhealthy", "reason worker", 1)
        neighbour.tell("sweep")
        outside.tell("sweep")
        assert samples() == {"unhealthy engine": 0, "unhealthy silent": 0, "unhealthy worker": 1}
        inside.end()
        neighbour.end()
    until(lambda: outside.tell("sweep") and samples() == {"unhealthy engine": 0})


def test_a_folder_that_is_changed_later_has_what_comes_later(start, samples, tmp_path):
    """FastDeploy names its folder after plug-ins were asked for, in some versions."""
    process = start()
    process.set("active", "side engine", 0)
    (tmp_path / "service").rename(tmp_path / "before")
    (tmp_path / "service").mkdir()
    process.tell(f"folder {tmp_path / 'service'}/")
    process.set("active", "side engine", 1)
    process.tell("sweep")
    assert samples() == {"active engine": 1}


def test_a_file_that_gets_no_name_is_not_left(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "rename", Mock(side_effect=OSError))
    with pytest.raises(OSError):
        gauges._Files(str(tmp_path)).set("busy", "side", "worker", 1.0)
    assert os.listdir(tmp_path) == []


def test_files_of_others_stay(start, tmp_path):
    process = start()
    process.set("active", "side engine", 1)
    theirs = {name for name in os.listdir(tmp_path / "service") if "fdpostproc" not in name}
    assert any(name.startswith("gauge_livesum_") for name in theirs)
    process.end()
    start().set("active", "side engine", 1)
    assert theirs <= set(os.listdir(tmp_path / "service"))
    assert not any(name.startswith(".") for name in os.listdir(tmp_path / "service"))


def entry(key):
    """One value of a file of prometheus_client's."""
    padded = key + b" " * (8 - (len(key) + 4) % 8)
    return struct.pack(f"i{len(padded)}sdd", len(key), padded, 1.0, 0.0)


KEY = b'["m", "m", {}, "help"]'
UNREADABLE = {
    "empty": b"",
    "more used than there is": struct.pack("ii", 1 << 16, 0),
    "an entry beyond its end": struct.pack("iii", 32, 0, 1 << 20) + bytes(64),
    "an entry that was cut": struct.pack("ii", 48, 0) + entry(KEY)[:20],
    "a key that is no JSON": struct.pack("ii", 40, 0) + entry(b"x" * 12),
    "a key that is no UTF-8": struct.pack("ii", 40, 0) + entry(b"\xff" * 12),
    "another program's": os.urandom(8).join([b"no file of metrics"] * 4),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    return tmp_path


def scrape(folder):
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(folder))
    return sum(1 for metric in registry.collect() for _ in metric.samples)


def set_aside():
    said = []
    gauges.set_unreadable_aside(said.append)
    return said


@pytest.fixture
def ended():
    """The number of a process that has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


@each("what", UNREADABLE)
@pytest.mark.parametrize("kind", ["counter", "histogram", "gauge_livesum"])
def test_a_file_that_cannot_be_read_is_moved_aside_if_its_process_has_ended(what, kind, folder, ended):
    whole = struct.pack("ii", 8 + len(entry(KEY)), 0) + entry(KEY)
    (folder / f"summary_{ended}.db").write_bytes(whole)  # that one can be read
    name = f"{kind}_{ended}.db"
    (folder / name).write_bytes(UNREADABLE[what])
    with pytest.raises(Exception):  # noqa: B017 - whatever prometheus_client raises
        scrape(folder)
    (text,) = set_aside()
    assert name in text
    assert f"it is {name}{gauges.ASIDE} now" in text
    assert scrape(folder) == 1
    assert (folder / f"{name}{gauges.ASIDE}").read_bytes() == UNREADABLE[what]
    assert set_aside() == []


OTHERS = (
    "counter_{}.db.bak",
    "my_{}.db",
    "counter_{}-1.db",
    "gauge_livesum_x.db",
    "counter_99999999999.db",
    ".db",
)


@each("name", ["counter_{}.db", "gauge_all_{}.db", *OTHERS])
def test_files_of_living_processes_and_of_other_names_stay(name, folder):
    """A zombie has ended; a stopped process lives, and so does any of another user's."""
    broken = UNREADABLE["an entry beyond its end"]
    path = folder / name.format(os.getpid())
    path.write_bytes(broken)
    said = set_aside()
    assert path.read_bytes() == broken
    assert len(said) == (path.suffix == ".db" and not path.name.startswith("."))
    assert all(str(path) in text and "stays" in text for text in said)
    path.unlink()


@each("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_does_not_stop_the_engine(kind, folder, ended):
    path = folder / f"counter_{ended}.db"
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(path, path)}[kind]
    make(path)
    (text,) = set_aside()
    assert "it is no file" in text
    assert os.listdir(folder) == [f"{path.name}{gauges.ASIDE}"]
    (os.rmdir if kind == "folder" else os.unlink)(f"{path}{gauges.ASIDE}")


def test_one_that_cannot_be_moved_is_named(folder, ended):
    (folder / f"counter_{ended}.db").write_bytes(b"")
    (folder / f"counter_{ended}.db{gauges.ASIDE}").mkdir()
    (text,) = set_aside()
    assert "cannot be moved: Is a directory" in text


def test_the_engine_does_so_when_it_starts_and_never_stops_for_it(folder, ended, monkeypatch):
    (folder / f"counter_{ended}.db").write_bytes(b"")
    log = Mock()
    activation._mend_page(log)
    assert "was moved aside" in log.error.call_args.args[0]
    monkeypatch.setattr(gauges, "_why_unreadable", Mock(side_effect=MemoryError))
    (folder / f"counter_{ended}.db").write_bytes(b"")
    activation._mend_page(log)
    assert "were not looked at: MemoryError" in log.error.call_args.args[0]

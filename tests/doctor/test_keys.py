"""The doctor on keys: whose queue it is, ids that share one."""

import os
import tempfile

from fd_postproc import doctor, queues
from fd_postproc.doctor import Scope, snapshot
from fd_postproc.doctor.processes import Place, User
from tests.lib.waiting import until

ID = 8002


def test_queues_are_recognised_by_their_keys(default_limits, run):
    shm = queues.open_queue(queues.locate("topk", ID))
    spec = queues.open_queue(queues.locate("spec", ID))
    old = queues.open_queue(queues.locate("topk", ID, ftok="libc"))
    foreign = queues.open_queue(0x1234567)
    largest = queues.open_queue(queues.locate("topk", 65535 + 256))  # a port and a rank
    too_large = queues.open_queue(queues.locate("topk", 65535 + 257))
    known = {queue.info.msqid: queue for queue in doctor.take(Scope()).queues}
    assert set(known) == {shm, spec, old, largest}
    queues.remove_queue(too_large)
    snapshot = doctor.take(Scope())
    assert [one.queue_id for one in known[shm].identities] == [ID]
    assert known[shm].channels(Scope()) == ("plain", "topk", "spec_topk")
    assert known[spec].channels(Scope()) == ("spec",)
    assert known[old].identities[0].ftok == "libc"
    assert known[old].identities[0].queue_id == ID % 256
    assert [info.msqid for info in snapshot.others] == [foreign]
    named = doctor.take(Scope(ids=frozenset([ID])))
    assert {queue.info.msqid for queue in named.queues} == {shm, spec, old}
    assert named.others == []
    assert doctor.take(Scope(ids=frozenset([ID + 1]))).queues == []
    assert [queue.info.msqid for queue in doctor.take(Scope(channels=("spec",))).queues] == [spec]
    status, out, _ = run()
    assert status == 0
    assert f"queue msqid:{shm} (id {ID}, /dev/shm, key " in out
    assert "1 queue of unknown programs" in out
    assert str(foreign) in out


def test_a_prefill_nodes_signals_are_known(default_limits, run):
    """Their key is made of another folder, and of the id 4 bits further left."""
    signals = queues.open_queue(queues.queue_key(ID << 4, "/opt/"))
    foreign = queues.open_queue(queues.queue_key((ID << 4) + 1, "/opt/"))
    snapshot = doctor.take(Scope())
    assert [info.msqid for info in snapshot.signals] == [signals]
    assert [info.msqid for info in snapshot.others] == [foreign]
    (found,) = [each for each in doctor.examine(Scope(), snapshot) if each.code == "queue-signals"]
    assert (found.severity, found.data["id"], found.msqid) == ("info", ID, signals)


def test_the_directory_of_a_process_that_uses_a_queue(default_limits, tmp_path, live_user):
    """Its keys are looked for, too; without it, only where that is asked for."""
    key, folders = queues.locate("spec", ID), (tmp_path / str(n) for n in range(64))
    for folder in folders:
        folder.mkdir()
        if queues.locate("spec", ID, path=str(folder)) != key:
            break
    msqid = queues.open_queue(queues.locate("spec", ID, path=str(folder)))
    scope = Scope(paths=(str(folder),), ids=frozenset([ID]), channels=("spec",))
    assert [one.info.msqid for one in doctor.take(scope).queues] == [msqid]
    (keys,) = [one for one in doctor.examine(scope) if one.code == "keys"]
    assert [(one["path"], one["msqid"]) for one in keys.data["keys"]] == [(os.path.realpath(folder), msqid)]
    assert msqid not in [one.info.msqid for one in doctor.take(Scope()).queues]
    live_user(queues.inspect_queue(msqid).key, "q.send(bytes(8))\nq.receive()", cwd=folder)
    until(lambda: queues.inspect_queue(msqid).received_at)
    (found,) = [each for each in doctor.examine(Scope(ids=frozenset([ID]))) if each.code == "queue"]
    assert found.msqid == msqid


def test_a_users_directory_comes_before_one_of_ours_that_agrees_by_chance(
    default_limits, tmp_path, monkeypatch
):
    for name in "theirs", "ours":
        (tmp_path / name).mkdir()
    queues.open_queue(queues.locate("spec", ID, path=str(tmp_path / "theirs")))
    both = [Place("cwd", 1, n, name, str(tmp_path / "theirs")) for n, name in enumerate(("theirs", "ours"))]
    monkeypatch.setattr(snapshot, "last_user", lambda pid, used_at: User(7, 1, "alive"))
    monkeypatch.setattr(snapshot, "places_of", lambda pid: both[:1])
    monkeypatch.setattr(snapshot, "own_places", lambda scope: both[1:])
    (found,) = doctor.take(Scope(ids=frozenset([ID]))).queues
    assert "theirs" in found.subject


def test_ids_that_share_a_key(default_limits):
    def collisions(*ids):
        findings = doctor.examine(Scope(ids=frozenset(ids)))
        return [(found.severity, found.data["ftok"]) for found in findings if found.code == "key-collision"]

    assert collisions(8002, 8258) == [("warning", "libc")]
    assert collisions(8002, 8002 + (1 << 20)) == [("error", "custom")]
    assert collisions(8002, 8003) == []


def test_a_deleted_working_directory_is_shown_as_such(default_limits, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (found,) = [each for each in doctor.examine(Scope(ids=frozenset([ID]))) if each.code == "keys"]
    assert "./ (deleted)" in found.seen
    monkeypatch.setattr(
        "fd_postproc.doctor.keys.place", lambda kind, lookup: None if kind == "shm" else lookup
    )
    missing = [found for found in doctor.examine() if found.code == "place-missing"]
    assert [(found.severity, found.subject) for found in missing] == [("error", "/dev/shm")]


def test_a_directory_with_the_key_of_dev_shm(default_limits):
    """Only 8 bits of the inode count: one of 256 directories there has the same."""
    queues.open_queue(queues.locate("plain", ID))
    wanted = os.stat("/dev/shm").st_ino & 0xFF
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for n in range(2000):
            path = os.path.join(folder, str(n))
            os.mkdir(path)
            if os.stat(path).st_ino & 0xFF == wanted:
                break
        findings = doctor.examine(Scope(ids=frozenset([ID]), paths=(path,)))
    (found,) = [each for each in findings if each.code == "key-collision"]
    assert path in found.seen

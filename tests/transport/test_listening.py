"""What a Receiver finds at an address's path: only the socket of a dead process is ever removed."""

import fcntl
import os
import socket
import stat
import subprocess
import threading

import pytest

import fd_postproc as fp
from tests.lib.children import python


def refusal(path):
    with pytest.raises(fp.QueueError) as caught:
        fp.Receiver("plain", address=f"ipc://{path}")
    return str(caught.value)


def test_a_file_is_left_alone(tmp_path):
    file = tmp_path / "thesis.txt"
    file.write_text("ten years of work")
    assert "a file is there, and is left alone" in refusal(file)
    assert file.read_text() == "ten years of work"


def test_a_directory_is_left_alone(tmp_path):
    assert "a directory is there" in refusal(tmp_path)


@pytest.mark.parametrize("target", ["file", "nothing", "socket"])
def test_a_symbolic_link_is_left_alone(tmp_path, target):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    if target == "file":
        (tmp_path / target).write_text("kept")
    elif target == "socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / target))
    assert "a symbolic link is there" in refusal(link)
    assert link.is_symlink()
    assert target == "nothing" or (tmp_path / target).exists()


def test_a_pipe_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "something that is no socket is there" in refusal(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_socket_that_lives_is_left_alone(tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "road"))
        other.listen(0)
        assert "another program listens there" in refusal(tmp_path / "road")
    with fp.Receiver("plain", address=f"ipc://{tmp_path}/receiver"):
        assert "another program listens there" in refusal(tmp_path / "receiver")
        assert (tmp_path / "receiver").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_another_user_s_dead_socket_is_left_alone(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "road"))
    os.chown(tmp_path / "road", 12345, 12345)
    assert "a dead socket of user 12345 is there" in refusal(tmp_path / "road")
    assert (tmp_path / "road").exists()


def test_a_port_that_another_program_has():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(fp.QueueError) as caught:
        fp.Receiver("plain", address=f"tcp://127.0.0.1:{other.getsockname()[1]}")
    assert "another program listens there" in str(caught.value)


def test_what_a_killed_receiver_left_is_no_obstacle(tmp_path):
    code = "import os; import fd_postproc as fp; it = fp.Receiver('plain', address=sys.argv[1]); os._exit(0)"
    subprocess.run(python(code, f"ipc://{tmp_path}/road"), check=True)
    assert (tmp_path / "road").exists()
    fp.Receiver("plain", address=f"ipc://{tmp_path}/road").close()
    assert not (tmp_path / "road").exists()


def test_only_its_own_file_is_removed_at_the_end(tmp_path):
    receiver = fp.Receiver("plain", address=f"ipc://{tmp_path}/road")
    (tmp_path / "road").unlink()
    (tmp_path / "road").write_text("another")
    receiver.close()
    assert (tmp_path / "road").read_text() == "another"


def test_the_permission_bits(tmp_path):
    for mode in 0o600, 0o660:
        with fp.Receiver("plain", address=f"ipc://{tmp_path}/road", mode=mode):
            assert (tmp_path / "road").stat().st_mode & 0o777 == mode
        assert not (tmp_path / "road").exists()
    with pytest.raises(ValueError, match="mode"):
        fp.Receiver("plain", address=f"ipc://{tmp_path}/road", mode=0o400)


def test_many_that_begin_at_once_have_one_winner(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "road"))
    won, lost = [], []

    def begin():
        try:
            won.append(fp.Receiver("plain", address=f"ipc://{tmp_path}/road"))
        except fp.QueueError as error:
            lost.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 15)
    assert all("another program listens there" in text for text in lost)
    won[0].close()


def test_a_lock_that_is_not_given_back(tmp_path, monkeypatch):
    from fd_postproc.transport import listening

    monkeypatch.setattr(listening, "_LOCK_S", 0.05)
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    assert "another program holds a lock on its directory" in refusal(tmp_path / "road")
    os.close(folder)

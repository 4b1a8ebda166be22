"""The doctor on systemd-logind, which removes a user's queues and shared memory at the last logout."""

import pytest

from fd_postproc.doctor.logind import check_logind


@pytest.fixture
def root(tmp_path):
    (tmp_path / "run/systemd/seats").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf.d").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf").write_text("[Login]\n#RemoveIPC=yes\n")
    return tmp_path


def test_a_user_under_logind_is_warned_and_who_is_spared_is_not(root):
    (found,) = check_logind(str(root), 54321)
    assert (found.severity, found.code, found.data) == ("warning", "logind", {"user": "54321"})
    assert "loginctl enable-linger 54321" in found.remedy
    assert [len(check_logind(str(root), user)) for user in (0, 999, 1000)] == [0, 0, 1]
    (root / "var/lib/systemd/linger").mkdir(parents=True)
    (root / "var/lib/systemd/linger/54321").touch()
    assert check_logind(str(root), 54321) == []


def test_the_last_file_that_sets_it_decides_by_its_name_in_whatever_folder(root):
    extra = root / "etc/systemd/logind.conf.d/50-ipc.conf"
    extra.write_text("[Login]\nRemoveIPC=no\n")
    assert check_logind(str(root), 54321) == []
    (root / "etc/systemd/logind.conf").write_text("[Login]\nRemoveIPC=yes\n")  # the parts come after it
    assert check_logind(str(root), 54321) == []
    extra.write_text("no section\n")  # ignored
    assert len(check_logind(str(root), 54321)) == 1
    extra.write_text("[Login]\nRemoveIPC=yes\n")
    vendors = root / "usr/lib/systemd/logind.conf.d"
    vendors.mkdir(parents=True)
    (vendors / "90-ipc.conf").write_text("[Login]\nRemoveIPC=no\n")
    assert check_logind(str(root), 54321) == []
    (root / "etc/systemd/logind.conf.d/90-ipc.conf").write_text("")  # in place of the vendor's
    assert len(check_logind(str(root), 54321)) == 1
    (root / "run/systemd/seats").rmdir()  # a machine without logind
    assert check_logind(str(root), 54321) == []

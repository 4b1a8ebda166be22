"""Checks whether systemd-logind will remove this user's queues and shared memory at the last logout."""

from __future__ import annotations

import configparser
import os
import pwd
from glob import glob

from ..support.environment import WORDS
from .findings import Finding

_FIRST_USER = 1000  # logind spares system users, whose numbers are smaller on every usual distribution
_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")  # a file of a later one hides its namesakes


def check_logind(root: str = "/", uid: int | None = None) -> list[Finding]:
    """Return a finding where ``RemoveIPC`` of logind.conf(5) applies to this user."""
    uid = os.geteuid() if uid is None else uid
    running = os.path.isdir(os.path.join(root, "run/systemd/seats"))
    if uid < _FIRST_USER or not running or not _removes(root):
        return []
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    if os.path.exists(os.path.join(root, "var/lib/systemd/linger", user)):
        return []
    seen = (
        f"systemd-logind removes all queues and files in /dev/shm of user {user} at the last logout: what is"
        " in them is lost, the flight recorder's files too, and running processes go on with new queues"
    )
    remedy = (
        f"loginctl enable-linger {user}",
        "or RemoveIPC=no in /etc/systemd/logind.conf, or run the service as a system user",
    )
    return [Finding("warning", "queues", "logind", "RemoveIPC", seen, remedy, data={"user": user})]


def _removes(root: str) -> bool:
    """The setting, which is on where no file turns it off."""
    setting = configparser.ConfigParser(strict=False, interpolation=None)
    folders = [os.path.join(root, folder) for folder in _FOLDERS]
    parts = {os.path.basename(path): path for one in folders for path in glob(f"{one}/logind.conf.d/*.conf")}
    for path in (f"{folders[-1]}/logind.conf", *(parts[name] for name in sorted(parts))):
        try:
            setting.read(path)
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue  # logind ignores what it cannot read
    text = setting.get("Login", "RemoveIPC", fallback="yes").strip().lower()
    return WORDS.get(text, text in ("y", "t"))

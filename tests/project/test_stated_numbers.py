"""Numbers that the pages on the wire protocol and on security state: those of the code."""

import math
import re

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc._core import payload_size, tensor_elements
from tests.lib.paths import ROOT
from tests.lib.random_steps import random_step
from tests.reference import reassembly
from tests.reference.frames import HEADER_SIZE

PROTOCOL = (ROOT / "docs" / "wire-protocol.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()


def rows(*heading):
    """The body of the table with these columns, as lists of cells."""
    lines = iter(PROTOCOL.splitlines())
    for line in lines:
        if line == f"| {' | '.join(heading)} |":
            break
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip(" `*") for cell in line.strip("|").split("|")])
    assert found
    return found


def number(text):
    return int(text.removeprefix("up to ").removeprefix("0 to ").replace(",", ""))


CHANNELS = rows(
    "channel", "carries", "slots", "tokens per slot", "columns", "payload bytes", "path of the key"
)
FRAMES = rows(
    "channel", "requests", "accepted", "columns", "compact", "packed", "messages under the default limits"
)


@pytest.mark.parametrize("row", CHANNELS, ids=lambda row: row[0])
def test_the_four_channels(row):
    channel, _, slots, depth, columns, length, path = row
    assert payload_size(channel) == number(length)
    assert queues.CHANNEL_PATHS[channel] == path.split("`")[0]
    full = random_step(channel, 1, batch=number(slots), cols=number(columns), accepted=number(depth))
    assert len(fp.encode(full, "legacy")) in (number(length), number(length) - 4)  # less padding
    beyond = [{"batch": number(slots) + 1}, {"batch": 1, "cols": number(columns) + 1}]
    for size in beyond if channel.endswith("topk") else beyond[:1]:
        with pytest.raises(ValueError):
            fp.encode(random_step(channel, 1, accepted=1, **size), "packed")


def test_the_tensors_of_get_ops():
    table = rows("op", "channel", "tensors it writes", "further arguments")
    for _, channel, tensors, _ in table:
        sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"\[(.*?)\]", tensors)]
        assert tuple([*sizes, 0, 0][:3]) == tensor_elements(channel)


@pytest.mark.parametrize("row", FRAMES, ids=" ".join)
def test_frames_and_messages(row, default_limits, queue_key):
    channel, batch, accepted, cols, compact, packed, messages = row
    step = random_step(channel, 1, batch=int(batch), cols=int(cols), accepted=int(accepted))
    assert len(fp.encode(step, "compact")) == number(compact)
    if packed == "cannot carry it":
        with pytest.raises(ValueError):
            fp.encode(step, "packed")
    else:
        assert len(fp.encode(step, "packed")) == number(packed)
    if number(messages) > 2:  # more than a small queue holds
        default_limits("msgmnb", 1 << 20)
    with fp.Sender(channel, key=queue_key, dialect="compact") as sender:
        sender.send(step, 0)
        assert (
            sender.stats["messages"] == sysv_ipc.MessageQueue(queue_key).current_messages == number(messages)
        )


def test_five_requests_fit_the_default_limit():
    assert "up to 5 requests fits the kernel's default limit (at most 7,220 bytes)" in PROTOCOL
    five, six = (random_step("spec_topk", 1, batch=n, cols=21, accepted=6) for n in (5, 6))
    assert len(fp.encode(five)) == 7220
    assert len(fp.encode(six)) > 8192


def constants():
    """What senders.h is compiled with."""
    text = (ROOT / "fd_postproc" / "headers" / "senders.h").read_text()
    found = dict(re.findall(r"#define FDF_(\w+) (\d+|\(\d+ << \d+\))", text))
    return {name: eval(value) for name, value in found.items()}


def test_the_rooms_of_senders():
    here, there = constants(), reassembly
    assert here["LEAST_ROOM"] == there.LEAST_ROOM
    assert here["MOST_KNOWN"] == there.MOST_KNOWN
    assert here["MOST_REMEMBERED"] == there.MOST_REMEMBERED
    assert here["KNOWN_ROOMS"] == there.KNOWN_ROOMS
    assert here["ENTRY_COST"] == there.ENTRY_COST
    assert here["IDLE_NS"] == there.IDLE * 1e9
    assert here["SILENT_NS"] == there.SILENCE * 1e9
    text = " ".join(PROTOCOL.split())
    for said in (
        f"An open frame is charged with {there.ENTRY_COST} bytes",
        f"or for {there.LEAST_ROOM >> 10} KiB if that is more",
        f"known senders for {there.KNOWN_ROOMS} times as much",
        f"first those that have been silent for {there.IDLE:.0f} seconds",
        f"At most {there.MOST_KNOWN} senders are known. The {there.MOST_KNOWN + 1}th",
        f"last {there.MOST_REMEMBERED} strangers",
        f"this one has been silent for {there.SILENCE:.0f} seconds",
        f"L below {HEADER_SIZE * 2 + 8} bytes carries no fragments, and there are at most 65,535",
    ):
        assert said in text
    text = " ".join(SECURITY.split())
    assert f"the longest frame or {there.LEAST_ROOM >> 10} KiB, whichever is more" in text
    assert f"{there.KNOWN_ROOMS} times that at the most" in text

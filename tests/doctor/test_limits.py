"""The doctor on kernel limits."""

import subprocess
import sys

import pytest
import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from fd_postproc._core import CHANNELS, payload_size
from fd_postproc.core.layout import Layout
from fd_postproc.doctor import Load, Scope
from fd_postproc.doctor.limits import check_limits
from fd_postproc.ops.needed_limits import example_step, fragments, wanted_limits
from fd_postproc.queues import KernelLimits
from tests.lib.doctoring import examined
from tests.lib.rows import each


def limit_findings(limits, **options):
    return {finding.subject: finding for finding in check_limits(limits, Scope(**options))}


def test_default_limits_are_too_small_for_fastdeploys_logprobs(default_limits):
    found = limit_findings(queues.kernel_limits())
    assert {name: finding.severity for name, finding in found.items()} == {
        "plain": "ok",
        "topk": "warning",
        "spec": "ok",
        "spec_topk": "warning",
    }
    ours = check_limits(queues.kernel_limits(), Scope(), both_sides=True)
    assert {finding.severity for finding in ours} == {"ok", "info"}  # nothing has to be done
    for channel in CHANNELS:
        assert found[channel].data["full"] == payload_size(channel)
    remedy = "\n".join(found["spec_topk"].remedy)
    assert "sysctl -w kernel.msgmax=1048576 kernel.msgmnb=268435456" in remedy
    assert "--sysctl kernel.msgmax=1048576 --sysctl kernel.msgmnb=268435456" in remedy
    assert "as their own root" in remedy
    assert "--ipc" in remedy
    assert "remove its queues" in remedy


def test_the_remedy_lets_every_channel_through_and_lowers_nothing(raised_limits):
    before = KernelLimits(8192, 1 << 30, 32000)
    remedy = limit_findings(before)["spec_topk"].remedy[0]
    wanted = dict(word.split("=") for word in remedy.split() if "=" in word)
    assert int(wanted["kernel.msgmnb"]) == 1 << 30
    for name, value in wanted.items():
        with open(f"/proc/sys/{name.replace('.', '/')}", "w") as file:
            file.write(value)
    assert {finding.severity for finding in limit_findings(queues.kernel_limits()).values()} == {"ok"}


def test_msgmax_raised_alone_hangs(default_limits, queue):
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write("1048576")
    with pytest.raises(sysv_ipc.BusyError):
        queue.send(bytes(payload_size("topk")), block=False)
    found = limit_findings(queues.kernel_limits())["topk"]
    assert found.code == "limits-hang"
    assert "wait forever" in found.seen


OWN_ROOT = """
import sysv_ipc
queue = sysv_ipc.MessageQueue(None, sysv_ipc.IPC_CREX)
for limit in ("msgmax", "msgmnb"):
    try:
        queue.max_size = 1 << 20
    except sysv_ipc.PermissionsError:
        print("refused")
    with open(f"/proc/sys/kernel/{limit}", "w") as file:
        file.write(str(1 << 20))
print(queue.max_size < 1 << 20)
queue.max_size = 1 << 20
queue.send(bytes(530448))
"""


def test_the_root_of_a_user_namespace_raises_both_limits_and_then_its_queues():
    command = ["unshare", "--user", "--map-root-user", "--ipc", sys.executable, "-c", OWN_ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare: " in done.stderr or "/proc/sys/kernel/msgmax" in done.stderr:
        pytest.skip(f"no user namespace, or Linux before 5.19: {done.stderr}")
    assert done.stdout.split() == ["refused", "refused", "True"], done.stderr


def test_sizes_are_those_of_encoded_steps():
    load = Load(batch=10, accepted=3, columns=5)
    found = limit_findings(KernelLimits(8192, 16384, 32000), load=load)
    for channel in CHANNELS:
        step = example_step(channel, load)
        assert step.rows == (30 if channel.startswith("spec") else 10)
        assert step.cols == (5 if channel.endswith("topk") else 1)
        assert found[channel].data["packed"] == len(fp.encode(step))


def test_compact_frames_always_fit():
    data = limit_findings(KernelLimits(8192, 16384, 32000))["spec_topk"].data
    assert data["compact"] == len(fp.encode(example_step("spec_topk", Load()), "compact"))
    body = 8192 - len(fp.encode(fp.Step.from_arrays("plain", [], []), "compact"))
    sizes = 8192, 8193, 8192 + body, 8193 + body, 8192 + 7 * body, 8193 + 7 * body
    assert [fragments(size, 8192) for size in sizes] == [1, 2, 2, 3, 8, 9]
    wide = limit_findings(KernelLimits(8192, 16384, 32000), load=Load(batch=300))
    assert (wide["spec"].data["packed"], wide["spec"].data["compact"] > 0) == (None, True)


@each(
    "channel, msgmax, load",
    [
        *(("topk", 8192, Load()), ("spec_topk", 8192, Load())),
        ("plain", 65536, Load(256)),  # a piece is no longer than FastDeploy's own message, either
    ],
)
def test_a_sender_takes_as_many_fragments_as_were_foretold(raised_limits, queue_keys, channel, msgmax, load):
    queue_key = queue_keys()
    with open("/proc/sys/kernel/msgmax", "w") as file:
        file.write(str(msgmax))
    foretold = limit_findings(queues.kernel_limits(), load=load)[channel].data["fragments"]
    with fp.Sender(channel, key=queue_key, dialect="compact") as sender:
        sender.send(example_step(channel, load), timeout=0)
        assert sender.stats["messages"] == foretold > 1
    queue = sysv_ipc.MessageQueue(queue_key)
    assert set(examined(queue, channels=(channel,))) == {"queue"}  # a fragment is no malformed message
    assert set(examined(queue)) == {"queue"}


def test_the_limits_themselves_fit():
    full = payload_size("topk")
    codes = [
        limit_findings(KernelLimits(msgmax, msgmnb, 32000))["topk"].code
        for msgmax, msgmnb in ((full, full), (full - 1, full), (full, full - 1), (full - 1, full - 1))
    ]
    assert codes == ["limits-fit", "limits-too-small", "limits-hang", "limits-too-small"]
    found = limit_findings(KernelLimits(8192, 16384, 32000), stock=True)  # where FastDeploy's ops send
    assert [found[channel].severity for channel in ("plain", "topk")] == ["ok", "error"]
    for full, wanted in (1 << 20, 20), ((1 << 20) + 1, 21), (1 << 22, 22), ((1 << 22) + 1, 23):
        assert wanted_limits(full, KernelLimits(8192, 16384, 32000))[0] == f"kernel.msgmax={1 << wanted}"
    layout = Layout(max_draft=24)  # spec_topk's message is longer than the usual limit then
    found = limit_findings(KernelLimits(8192, 16384, 32000), layout=layout, stock=True)
    remedy, wanted = found["topk"].remedy[0].split(), payload_size("spec_topk", layout)
    assert any(int(word[14:]) >= wanted > 1 << 20 for word in remedy if word.startswith("kernel.msgmax="))

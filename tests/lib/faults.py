"""Every fault that docs/faults.md tells of: how it is played, and what has to be said of it."""

import contextlib
import ctypes
import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial

import sysv_ipc

import fd_postproc as fp
from fd_postproc import queues
from tests.lib.fault_stage import REQUESTS, at_step, hang, set_limit, short_of_memory
from tests.lib.simulated_worker import Worker
from tests.lib.waiting import until

AT = 100  # the step at which a worker misbehaves: two seconds after its first
SOON, LATER = 4.0, 7.0  # seconds after the fault: so many looks at the queue; a silence long enough
LONGER = 10.0  # a change of pace that lasts


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes
    ----------
    name, title : str
    play : function
        Its script, called with a `Stage`.
    code : str
        What `explain` must name it.
    reason : str or None
        What `healthy` must say within five seconds; None: nothing is wrong with the service.
    attempt : str
        How to try it: arguments of `tests.lib.simulated_worker`, or a sentence.
    remedy : str
    """

    name: str
    title: str
    play: object
    code: str
    reason: str | None
    attempt: str
    remedy: str


def simulated(stage, fault, *arguments, after=SOON, channel="plain", slots=REQUESTS, **worker):
    """A simulated worker that misbehaves at step AT."""
    engine = stage.engine(channel, slots=slots)
    stage.worker("--fault", fault, "--at", str(AT), *arguments, **worker)
    stage.sound(engine, 20)
    stage.until_worker_says(f"Step {AT}:")
    stage.look(engine, after)


def full_size(stage):
    """One-token messages are the shortest; a new kernel takes them."""
    set_limit("msgmax", 1024)
    simulated(stage, "full-size", after=LATER)


def happening(stage, what, after=SOON, *, reason=True, prepare=None, **worker):
    """A sound simulated worker, and something that happens to it, to the queue or to the engine."""
    engine = stage.engine(prepare=prepare)
    worker = stage.worker(**worker)
    stage.sound(engine, AT // 2)
    stage.happens()
    what(stage, engine, worker)
    stage.look(engine, after, reason=reason)


def in_a_step(stage, prepare, after=SOON, *, reason=True, **worker):
    """Something happens to the engine when it delivers the results of step AT."""
    engine = stage.engine(prepare=prepare)
    stage.worker(**worker)
    stage.sound(engine, 20)
    stage.until_steps(engine, AT - 8)
    stage.happens()
    stage.look(engine, after, reason=reason)


def changing(stage, step, after=LONGER, *, pace=lambda _: 0.02, **engine):
    """A worker that changes at step AT; `step` and `pace` get the number of a step."""

    def work():
        with fp.Sender("plain") as sender:
            for n in itertools.count():
                if n == AT:
                    os.mkfifo(f"{stage.folder}/changed")
                sender.send(step(n))
                time.sleep(pace(n))

    engine = stage.engine(**engine)
    stage.child(work)
    stage.sound(engine, 20)
    until(lambda: os.path.exists(f"{stage.folder}/changed"), 60)
    stage.happens()
    stage.look(engine, after)


def _plain(count, tokens=True):
    """A step of so many requests; without tokens all of its counts are -1."""
    ids = range(1000, 1000 + count) if tokens else []
    return fp.Step.from_arrays("plain", [1 if tokens else -1] * count, ids)


def kept_out(stage):
    """A worker of another user, and a queue whose mode changes."""

    def work():
        os.setgid(65534)
        os.setuid(65534)
        with fp.Sender("plain") as sender:
            while True:
                with contextlib.suppress(fp.QueuePermission):
                    sender.send(_plain(REQUESTS))
                time.sleep(0.02)

    os.environ["FD_POSTPROC_QUEUE_MODE"] = "0666"
    engine = stage.engine()
    stage.child(work)
    stage.sound(engine, AT // 2)
    stage.happens()
    sysv_ipc.MessageQueue(queues.locate("plain")).mode = 0o600
    stage.look(engine, LATER)


def _report_now_and_then(rig):
    """As outside of tests: then the engine watches who reads."""
    rig.processor.gauge_period = 0.1


def _thief(stage, *_):
    """Another process, which takes a message every two seconds."""

    def steal():
        queue = sysv_ipc.MessageQueue(queues.locate("plain"))
        while True:
            queue.receive()
            time.sleep(2.0)

    stage.child(steal)


def _stop_for_a_while(stage, engine, _):
    stage.kill(engine, signal.SIGSTOP)
    time.sleep(8.0)
    stage.kill(engine, signal.SIGCONT)


def _hold_the_gil():
    """Another thread than the token thread calls into C without giving the GIL back."""
    threading.Thread(target=ctypes.PyDLL(None).usleep, args=(7_000_000,)).start()


def _begin_anew(stage, _, worker):
    stage.kill(worker)
    stage.worker(dialect="compact")


def _slow_down(rig, seconds):
    """From step 20 on, delivery takes long."""
    real, put = rig.sink.put_results, []

    def put_results(results):
        put.append(None)
        if len(put) > 20:
            time.sleep(seconds)
        return real(results)

    rig.sink.put_results = put_results


def slow_delivery(stage):
    engine = stage.engine(prepare=partial(_slow_down, seconds=0.3))
    stage.worker(pace=0.2)
    stage.until_steps(engine, 20)
    stage.happens()
    stage.look(engine, LONGER)


def idle_engine(stage):
    """All threads of the engine get the idle priority, on a processor that others use."""
    processor = {min(os.sched_getaffinity(0))}

    def use():
        os.sched_setaffinity(0, processor)
        while True:
            pass

    def schedule(policy):
        for thread in os.listdir(f"/proc/{engine}/task"):
            os.sched_setaffinity(int(thread), processor)
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))

    engine = stage.engine()
    stage.worker(pace=0.1)
    stage.sound(engine, AT // 2)
    for _ in range(2):
        stage.child(use)
    stage.happens()
    schedule(os.SCHED_IDLE)
    try:
        stage.look(engine, 16.0, reason=False)
    finally:
        schedule(os.SCHED_OTHER)  # so that it can end


def of_another_version(stage):
    """A worker that begins with good frames, and goes on with those of a later version."""

    def work():
        step = fp.Step.from_arrays("plain", [1] * REQUESTS, range(1000, 1000 + REQUESTS))
        queue = sysv_ipc.MessageQueue(queues.locate("plain"))
        with fp.Sender("plain", dialect="compact") as sender:
            for _ in range(AT):
                sender.send(step)
                time.sleep(0.02)
            os.mkfifo(f"{stage.folder}/changed")
            while True:
                payload = bytearray(fp.encode(step, "compact"))
                payload[16] = 99
                queue.send(bytes(payload), type=2)
                time.sleep(0.02)

    engine = stage.engine()
    stage.child(work)
    stage.sound(engine, 20)
    while not os.path.exists(f"{stage.folder}/changed"):
        time.sleep(0.01)
    stage.happens()
    stage.look(engine, SOON)


def killed_in_every_piece(stage):
    """A frame of five pieces; one sender after the other is killed after each piece but the last."""
    set_limit("msgmax", 400)
    step = fp.Step.from_arrays("topk", [1] * REQUESTS, *_columns())
    engine = stage.engine("topk")

    def send(pieces):
        worker = Worker("topk", queues.locate("topk"), "compact")
        worker.send(step)
        messages = worker.messages(step)
        assert len(messages) == 5
        worker.put(messages[:pieces])
        os.kill(os.getpid(), signal.SIGKILL)

    stage.reap(stage.child(send, 0))  # between two frames
    stage.sound(engine, 1)
    stage.happens()
    for pieces in range(1, 5):
        stage.reap(stage.child(send, pieces))
    stage.look(engine, SOON)


def _columns():
    import numpy as np

    shape = (REQUESTS, 21)
    return np.full(shape, 1000), np.zeros(shape, np.float32), np.ones(REQUESTS, int)


def left_by_an_earlier_run(stage):
    def earlier():
        with fp.Receiver("plain"), fp.Sender("plain") as sender:
            for _ in range(3):
                sender.send(fp.Step.from_arrays("plain", [1], [1000]))

    stage.reap(stage.child(earlier))
    time.sleep(1.5)  # the kernel keeps whole seconds
    stage.happens()
    engine = stage.engine()
    stage.worker()
    stage.until_steps(engine, 20)
    stage.look(engine, SOON)


def never_sent(stage):
    engine = stage.engine()
    stage.happens()
    stage.look(engine, LATER)


def unnoticed_removal(stage):
    """FastDeploy's own save ops keep the number of a queue, and print a line when it is gone."""

    def work():
        step = fp.Step.from_arrays("plain", [1] * REQUESTS, range(1000, 1000 + REQUESTS))
        queue = sysv_ipc.MessageQueue(queues.locate("plain"))
        while True:
            with contextlib.suppress(sysv_ipc.ExistentialError):
                queue.send(fp.encode(step), type=1)
            time.sleep(0.02)

    engine = stage.engine()
    stage.child(work)
    stage.sound(engine, AT // 2)
    stage.happens()
    queues.remove_queue(queues.open_queue(queues.locate("plain"), create=False))
    stage.look(engine, SOON)


def _no_queue(_stage, *_):
    set_limit("msgmni", 0)
    queues.remove_queue(queues.open_queue(queues.locate("plain"), create=False))


def _second_engine(stage, *_):
    path = stage.path
    stage.engine()
    stage.path = path


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _leave():
    raise SystemExit


def _refuse():
    raise ConnectionError("the scheduler has gone")


PLAIN = "--channel plain"
COMPACT = "--channel plain --dialect compact"
RESTART = "Restart the service: the plug-in takes nothing of its queue over."
FAULTS = [
    # ---- what a simulated worker does
    Fault(
        "silence", "the worker lives and sends nothing", partial(simulated, fault="silence", after=LATER),
        "silent", "silent", f"{PLAIN} --fault silence",
        "Look at the worker: its log, `nvidia-smi`, a stack (`py-spy dump`). What it waits for is "
        "on its side of the queue.",
    ),
    Fault(
        "drift", "the worker becomes slower and slower", partial(simulated, fault="drift", after=12.0),
        "slower", None, f"{PLAIN} --fault drift",
        "Nothing is lost. Look for what grows on the worker's side: memory, a cache, a clock that throttles.",
    ),
    Fault(
        "burst", "many steps come at once", partial(simulated, fault="burst", after=5.0),
        "burst", None, f"{PLAIN} --fault burst",
        "Nothing is lost: the queue keeps what fits, then the worker waits. Worker or engine "
        "was stopped before, most likely.",
    ),
    Fault(
        "death", "the worker is killed between two steps", partial(simulated, fault="death", after=LATER),
        "worker", "worker", f"{PLAIN} --fault death",
        "`dmesg` tells of the OOM killer, the worker's log of a crash. Restart the service.",
    ),
    Fault(
        "death-in-frame", "the worker is killed when half of a frame is sent",
        partial(
            simulated, fault="death-in-frame", after=LATER, channel="topk", slots=64, load="64,1,21",
            dialect="compact",
        ),
        "incomplete", "worker",
        "--channel topk --load 64,1,21 --dialect compact --fault death-in-frame",
        "As above. The half is dropped, and no other frame is taken along.",
    ),
    Fault(
        "restart", "the worker began anew", partial(simulated, fault="restart", dialect="compact"),
        "restarted", None, f"{COMPACT} --fault restart",
        "Nothing, if it was wanted: frames of the new one are taken from the first on.",
    ),
    Fault(
        "lost", "a step does not come", partial(simulated, fault="lost", dialect="compact"),
        "frames-missing", None, f"{COMPACT} --fault lost",
        "Another process takes messages out of the queue: see what `fd-postproc doctor` says about its "
        "readers. Requests have a hole of a step.",
    ),
    Fault(
        "doubled", "a step comes twice", partial(simulated, fault="doubled", dialect="compact"),
        "frames-doubled", None, f"{COMPACT} --fault doubled",
        "A program puts messages into the queue, as `fd-postproc replay` does: end it.",
    ),
    Fault(
        "reordered", "two steps change places", partial(simulated, fault="reordered", dialect="compact"),
        "frames-reordered", None, f"{COMPACT} --fault reordered",
        "A queue keeps its order: another process takes messages out and puts them back. End it.",
    ),
    Fault(
        "malformed", "messages that do not add up", partial(simulated, fault="malformed"),
        "malformed", None, f"{PLAIN} --fault malformed",
        "Another program writes to the queue; queues are made 0600, so it is the same user's, or root's.",
    ),
    Fault(
        "corrupt", "a bit of a step is wrong", partial(simulated, fault="corrupt", dialect="compact"),
        "malformed", None, f"{COMPACT} --fault corrupt",
        "A frame's checksum does not fit, so nothing of it was used. Test the machine's memory.",
    ),
    Fault(
        "other-build", "the worker is of a build with other sizes", partial(simulated, fault="other-build"),
        "refused", "refused", f"{PLAIN} --fault other-build",
        "Engine and worker have to be of one FastDeploy: see which one each process imports.",
    ),
    Fault(
        "full-size", "FastDeploy's own op sends more than the kernel takes",
        full_size,
        "limits-low", "silent", f"{PLAIN} --fault full-size",
        "(Lower kernel.msgmax to 1024 to try it.) Raise kernel.msgmax and kernel.msgmnb as "
        "`fd-postproc doctor --stock` says, or use the plug-in in the worker, too.",
    ),
    Fault(
        "lowered-limit", "the queue's own limit is lowered below a step",
        partial(simulated, fault="lowered-limit", after=LATER, slots=100, load="100,1,1"),
        "limits-lowered", "silent", f"{PLAIN} --load 100,1,1 --fault lowered-limit",
        "A program has set msg_qbytes. Restart the service: a new queue has kernel.msgmnb.",
    ),
    Fault(
        "removed", "the queue is removed, and the worker notices",
        partial(simulated, fault="removed"),
        "removed", None, f"{PLAIN} --fault removed",
        "A new queue was made at once; steps in the old one are lost. Find out who calls `ipcrm`.",
    ),
    # ---- what happens to the worker
    Fault(
        "stopped", "the worker is stopped",
        partial(happening, what=lambda stage, _, worker: stage.kill(worker, signal.SIGSTOP), after=LATER),
        "stopped", "stopped", "`kill -STOP` a simulated worker.",
        "`kill -CONT` it; or a debugger holds it.",
    ),
    Fault(
        "killed-in-pieces", "workers are killed after each piece of a frame", killed_in_every_piece,
        "incomplete", "worker", "Kill a simulated worker that sends to a queue that is not read.",
        "As of one that is killed between two steps.",
    ),
    Fault(
        "never-sent", "no worker ever sends", never_sent,
        "silent", None, "Start a service whose worker cannot start.",
        "`healthy()` waits for a first token as long as FD_TOKEN_PROCESSOR_HEALTH_TIMEOUT, since a "
        "prefill may take so long. See the worker's log.",
    ),
    Fault(
        "two-workers", "two workers send to one queue",
        partial(
            happening, what=lambda stage, *_: stage.worker(dialect="compact"), dialect="compact",
        ),
        "two-senders", None, f"Twice, at a time: {COMPACT}",
        "One of them is of an earlier service: end it. Each service needs a queue id of its own.",
    ),
    Fault(
        "mixed-versions", "the worker's frames are of another version", of_another_version,
        "refused", "refused", "Install another fd_postproc in the worker's environment.",
        "Install one fd_postproc for engine and workers.",
    ),
    Fault(
        "two-packed-workers", "two workers send packed messages to one queue",
        partial(happening, what=lambda stage, *_: stage.worker(), after=16.0),
        "two-senders", None, f"Twice, at a time: {PLAIN}",
        "As above. Packed messages have no numbers: the kernel's last sender tells the two apart.",
    ),
    Fault(
        "other-dialect", "a worker began anew with another dialect",
        partial(happening, what=_begin_anew, reason=False),
        "other-dialect", None, f"End a simulated worker, then start another: {COMPACT}",
        "Nothing, if it was wanted. Else compare FD_PLUGINS and FD_POSTPROC_DIALECT of both starts.",
    ),
    Fault(
        "slow-worker", "the worker is ten times slower at once",
        partial(changing, step=lambda _: _plain(REQUESTS), pace=lambda n: 0.02 if n < AT else 0.2),
        "slow-worker", None, "End a simulated worker, then start another with --pace 0.2.",
        "Look at the worker's machine: a clock that was lowered, a GPU that is shared, a debugger's log.",
    ),
    Fault(
        "half-batch", "messages have fewer requests than the engine",
        partial(changing, step=lambda n: _plain(REQUESTS if n < AT else REQUESTS // 2)),
        "starved", None, f"{PLAIN} --load 4,1,1, to an engine with eight requests",
        "Compare max_num_seqs of engine and worker. The others' clients wait in vain: restart the service.",
    ),
    Fault(
        "no-tokens", "all counts are -1 from now on",
        partial(changing, step=lambda n: _plain(REQUESTS, n < AT)),
        "empty", None, "A worker that takes every request for a stopped one.",
        "See the worker's log: its stop flags, its sampling. Restart the service.",
    ),
    # ---- what happens to the queue
    Fault(
        "mode", "the queue's mode keeps the worker out", kept_out,
        "permission", "silent", "A program that sets the mode of the queue by `msgctl`.",
        "Run both sides as one user, or set FD_POSTPROC_QUEUE_MODE in the engine, and restart.",
    ),
    Fault(
        "thief", "another process takes a packed message every two seconds",
        partial(happening, what=_thief, after=LONGER, prepare=_report_now_and_then),
        "two-readers", None, "A program that calls `msgrcv` now and then.",
        "End it. Packed messages have no numbers, so no count of lost ones is possible: use compact frames.",
    ),
    Fault(
        "removed-unnoticed", "the queue is removed, and the worker does not notice", unnoticed_removal,
        "removed", "removed", "`ipcrm -q` while FastDeploy's own save ops send.",
        "Restart the service: FastDeploy's own save ops keep the number of the old queue for ever. "
        "Find out who calls `ipcrm`.",
    ),
    Fault(
        "no-queue", "no queue can be made",
        partial(happening, what=_no_queue),
        "queue", "queue", "Lower kernel.msgmni, then remove the queue.",
        "Remove unused queues (`fd-postproc doctor --remove`), or raise kernel.msgmni.",
    ),
    Fault(
        "msgmax", "kernel.msgmax is lowered",
        partial(happening, what=lambda *_: set_limit("msgmax", 4096)),
        "limits-lowered", None, "`sysctl kernel.msgmax=4096` while a simulated worker sends.",
        "Raise it again. Frames come in more pieces meanwhile; FastDeploy's own messages may be refused.",
    ),
    Fault(
        "full", "the queue is full",
        partial(in_a_step, prepare=lambda rig: at_step(rig, AT, hang), after=LATER, pace=0.002),
        "queue-full", "step", "`kill -STOP` the engine while a simulated worker with --pace 0 sends.",
        "The worker waits for room and loses nothing. See why the engine does not read.",
    ),
    Fault(
        "stale", "messages of an earlier run are in the queue", left_by_an_earlier_run,
        "stale", None, "Let a simulated worker send to a queue before the service starts.",
        "Nothing: they were dropped.",
    ),
    Fault(
        "two-engines", "two engines read one queue", partial(happening, what=_second_engine, after=LATER),
        "two-readers", None, "Start two services with one engine worker queue port.",
        "End one, and give each service a port of its own.",
    ),
    # ---- what happens to the engine
    Fault(
        "stuck", "the token thread is stuck in a step",
        partial(in_a_step, prepare=lambda rig: at_step(rig, AT, hang), after=LATER),
        "step", "step", "A scheduler that does not return.",
        "A stack of the engine (`py-spy dump`) says where. Restart the service.",
    ),
    Fault(
        "thread-dead", "the token thread ends",
        partial(in_a_step, prepare=lambda rig: at_step(rig, AT, _leave)),
        "thread", "thread", "Something in a step that raises SystemExit.",
        "Restart the service. The engine's log has the reason.",
    ),
    Fault(
        "memory", "memory is exhausted",
        partial(in_a_step, prepare=lambda rig: short_of_memory(rig, AT)),
        "no-memory", None, "`prlimit --as` of the engine.",
        "Give the engine more memory, or fewer requests. The step's results are lost, the service goes on.",
    ),
    Fault(
        "undelivered", "delivering raises",
        partial(in_a_step, prepare=lambda rig: at_step(rig, AT, _refuse)),
        "undelivered", None, "A scheduler that raises.",
        "The finding names the exception and where it came from; the log has all of it.",
    ),
    Fault(
        "engine-killed", "the engine is killed between two steps",
        partial(happening, what=lambda stage, engine, _: stage.kill(engine), reason=False),
        "engine", None, "`kill -KILL` the engine.",
        "`dmesg` tells of the OOM killer, the engine's log of a crash.",
    ),
    Fault(
        "engine-killed-in-step", "the engine is killed in a step",
        partial(in_a_step, prepare=lambda rig: at_step(rig, AT, _die)),
        "engine", None, "`kill -KILL` the engine under load.",
        "The same.",
    ),
    Fault(
        "engine-stopped", "the engine is stopped",
        partial(
            happening, what=lambda stage, engine, _: stage.kill(engine, signal.SIGSTOP), reason=False,
            after=LATER,
        ),
        "frozen", None, "`kill -STOP` the engine.",
        "`kill -CONT` it. It does not answer meanwhile: a probe needs a time limit of its own.",
    ),
    Fault(
        "engine-was-stopped", "the engine was stopped for eight seconds",
        partial(happening, what=_stop_for_a_while, after=12.0, pace=0.1),
        "frozen", None, "`kill -STOP` the engine, then `kill -CONT`.",
        "Find out who stops it: a debugger, a container that is frozen, a snapshot of the machine.",
    ),
    Fault(
        "gil", "a thread of the engine holds the GIL for seven seconds",
        partial(
            in_a_step, prepare=lambda rig: at_step(rig, AT, _hold_the_gil), after=12.0, reason=False, pace=0.1
        ),
        "frozen", None, "A C extension that computes for seconds and keeps the GIL.",
        "A stack with native frames (`py-spy dump --native`) says which. It has to give the GIL back.",
    ),
    Fault(
        "slow-delivery", "delivery takes 0.3 s", slow_delivery,
        "slow-engine", None, "A scheduler that waits, as for a network.",
        "The text says which stage takes the time. Delivery is FastDeploy's scheduler.",
    ),
    Fault(
        "idle-engine", "the engine runs on an idle priority beside busy processes",
        idle_engine,
        "no-cpu", None, "`chrt --idle -a -p 0 PID` of the engine, on a machine with busy processes.",
        "Give the engine its priority back (`chrt --other -a -p 0 PID`, `renice`), or processors of its own.",
    ),
]  # fmt: skip

"""Plays every fault against a token thread, and writes what is said of each: docs/faults.md.

    python -m tests.record_faults            write the page
    python -m tests.record_faults --check    exit with 1 if the run does not bear the page out

Real processes, queues and messages, with FastDeploy's double (tests/fastdeploy_double).  It needs the right
to make IPC namespaces, and two minutes.
"""

import argparse
import os
import re
import sys
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "faults.md"
LIMIT_S = 5.0  # within which `healthy` has to say what is wrong
LINE = 70  # characters of a line of the log
EVIDENCE = """\
Which evidence decides what a fault is called, and which side it is of. (*): also a word of `healthy()`,
and of the gauge `fd_postproc_unhealthy{reason="..."}`. `doctor` says `worker` and `engine` of a queue whose
sender or reader is gone.

* **Worker or engine?** The engine looks at the queue once a second, whatever the worker does. Where looks are
  missing it is the engine. Where looks find messages in the queue it is the engine, too. Where looks find the
  queue empty it is the worker.
* **A slow step?** Each step has its stages: waiting for the worker, building results, delivering them.
* **A silent worker, or one that is kept out?** The queue's mode stands beside the user of the process."""

INTRODUCTION = """\
# Faults

What goes wrong between worker and engine, and what is said of it: by the engine's log, by `healthy()`
([in FastDeploy](fastdeploy.md#is-it-alive)), by `fd-postproc doctor`, and by `fd-postproc explain`, which has
nothing but the [flight recorder](flight-recorder.md)'s file. A fault has one word wherever it is named; what
each word means and which rule decides is in [evidence](#evidence).

The page is made by a test run that plays each fault with real processes, queues and messages, and
FastDeploy's double around the token thread (`python -m tests.record_faults` in a checkout). The word of
`healthy()` and the first word of `explain` are the same in every run. The other words and the log's line are
those of one run; N stands for numbers. `healthy()` is false within five seconds wherever a reason stands. A
dash means that the service goes on, or that no process is left to ask.

To try a fault, give `python -m tests.lib.simulated_worker QUEUE` in a checkout the arguments below. QUEUE
is the service's `INFERENCE_MSG_QUEUE_ID`, as in its log; its own worker is stopped meanwhile (`kill -STOP`).
"""


def settled(text):
    """Text without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]{6,}|\b[0-9a-f]{16}\b", "N", text)
    # A queue that is gone is reported by the one or the other, by whether a thread waited in it.
    text = re.sub(
        r"\[Errno 22\] (receiving .*): Invalid argument", r"[Errno 43] \1: Identifier removed", text
    )
    text = re.sub(r"\d{4}-\d\d-\d\d[ T][\d:.]+", "N", text)
    text = re.sub(r"(?<![\w.])\d[\d.,]*(e[-+]?\d+)?(?<![.,])(?!\w)", "N", text)
    return re.sub(r"\bN(, N)+\b", "N", text)


def line_of(outcome):
    """The first line of the log that matters."""
    found = [line for line in outcome.log if "fast path" not in line and not re.search("Step \\d+: ", line)]
    if not found:
        return "-"
    text = settled(found[0].removeprefix("fd_postproc: "))
    if len(text) > LINE:
        text = text[:LINE].rsplit(" ", 1)[0] + " ..."
    return text


def cell(text):
    return text.replace("|", "\\|")


def wrong(fault, outcome):
    """What a run does not show that it should; empty if all is well."""
    if outcome.error:
        return f"it could not be played: {outcome.error}"
    if fault.code not in outcome.findings:
        return f"explain does not name it {fault.code}, but {list(outcome.findings)}"
    if outcome.reason != fault.reason:
        return f"healthy says {outcome.reason}, not {fault.reason}"
    if outcome.seconds is not None and outcome.seconds > LIMIT_S:
        return f"healthy took {outcome.seconds:.1f} s"
    return ""


def rows(faults, outcomes):
    """By fault: its cells."""
    found = {}
    for fault in faults:
        outcome = outcomes[fault.name]
        others = sorted(code for code in outcome.findings if code != fault.code)
        doctor = ", ".join(sorted({f"`{code}`" for _, code, _ in outcome.doctor})) or "-"
        found[fault.name] = (
            f"`{fault.name}`",
            fault.title,
            line_of(outcome),
            f"`{fault.reason}`" if outcome.reason else "-",
            doctor,
            ", ".join(f"`{code}`" for code in [fault.code, *others]),
        )
    return found


def page(faults, outcomes):
    lines = [
        INTRODUCTION,
        "| fault | what happens | the log says | `healthy()` | `doctor` | `explain` names |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows(faults, outcomes).values()]
    lines += ["", "## What to do", "", "| fault | what to do | to try it |", "|---|---|---|"]
    lines += [f"| `{fault.name}` | {cell(fault.remedy)} | {cell(_attempt(fault))} |" for fault in faults]
    lines += evidence()
    return "\n".join(lines) + "\n"


def _attempt(fault):
    return f"`{fault.attempt}`" if fault.attempt.startswith("--") else fault.attempt


def evidence():
    """The rules, as `fd_postproc.faults` has them."""
    from fd_postproc.faults import FAULTS, HEALTH

    lines = ["", "## Evidence", "", *EVIDENCE.splitlines(), ""]
    lines += ["| word | side | what has happened | what decides |", "|---|---|---|---|"]
    for word, fault in FAULTS.items():
        mark = " (*)" if word in HEALTH else ""
        lines.append(f"| `{word}`{mark} | {fault.side} | {fault.meaning} | {fault.evidence} |")
    return lines


ROW = re.compile(r"^\| `([\w-]+)` \| (.*) \| (.*) \| (.*) \| (.*) \| `([\w-]+)`.* \|$", re.M)


def invariants(page):
    """Of a page: by fault, its title, `healthy`'s word and `explain`'s; and all that no run makes."""
    rows = {name: (title, reason, word) for name, title, _, reason, _, word in ROW.findall(page)}
    others = [line for line in page.splitlines() if not ROW.match(line)]
    return rows, others


def differing(before, after):
    """What is another, of what does not vary."""
    (old, old_lines), (new, new_lines) = invariants(before), invariants(after)
    rows = [
        f"{name}: {old.get(name)} is {new.get(name)} now"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return [
        *rows, *(f"-{line}" for line in old_lines if line not in new_lines),
        *(f"+{line}" for line in new_lines if line not in old_lines),
    ]  # fmt: skip


def run():
    """Faults, and what became of each."""
    os.environ["FD_POSTPROC_FLIGHT"] = "0"  # of this process itself
    warnings.simplefilter("ignore")
    sys.path[:0] = [str(TESTS / "fastdeploy_double")]
    from tests.lib import fault_stage
    from tests.lib.faults import FAULTS
    from tests.lib.rig import Rig

    why = fault_stage.can_be_staged()
    if why:
        sys.exit(why)
    for channel in ("plain", "topk"):  # what a first processor has to find out, once for all
        Rig(channel, ["a"]).close()
    outcomes = fault_stage.played({fault.name: fault.play for fault in FAULTS}, at_once=6)
    again = {fault.name: fault.play for fault in FAULTS if wrong(fault, outcomes[fault.name])}
    return FAULTS, {**outcomes, **fault_stage.played(again, at_once=1)}  # alone: the machine may be busy


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    faults, outcomes = run()
    bad = {fault.name: wrong(fault, outcomes[fault.name]) for fault in faults}
    for name, text in bad.items():
        if text:
            print(f"{name}: {text}", file=sys.stderr)
    if any(bad.values()):
        sys.exit(1)
    text = page(faults, outcomes)
    if not arguments.check:
        PAGE.write_text(text)
    elif changed := differing(PAGE.read_text(), text):
        sys.exit("docs/faults.md is not what the run shows:\n" + "\n".join(changed))


if __name__ == "__main__":
    main()

"""Plays every fault against a token thread, and writes what is said of each: docs/faults.md.

    python -m tests.record_faults            write the page
    python -m tests.record_faults --check    exit with 1 if the run does not bear the page out

Real processes, queues and messages, with FastDeploy's double (tests/fastdeploy_double).  It needs the right
to make IPC namespaces, and half a minute.
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
LINE = 150  # characters of a line of the log

INTRODUCTION = """\
# Faults

What goes wrong between worker and engine, and what is said of it: by the engine's log, by `healthy()`
([fastdeploy.md](fastdeploy.md#is-it-alive)), by `fd-postproc doctor`, and by `fd-postproc explain`, which has
nothing but the [flight recorder](flight-recorder.md)'s file. The page is made by a test run that plays each
fault with real processes, queues and messages, and FastDeploy's double around the token thread:
`python -m tests.record_faults` in a checkout. Numbers that differ from run to run are shown as N.

`healthy()` is false within five seconds wherever a reason stands, while requests run; a dash means that the
service goes on, or that nobody is left to ask.

To try one, give `fd-postproc worker-sim QUEUE` the arguments below. QUEUE is the service's
`INFERENCE_MSG_QUEUE_ID`, as in its log; its own worker is stopped meanwhile (`kill -STOP`).
"""


def settled(text):
    """Text without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]{6,}|\b[0-9a-f]{16}\b", "N", text)
    # A queue that is gone is told by the one or the other, by whether somebody waited in it.
    text = re.sub(
        r"\[Errno 22\] (receiving .*): Invalid argument", r"[Errno 43] \1: Identifier removed", text
    )
    text = re.sub(r"\d{4}-\d\d-\d\d[ T][\d:.]+", "N", text)
    text = re.sub(r"\b(process|queue|Queue|numbered from) \d+", r"\1 N", text)
    text = re.sub(r"\d[\d.,]*(e-?\d+)? (us|ms|s|min|messages|frames of|steps)\b", r"N \2", text)
    text = re.sub(r"(have recorded|from which) [\d,]+", r"\1 N", text)
    return re.sub(r"(\w+\.py):\d+", r"\1:N", text)


def line_of(outcome):
    """The first line of the log that matters."""
    found = [line for line in outcome.log if "quick way" not in line and not re.search("Step \\d+: ", line)]
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
        doctor = ", ".join(sorted({f"`{code}`" for _, code, _ in outcome.doctor})) or "-"
        found[fault.name] = (
            f"[{fault.title}](#{fault.name})",
            line_of(outcome),
            f"`{fault.reason}`" if outcome.reason else "-",
            doctor,
            f"`{fault.code}`: {settled(outcome.findings[fault.code])}",
        )
    return found


def page(faults, outcomes):
    lines = [
        INTRODUCTION,
        "| fault | the log says | `healthy()` | `doctor` | `explain` names |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows(faults, outcomes).values()]
    for fault in faults:
        title, attempt = fault.title[0].upper() + fault.title[1:], fault.attempt
        others = [code for code in outcomes[fault.name].findings if code not in (fault.code, "unhealthy")]
        if attempt.startswith("--"):
            attempt = f"`fd-postproc worker-sim QUEUE {attempt}`"
        lines += ["", f"## {fault.name}", "", f"{title}.", "", f"* To try it: {attempt}"]
        if others:
            lines.append("* `explain` also says " + ", ".join(f"`{code}`" for code in sorted(others)))
        lines.append(f"* What to do: {fault.remedy}")
    return "\n".join(lines) + "\n"


def differing(before, after):
    """Lines of the page that are others now, but for what may be one or the other."""
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new] + [line for line in new if line not in old]


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
    return FAULTS, fault_stage.played({fault.name: fault.play for fault in FAULTS})


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

"""What was found, as Markdown for benchmarks/RESULTS.md."""

import json
import os
import platform
import shutil
import statistics
import time

from common import OUT, ROOT

SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def _mean(cases, which, contender="op, compact, numbers on the host"):
    return statistics.geometric_mean(max(case["times"][contender][which], 1e-3) for case in cases)


def unknowns(checks, loads, found):
    """Each thing that only a device can tell, with its answer."""

    def passed(name):
        state, words = checks.get(name, (None, "not run"))
        return {True: "yes", False: "**no**", None: "unknown"}[state] + (f" ({words})" if words else "")

    def milliseconds(value):
        return "**it is not loaded**" if value is None else f"{value:.1f} ms"

    lines = [
        ("Does the kernel prove itself where it runs?", passed("the kernel proves itself")),
        ("Bytes are those of the host's packer, all ops and dialects?", passed("test_every_op")),
        ("Does the kernel wait for its stream?", passed("test_the_kernel_waits_for_its_stream")),
        ("Is a capture in another thread left sound?", passed("test_a_capture_in_another_thread")),
        ("Are random messages those of the CPU's packer?", passed("random messages")),
        ("Do two streams keep the order of the calls?", passed("test_two_streams")),
        ("Fork before and after?", passed("test_fork")),
        ("A queue that stays full?", passed("test_a_queue_that_stays_full")),
        *((f"{tool}?", passed(f"compute-sanitizer {tool}")) for tool in SANITIZERS),
        ("How long does loading the kernel take?", milliseconds(loads.get("as it is"))),
        ("And compiling it from PTX?", milliseconds(loads.get("PTX"))),
    ]
    if found:
        host, device = _mean(found, 1), _mean(found, 1, "op, compact, numbers on the device")
        stock = _mean(found, 1, "upstream's pattern")
        lines += [
            ("Is it better that the host decides?", f"readable after {host / device:.2f} of the time"),
            ("How much sooner than by upstream's pattern?", f"{stock / host:.1f} times, geometric mean"),
        ]
    return lines


def report(data):
    """Markdown: what failed, then each thing that was unknown, then the times."""
    checks, found = data["checks"], data["times"]
    failed = [f"* {name}: {words}" for name, (passed, words) in checks.items() if passed is False]
    out = [
        "\n".join(["What failed:\n", *failed]) if failed else "Nothing failed.",
        f"\n{data['machine']}\n",
        "| question | answer |\n|---|---|",
        *(f"| {question} | {answer} |" for question, answer in unknowns(checks, data["loads"], found)),
    ]
    if not found:
        out.append("\nNo IPC namespace with raised limits could be made: nothing was timed.")
        return "\n".join(out)
    out.append(
        "\nMedians in microseconds; 2 accepted tokens a request.  `blocked` is the call behind 2 ms of other"
    )
    out.append("work on the stream, `late` how long after that work the message is in the reader's hands.\n")
    out.append("| batch | columns | contender | caller | readable | cpu | stream | blocked | late |")
    out.append("|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for case in found:
        for name, times in case["times"].items():
            numbers = " | ".join(f"{value:.1f}" for value in [*times, *case["behind_work"][name]])
            out.append(f"| {case['batch']} | {case['cols']} | {name} | {numbers} |")
    out.append("\n| batch | columns | bytes, compact | packed |\n|---:|---:|---:|---:|")
    for case in found:
        sizes = " | ".join(f"{size:,}" for size in case["sizes"].values())
        out.append(f"| {case['batch']} | {case['cols']} | {sizes} |")
    return "\n".join(out)


def machine():
    """What ran this, in a sentence."""
    import fd_postproc
    from tests.lib import real_cuda

    version = ".".join(map(str, fd_postproc.core.cuda.driver_version() or ("?",)))
    return (
        f"{real_cuda.use().name()}, driver for CUDA {version}, fd_postproc {fd_postproc.__version__}, "
        f"{os.cpu_count()} CPU cores, Python {platform.python_version()}; {time.strftime('%Y-%m-%d')}."
    )


def write(data):
    """Write gpu.json into $OUT, and RESULTS.md, with the report in its place."""
    (OUT / "gpu.json").write_text(json.dumps(data, indent=1) + "\n")
    page = OUT / "RESULTS.md"
    shutil.copy(ROOT / "benchmarks" / "RESULTS.md", page)
    begin, end = "<!-- gpu -->\n", "<!-- /gpu -->"
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{report(data)}\n\n{end}{after}")

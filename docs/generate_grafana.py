"""Writes docs/grafana.json, a dashboard for Grafana 11 or newer: one service, or many.

    pip install 'grafana-foundation-sdk==1769699379!11.6.0'      behind the "!" stands Grafana's version
    python docs/generate_grafana.py

`tests/project/test_grafana.py` compares both; each night a Prometheus that scrapes a service evaluates every
expression.
"""

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, prometheus, statetimeline, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement

PAGE = Path(__file__).with_name("grafana.json")
CHOSEN = 'job=~"$job", instance=~"$instance"'
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")


class Panel(NamedTuple):
    """A diagram.

    Attributes
    ----------
    title, text : str
    unit : str
        One of Grafana's ids; "" for the states of a timeline.
    lines : dict of str to str
        What a line is called, behind its instance, and its expression.  `[]` is the interval of a rate; each
        metric gets what the variables choose.
    states : dict of int to (str, str), optional
        Of a state timeline: values, each with its text and color.
    """

    title: str
    text: str
    unit: str
    lines: dict[str, str]
    states: dict[int, tuple[str, str]] | None = None


def once(expression: str) -> str:
    """An expression whose metric begins with its first event; until then 0 for each service."""
    return f"{expression} or on (job, instance) 0 * max by (job, instance) (fd_postproc_active)"


def each_step(seconds: str) -> str:
    """Seconds of a step."""
    return f"({seconds}) / rate(fd_postproc_steps_total[])"


AT_WORK = (
    "rate(fd_postproc_receive_seconds_total[]) - rate(fd_postproc_wait_seconds_total[])"
    " + rate(fd_postproc_build_seconds_total[]) + rate(fd_postproc_put_seconds_total[])"
)
FRAMES = "malformed", "corrupt", "foreign", "missing", "incomplete", "doubled", "reordered", "stale"
LOST = "lost_steps", "undelivered", "failed_requests", "unpaired_drafts", "api_process_gone_requests"
YES_NO = {0: ("FastDeploy's own", "orange"), 1: ("fd_postproc", "green")}

ROWS = {
    "Is it on, is it healthy": [
        Panel(
            "Sides in use",
            "Engine, API server, worker. A side that is FastDeploy's own is right, but slower: "
            "fd-postproc doctor says why. A line without a side is a FastDeploy without the plug-in: "
            "FD_PLUGINS does not name it.",
            "",
            {
                "{{side}}": "fd_postproc_active or on (job, instance)"
                " 0 * max by (job, instance) (fastdeploy:num_requests_running)",
            },
            YES_NO,
        ),
        Panel(
            "Known code",
            "Whether the FastDeploy that runs has the code that this fd_postproc knows. If it is new, or "
            "wrapped, that side falls back: see 'A newer FastDeploy' on the operators' page.",
            "",
            {"{{side}}": "fd_postproc_known"},
            {0: ("new code", "orange"), 1: ("known", "green")},
        ),
        Panel(
            "Reasons of ill health",
            "Red: no tokens come, or soon none, for this reason. The table 'What an alarm means' of the "
            "operators' page says what to do. Blue: the worker is at work and sends nothing, which is no "
            "fault.",
            "",
            {
                "{{reason}}": "max by (job, instance, reason) (fd_postproc_unhealthy)",
                "busy": once("2 * max by (job, instance) (fd_postproc_busy)"),
            },
            {0: ("no", "green"), 1: ("yes", "red"), 2: ("at work", "blue")},
        ),
        Panel(
            "Parts left to FastDeploy",
            "Number of fast paths that FastDeploy's own code takes: right, but slower. Of a worker "
            "without a GPU 'cuda' is one. The metric fd_postproc_fast_path, the log and fd-postproc "
            "doctor name them.",
            "short",
            {"": once("count by (job, instance) (fd_postproc_fast_path == 0)")},
        ),
    ],
    "Traffic": [
        Panel(
            "Tokens a second",
            "Generated tokens that FastDeploy counted.",
            "cps",
            {"": "sum by (job, instance) (rate(fastdeploy:generation_tokens_total[]))"},
        ),
        Panel(
            "Steps and results a second",
            "Decode steps that the engine processed, and results that it made: one for each request in a "
            "step.",
            "cps",
            {"steps": "rate(fd_postproc_steps_total[])", "results": "rate(fd_postproc_results_total[])"},
        ),
        Panel(
            "Requests",
            "FastDeploy's own: requests that run, and those that wait for a slot.",
            "short",
            {
                "running": "sum by (job, instance) (fastdeploy:num_requests_running)",
                "waiting": "sum by (job, instance) (fastdeploy:num_requests_waiting)",
            },
        ),
        Panel(
            "Requests that wait for a first token",
            "Of a decode node: requests whose prefill node has not sent the first token yet. Elsewhere 0.",
            "short",
            {"": once("fd_postproc_waiting_first_tokens")},
        ),
    ],
    "Where the time goes": [
        Panel(
            "Stages of a step",
            "Time of the engine's token thread for one step. 'wait' is waiting for the worker, and no "
            "work. Receive: until the step is decoded. Build: results are made. Put: they go to the "
            "scheduler.",
            "s",
            {
                "wait": each_step("rate(fd_postproc_wait_seconds_total[])"),
                "receive": each_step(AT_WORK.partition(" + ")[0]),
                "build": each_step("rate(fd_postproc_build_seconds_total[])"),
                "put": each_step("rate(fd_postproc_put_seconds_total[])"),
            },
        ),
        Panel(
            "Engine: time a token",
            "Time in which the token thread was at work, for each generated token. It is the thread's, "
            "not CPU time of processes, which FastDeploy's page does not have: take that of the container "
            "or unit.",
            "s",
            {"": f"sum by (job, instance) ({AT_WORK})"
             " / sum by (job, instance) (rate(fastdeploy:generation_tokens_total[]))"},
        ),
    ],
    "What went wrong, since the start of the service": [
        Panel(
            "Fall-backs",
            "How often a part of the plug-in raised, and FastDeploy's own code did the work. The log has "
            "the traceback: please report it.",
            "short",
            {"{{seam}}": once("sum by (job, instance, seam) (fd_postproc_fallbacks_total)")},
        ),
        Panel(
            "Messages refused, missing, foreign",
            "Messages that were refused or dropped, and frames that did not come, came in part, twice or "
            "late: another build, program or service uses the queue, or a sender died.",
            "short",
            {name: f"fd_postproc_{name}_total" for name in FRAMES},
        ),
        Panel(
            "Steps and requests lost",
            "Something raised in the engine, whose log has it; or an API process or the engine ended.",
            "short",
            {
                **{name.replace("_", " "): f"fd_postproc_{name}_total" for name in LOST},
                "engine gone": once("sum by (job, instance) (fd_postproc_engine_gone_requests_total)"),
                "API dispatcher down": once(
                    "sum by (job, instance) (fd_postproc_dispatcher_down_requests_total)"
                ),
                "API dispatcher: {{kind}}": once(
                    "sum by (job, instance, kind) (fd_postproc_api_dispatcher_faults_total)"
                ),
            },
        ),
        Panel(
            "Mended text",
            "How often text, tokens or counts came that FastDeploy would have lost, by kind: 'What "
            "FastDeploy loses' in docs/fastdeploy.md.",
            "short",
            {"{{kind}}": once("sum by (job, instance, kind) (fd_postproc_mended_total)")},
        ),
        Panel(
            "API server: left to FastDeploy",
            "How often part of an answer was FastDeploy's own code, by reason: right, but slower.",
            "short",
            {"{{reason}}": once("sum by (job, instance, reason) (fd_postproc_api_left_total)")},
        ),
    ],
    "Memory": [
        Panel(
            "KV cache in use",
            "FastDeploy's own: the part of the GPU's blocks that requests hold. FastDeploy's page has no "
            "resident memory of its processes: take that of the container or unit.",
            "percentunit",
            {"": "max by (job, instance) (1 - fastdeploy:free_gpu_block_num / fastdeploy:max_gpu_block_num)"},
        ),
    ],
}  # fmt: skip


def page() -> str:
    """The dashboard's JSON."""
    made = (
        Dashboard("fd_postproc")
        .uid("fd-postproc")
        .description("The token post-processor of PaddlePaddle FastDeploy: docs/operators.md")
        .tags(["fastdeploy", "fd_postproc"])
        .time("now-1h", "now")
        .refresh("30s")
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_variable("job", "label_values(fastdeploy:num_requests_running, job)"))
        .with_variable(
            _variable("instance", 'label_values(fastdeploy:num_requests_running{job=~"$job"}, instance)')
        )
    )
    ids = itertools.count(1)
    for title, panels in ROWS.items():
        made = made.with_row(Row(title).id(next(ids)))
        for panel in panels:
            made = made.with_panel(_built(panel, panel.states or len(panels) == 1).id(next(ids)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1) + "\n"


def _variable(name: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(query)
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(model.VariableOption(text="All", value="$__all"))
    )


def _built(panel: Panel, wide: object) -> statetimeline.Panel | timeseries.Panel:
    if panel.states:
        made = statetimeline.Panel().row_height(0.8).line_width(0).fill_opacity(70)
    else:
        made = timeseries.Panel().min(0).line_width(1).fill_opacity(10)
    made = (
        made.title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .unit(panel.unit or "none")
        .span(24 if wide else 12)
        .height(12 if len(panel.lines) > 1 and panel.states else 8)
        .legend(
            common.VizLegendOptions()
            .show_legend(not panel.states)
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
        )
    )
    if panel.states:
        states = {
            str(value): model.ValueMappingResult(text=text, color=color, index=index)
            for index, (value, (text, color)) in enumerate(panel.states.items())
        }
        made = made.mappings([model.ValueMap(options=states)])
    for number, (name, expression) in enumerate(panel.lines.items()):
        made = made.with_target(
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + number))
            .datasource(SOURCE)
            .expr(_chosen(expression))
            .legend_format(f"{{{{instance}}}} {name}".strip())
        )
    return made


def _chosen(expression: str) -> str:
    """An expression of what the dashboard's variables choose."""
    chosen = re.sub(r"\b(?:fd_postproc_|fastdeploy:)\w+", rf"\g<0>{{{CHOSEN}}}", expression)
    return chosen.replace("[]", "[$__rate_interval]")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())

"""The dashboard docs/grafana.json is valid and complete, and a real Prometheus has samples for all of it."""

import contextlib
import json
import math
import re
import runpy
import shutil
import socket
import subprocess
import threading
import urllib.parse
import urllib.request

import pytest

from tests.lib.children import python
from tests.lib.paths import ROOT
from tests.lib.service_tool import TREES, tool, why_not
from tests.lib.waiting import PATIENCE, until
from tests.project.test_alerts import PREFIX, rows

TEXT = (ROOT / "docs" / "grafana.json").read_text()
PANELS = [panel for panel in json.loads(TEXT)["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SCRAPE_S = 1


def test_it_is_what_its_script_makes_and_of_grafana_s_schema():
    """Each key is one that the library's classes read, and write again."""
    pytest.importorskip(
        "grafana_foundation_sdk", reason="needs grafana-foundation-sdk (docs/generate_grafana.py)"
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    made = runpy.run_path(str(ROOT / "docs" / "generate_grafana.py"))["page"]()
    assert made == TEXT, "python docs/generate_grafana.py"
    register_default_plugins()
    read = Dashboard.from_json(json.loads(TEXT))
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == json.loads(TEXT)


def test_each_panel_says_what_it_shows():
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) > 10


def test_each_metric_is_chosen_by_job_and_instance():
    for expression in EXPRESSIONS:
        names = re.findall(r"\b(?:fd_postproc_|fastdeploy:)\w+", expression)
        assert names
        assert expression.count('job=~"$job", instance=~"$instance"}') == len(names), expression


def test_each_metric_of_the_page_is_shown():
    """But those that a line of the page names for a look in another place."""
    shown = set(re.findall(rf"\b{PREFIX}\w+", " ".join(EXPRESSIONS)))
    named = set()
    for cells in rows("Watch"):
        of_row = re.findall(r"`(\w*?)(?:\{([a-z_,]*)\}(\w+))?(?:\{[^`]*)?`", cells[0])
        for begin, middle, end in of_row:
            named |= {f"{begin}{part}{end}" for part in (middle.split(",") if middle else [""])}
    named = {name if name.startswith(PREFIX) else PREFIX + name.lstrip("_") for name in named}
    assert f"{PREFIX}put_seconds_total" in named
    assert named - {PREFIX, f"{PREFIX}up"} == shown


PAGE = """
import json, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from prometheus_client import REGISTRY, Counter, Gauge, generate_latest
from fd_postproc.fastdeploy.events import counters, gauges

class Page(BaseHTTPRequestHandler):
    def do_GET(self):  # plain text always, as FastDeploy's; in OpenMetrics a name loses its colon
        self.send_response(200)
        self.end_headers()
        self.wfile.write(generate_latest(REGISTRY))

    def log_message(self, *_):
        pass

rising = [counters.counter(name) for name in counters.TOTALS]
for name in json.loads(sys.argv[1]):
    rising.append((Counter if name.endswith("_total") else Gauge)(name, "one of FastDeploy's"))
for name in gauges.ABOUT:
    gauges.export(name, {"unhealthy": "reason", "fast_path": "path"}.get(name, "side"), "engine", 1)
server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
while True:
    for one in rising:
        one.inc()
    time.sleep(0.1)
"""
"""What a service would show, where there is none: its registry without what only an event makes."""


@pytest.fixture
def page(tmp_path):
    """The port of a page of metrics: of a real service that works, where a FastDeploy tree is named."""
    if not TREES:
        names = sorted(set(re.findall(r"\bfastdeploy:\w+", " ".join(EXPRESSIONS))))
        with subprocess.Popen(python(PAGE, json.dumps(names)), stdout=subprocess.PIPE, text=True) as process:
            try:
                yield int(process.stdout.readline())
            finally:
                process.terminate()
        return
    if reason := why_not():
        pytest.skip(reason)
    over = threading.Event()
    with tool().server.running(TREES[0], tmp_path / "service", plug_in=True) as service:
        wanted = [case for case in tool().cases.cases("plain") if "prompt" in case.name]

        def work():
            while not over.is_set():
                tool().cases.ask(service, wanted, side_by_side=4)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield service.port("metrics")
        finally:
            over.set()
            thread.join()


@pytest.fixture
def asked(page, tmp_path):
    """A function that has a Prometheus, which scrapes the page, evaluate an expression: its samples."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no expression is evaluated: needs prometheus (Debian's package of that name)")
    text = (ROOT / "docs" / "operators.md").read_text()
    configured = re.search(r"```yaml\n(rule_files:.*?)```", text, re.S)[1].replace("8181", str(page))
    often = f"global: {{scrape_interval: {SCRAPE_S}s}}\n"
    (tmp_path / "prometheus.yml").write_text(often + configured)
    shutil.copy(ROOT / "docs" / "alerts.yml", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [program, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/samples"]
    command += [f"--web.listen-address={address}", "--log.level=error"]

    def ask(expression):
        with contextlib.suppress(OSError):  # it does not listen yet
            query = urllib.parse.urlencode({"query": expression})
            with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=PATIENCE) as answer:
                return [float(one["value"][1]) for one in json.load(answer)["data"]["result"]]

    with subprocess.Popen(command) as process:
        try:
            yield ask
        finally:
            process.terminate()


@pytest.mark.nightly
def test_each_expression_has_samples(asked):
    missing = set()
    for expression in EXPRESSIONS:
        for variable, value in {"$job": ".*", "$instance": ".*", "$__rate_interval": "20s"}.items():
            expression = expression.replace(variable, value)
        missing.add(expression)

    def found():
        missing.difference_update([one for one in missing if any(map(math.isfinite, asked(one) or ()))])
        return not missing

    with contextlib.suppress(AssertionError):
        until(found, 60)
    assert missing == set()

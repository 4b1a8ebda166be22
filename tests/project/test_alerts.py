"""Alerting rules and probe of the operators' page: they name what is there.  .ci/nightly tries the rules."""

import http.server
import re
import threading

import pytest

from fd_postproc.fastdeploy.engine.health.liveness import REASONS
from tests.lib.nursery import nursery
from tests.lib.paths import ROOT
from tests.lib.rows import each
from tests.project.test_documents import anchors

RULES = (ROOT / "docs" / "alerts.yml").read_text()
PAGE = (ROOT / "docs" / "operators.md").read_text()
ALL = {"engine", *REASONS}  # what the gauge may say
PREFIX = "fd_postproc_"


def section(title):
    return re.search(rf"^## {title}\n(.*?)^## ", PAGE, re.M | re.S)[1]


def words(cell):
    return set(re.findall(r"`([\w-]+)`", cell))


def rows(title):
    """Cells of the tables in a section of the page, without headings."""
    lines = re.findall(r"^\| (.*) \|$", section(title), re.M)
    return [line.split(" | ") for line in lines if "`" in line.partition(" | ")[0]]


def test_each_metric_is_one_of_the_plug_in():
    code = "\n".join(path.read_text() for path in (ROOT / "fd_postproc" / "fastdeploy").rglob("*.py"))
    named = {name.removesuffix("_total") for name in re.findall(rf"\b{PREFIX}(\w+)", RULES)}
    assert {"unhealthy", "active", "malformed"} < named
    assert not [name for name in named if not re.search(rf"""["']{name}["'](: |,)""", code)]


def test_each_alarm_of_the_page_is_a_rule():
    alarms = [
        cells[0] for cells in rows("Watch") if not cells[1].startswith("-") and "no alarm" not in cells[1]
    ]
    names = {name for cell in alarms for name in re.findall(rf"`(?:{PREFIX}|_)(\w+)", cell)}
    assert {"unhealthy", "known", "corrupt_total", "engine_gone_requests_total"} < names
    assert not [name for name in names if f"{PREFIX}{name}" not in RULES]


def test_each_reason_has_one_severity_and_the_page_says_which():
    """The rules, the probe and the page's table name the same reasons for a restart."""
    severe, others = re.findall(r'fd_postproc_unhealthy\{reason([=!]~"[^"]+)"\} == 1', RULES)
    assert others.replace("!~", "=~") == severe  # what the one leaves is the other's
    restarting = {*severe.removeprefix('=~"').split("|")}
    assert restarting == {*re.search(r'reasons = "(.+)"', PAGE)[1].split("|")}
    table = rows("In containers and behind probes")
    assert restarting == words(table[0][0])
    assert words(table[1][0]) - {"unhealthy"} <= ALL - restarting
    said = set().union(*(words(cells[0]) for cells in rows("What an alarm means")))
    assert restarting | ALL <= said


def test_each_rule_leads_to_its_place_on_the_page():
    alerts, links = RULES.count("- alert: "), re.findall(r"runbook_url: (\S+)$", RULES, re.M)
    assert alerts == len(links) > 10
    assert {link.partition("#")[0] for link in links} == {"https://runbooks.invalid/operators.html"}
    assert {link.partition("#")[2] for link in links} <= {*anchors(ROOT / "docs" / "operators.md")}


@pytest.fixture
def metrics_page():
    """A server of metrics whose text a test sets, and its port."""

    class Page(http.server.BaseHTTPRequestHandler):
        text, status = "", 200

        def do_GET(self):
            self.send_response(self.status)
            self.end_headers()
            self.wfile.write(self.text.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Page, server.server_address[1]
        server.shutdown()
        thread.join()


def sample(reason, value):
    return f'fd_postproc_unhealthy{{reason="{reason}"}} {value}\n'


HEALTHY = "".join(sample(reason, "0.0") for reason in REASONS) + 'fd_postproc_active{side="engine"} 1.0\n'


@each(
    "status, text, fails",
    [
        (200, HEALTHY, False),
        (200, "", False),
        (404, "", True),
        (500, "Internal Server Error", False),  # a broken file in a folder that outlives the service
        (200, HEALTHY + sample("silent", "1.0"), True),
        (200, HEALTHY + sample("refused", "1.0"), False),
        (200, HEALTHY + 'fd_postproc_busy{side="worker"} 1.0\n', False),
    ],
)
def test_the_probe_fails_where_a_restart_helps(status, text, fails, metrics_page):
    page, port = metrics_page
    page.status, page.text = status, text
    lines = re.search(r"- python3\n +- -c\n +- \|\n(.*?)^ +volumeMounts", PAGE, re.M | re.S)[1].splitlines()
    code = "\n".join(line.strip() for line in lines).replace("8181", str(port))
    done = nursery().run(code)
    assert bool(done.returncode) is fails, done.stderr

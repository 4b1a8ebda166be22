"""The repository's URL is in setup.cfg: without it there is no release, with it an index's page has links."""

import re
import runpy
import shutil
import subprocess
import sys

import pytest
import setuptools

from tests.lib.paths import ROOT

NEEDED = (
    "setup.py", "setup.cfg", "README.md", "CHANGELOG.md", ".ci/release_notes",
    "fd_postproc/_version.py", "fd_postproc/support/environment.py",
)  # fmt: skip
VERSION = re.search(r'"(.+)"', (ROOT / "fd_postproc/_version.py").read_text())[1]
PLACE = "https://example.invalid/fd_postproc"


@pytest.fixture
def tree(tmp_path):
    """A function that makes a tree whose setup.cfg has this URL."""

    def make(url):
        for name in NEEDED:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        text, count = re.subn(r"^url =.*$", f"url = {url}", (ROOT / "setup.cfg").read_text(), flags=re.M)
        assert count == 1
        (tmp_path / "setup.cfg").write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize("url", ["", PLACE])
def test_the_index_s_page_has_no_link_that_leads_nowhere(url, tree, monkeypatch):
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **more: given.update(more))
    monkeypatch.chdir(tree(url))
    runpy.run_path("setup.py")
    links = re.findall(r"\]\(([^)]*)\)", given["long_description"])
    assert [link for link in links if "://" not in link] == []
    if url:
        ours = [link.partition("#")[0] for link in links if link.startswith(url)]
        assert f"{url}/raw/v{VERSION}/benchmarks/plots/engine.png" in ours
        assert f"{url}/blob/v{VERSION}/docs/operators.md" in ours
        for link in ours:
            assert (ROOT / link.split(f"/v{VERSION}/")[1]).exists(), link


def test_a_tag_needs_the_url(tree):
    for url, said in (("", "has no url"), (PLACE, "")):
        command = [sys.executable, tree(url) / ".ci/release_notes", f"v{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode == 0) == (not said)
        assert said in done.stderr

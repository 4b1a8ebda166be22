"""The documents: every public name is described, links lead somewhere, the site has every page."""

import re
import runpy

from tests.lib.page_commands import PAGES
from tests.lib.paths import ROOT
from tests.lib.rows import each

MADE = {"docs/api.md"}  # by .ci/site_pages.py, for the site alone
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def test_every_public_name_is_on_a_page():
    """The site's reference is made from the docstrings; the pages of the tree name what is in it."""
    reference = runpy.run_path(str(ROOT / "docs" / "generate_api.py"))["page"]()
    names = re.findall(r"^### `(\w+)", reference, flags=re.M)
    assert len(names) > 60
    pages = "\n".join(page.read_text() for page in PAGES)
    assert not [name for name in names if f"`{name}`" not in pages]


def prose(page):
    """A page without its code."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page):
    """What a link may name after the #: headings, as GitHub spells them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.M):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@each("page", PAGES)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        if "plots/" in target and not (ROOT / "benchmarks" / "plots").exists():
            continue  # drawn by make_results.py
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_the_site_has_every_page():
    """And no other; .ci/checks/site builds it."""
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert set(named) - MADE == set(NAMES)

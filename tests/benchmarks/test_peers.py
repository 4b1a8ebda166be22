"""Tables of the comparison with other engines, from the recorded results."""

import pytest

from benchmarks.peers import results


def cells(table):
    """Rows of a Markdown table by the text of their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {head.strip("*"): row for head, *row in rows}


@pytest.mark.parametrize("texts", [False, True])
def test_each_measured_cost_stands_in_its_cell(texts):
    whole = results.load()
    table = cells(results.steps_table(whole, texts))
    heads = table.pop("way")
    found = {
        (name, heads[place]): cell
        for name, row in table.items()
        for place, cell in enumerate(row)
        if not cell.startswith("-")
    }
    rows = [row for row in results.steps(whole) if row["load"]["texts"] == texts]
    assert len(rows) > 30
    for row in rows:
        head = f"{results.TOPS[row['load']['top']]}, {row['load']['streams']}"
        assert float(found[row["contender"], head].replace(",", "")) == pytest.approx(row["us"], rel=0.006)


def test_an_engine_that_is_left_out_says_why_and_costs_no_other_its_row(tmp_path):
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    results.save("vllm", results.load()["vllm"], file)
    results.save("sglang", {"left out": "no wheel"}, file)
    blocks = results.blocks(results.load(file))
    assert "no wheel" in blocks["versions"]
    assert "vLLM" in blocks["short"]
    assert set(cells(blocks["texts"])) > {"vLLM"}
    page.write_text("before\n<!-- peers:short -->\nold\n<!-- /peers -->\nafter\n")
    results.fill(page, blocks)
    assert page.read_text().splitlines()[-1] == "after"
    assert "old" not in page.read_text()
    assert blocks["short"] in page.read_text()

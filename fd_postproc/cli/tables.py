"""Tables of a step for a terminal: words and numbers here, drawing by rich."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..core.codes import Code
from ..support.checks import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .._core import Step

_CODES = {0: "0", **{code.value: f"{code.value} {code.text}" for code in Code}}
_FLAGS = {3: "3 target", 4: "4 draft"}


class Row(NamedTuple):
    """One line of a table of requests: an accepted token, or a request without any."""

    request: str
    state: str  # its count or code
    token: str
    rank: str = ""
    logprob: str = ""
    top: str = ""


def count_text(count: int) -> str:
    """An accepted count, or a code with its meaning."""
    return _CODES.get(count) or (str(count) if count > 0 else f"{count} unknown code")


def step_rows(step: Step, top: int, most_requests: int | None = None) -> Iterator[Row]:
    """The lines of a step's requests, with the `top` alternatives to each token.

    Of more than `most_requests` a last line says how many there are.
    """
    counts = step.counts
    shown = counts if most_requests is None else counts[:most_requests]
    for i, count in enumerate(shown):
        yield from _request_rows(step, i, count, top)
    if len(shown) < len(counts):
        rest = counts[len(shown) :]
        tokens = sum(count for count in rest if count > 0)
        yield Row("...", f"{len(rest)} more", plural(tokens, "token"))


def _request_rows(step: Step, i: int, count: int, top: int) -> Iterator[Row]:
    if count <= 0:
        yield Row(str(i), count_text(count), "")
    elif step.scores is None:
        yield Row(str(i), count_text(count), " ".join(map(str, step.token_ids(i))))
    else:
        ids, scores, ranks = step.logprobs(i).slice_columns(0, top + 1).tolists()
        for j in range(count):
            # FastDeploy's first-token messages have logprobs for the first token only; ranks begin at 1.
            known = ranks[j] > 0
            pairs = zip(ids[j][1:], scores[j][1:], strict=True)
            yield Row(
                str(i) if j == 0 else "",
                count_text(count) if j == 0 else "",
                str(ids[j][0]),
                str(ranks[j]) if known else "-",
                f"{scores[j][0]:.3f}" if known else "-",
                # legacy messages fill columns that the worker did not compute with id -1
                " ".join(f"{token}:{score:.2f}" for token, score in pairs if known and token != -1),
            )


def header_rows(step: Step, size: int, mtype: int) -> list[tuple[str, str]]:
    """The content of a message's header, as label and value."""
    meaning = "the worker has more to do" if step.stop_flag > 0 else "the worker has finished"
    stop = f"{step.stop_flag} ({meaning})"
    rows = [("channel", step.channel), ("bytes", f"{size:,}"), ("mtype", str(mtype)), ("stop flag", stop)]
    if step.scores is not None:
        columns = "the layout's; the header has none" if step.dialect == "legacy" else "from the header"
        rows.append(("dialect", step.dialect or "none"))
        rows.append(("columns", f"{step.cols} ({columns})"))
    if step.flag:
        rows.append(("message flag", _FLAGS.get(step.flag, f"{step.flag} unknown")))
    with_tokens = sum(count > 0 for count in step.counts)
    rows.append(("batch", f"{plural(step.batch, 'request')}, {with_tokens} with tokens"))
    rows.append(("tokens", str(step.rows)))
    if step.masks is not None:
        rows.append(("sampling masks", f"of {plural(len(step.masks), 'request')}"))
    if step.weight_version is not None:
        rows.append(("weights", step.weight_version))
    return rows


@dataclass(frozen=True)
class Grid:
    """Rows and columns of text, not yet drawn."""

    # titles; the last may wrap, at spaces; others never do: half a number is a wrong number
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]  # an empty first cell means the same as in the row before
    right: Sequence[int] = ()  # columns that are aligned to the right

    def least_width(self, padding: int) -> int:
        """Screen width below which a number would be cut."""
        from rich.cells import cell_len

        cells = [[title, *(row[k] for row in self.rows)] for k, title in enumerate(self.columns)]
        widths = [max(map(cell_len, column)) for column in cells]
        widths[-1] = max(cell_len(word) for cell in cells[-1] for word in (cell.split() or [""]))
        return sum(widths) + (len(widths) - 1) * (1 + padding) + 2

    def table(self, padding: int = 1) -> Table:
        """Draw the table, with extra spaces between columns."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, padding, 0, 0))
        last = len(self.columns) - 1
        for k, title in enumerate(self.columns):
            side: Literal["left", "right"] = "right" if k in self.right else "left"
            table.add_column(title, justify=side, overflow="fold", no_wrap=k != last)
        for row in self.rows:
            table.add_row(*row)
        return table

    def paragraphs(self) -> Table:
        """Draw each row as a label (its first cell) and one paragraph, which fits any width."""
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in self.rows:
            pairs = zip(self.columns[1:], row[1:], strict=True)
            table.add_row(row[0], ", ".join(f"{title} {cell}" for title, cell in pairs if cell))
        return table


def fitting(width: int, *grids: Grid) -> Table:
    """The first of some ever narrower tables that fits a width completely."""
    for grid in grids:
        for padding in (1, 0):
            if grid.least_width(padding) <= width:
                return grid.table(padding)
    return grids[-1].paragraphs()


def print_table(screen: Console, title: str, *grids: Grid) -> None:
    """Title and table, in the first form that fits the screen."""
    screen.print(title, style="bold")
    screen.print(fitting(screen.width, *grids))


def print_labels(screen: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Labels and values under a title."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    screen.print(title, style="bold")
    screen.print(table)


def requests_table(rows: Sequence[Row], *, logprobs: bool) -> Grid:
    """The table of requests; columns that no row fills are left out."""
    columns = ["request", "count", "token" if logprobs else "tokens"]
    if logprobs:
        columns += ["rank", "logprob"] + (["next best, id:logprob"] if any(row.top for row in rows) else [])
    right = (0, 3, 4) if logprobs else (0,)
    return Grid(columns, [row[: len(columns)] for row in rows], right)

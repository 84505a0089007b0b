"""Sides of a comparison as rows of a table: each figure of every side, the last against the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capacity.answers.records import Estimate, Quantity
from capacity.answers.sides import Change, changes
from capacity.report.display import (
    STANDARD,
    Units,
    rate_and_interval,
    seconds_and_interval,
    time_and_interval,
    usd_interval,
    usd_text,
)

MANY_TIMES = 10.0
TITLES = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "e2e_s": "E2E latency",
    "output_tokens_per_s": "output tokens/s",
    "output_tokens_per_s_per_user": "  per user",
    "output_tokens_per_s_per_gpu": "  per GPU",
    "requests_per_s": "requests/s",
    "usd_per_million_input_tokens": "$ per 1M input",
    "usd_per_million_output_tokens": "$ per 1M output",
    "usd_per_month": "$ a month",
}


def side_rows(sides: Mapping[str, Estimate], units: Units = STANDARD) -> list[dict[str, str]]:
    """A row for each figure: every side with its interval; for each but the first, how far it is from the first."""
    names = list(sides)
    first = sides[names[0]]
    against = {name: {c.figure: c for c in changes(first, sides[name])} for name in names}
    figures = [figure for figure in TITLES if any(figure in found for found in against.values())]
    return [_row(figure, names, against, units) for figure in figures]


def _row(
    figure: str, names: Sequence[str], against: Mapping[str, Mapping[str, Change]], units: Units
) -> dict[str, str]:
    row = {"": TITLES[figure]}
    for name in names:
        change = against[name].get(figure)
        row[name] = "-" if change is None else shown(figure, change.second, units)
        if name != names[0]:
            row[f"{name} against {names[0]}"] = "-" if change is None else change_text(change)
    return row


def shown(figure: str, quantity: Quantity | None, units: Units = STANDARD) -> str:
    """`106.4 ms (80.3 to 160.8 ms)`; - for None."""
    if quantity is None:
        return "-"
    if figure == "usd_per_month":
        return f"${quantity.value:,.0f}"
    if figure == "e2e_s":
        value, interval = seconds_and_interval(quantity)
    elif figure.endswith("_s") and not figure.endswith("per_s"):
        value, interval = time_and_interval(quantity, units)
    elif figure.startswith("usd"):
        value, interval = usd_text(quantity), usd_interval(quantity)
    else:
        value, interval = rate_and_interval(quantity)
    return f"{value} ({interval})" if interval else value


def change_text(change: Change, *, of: str = "") -> str:
    """`+25 %, outside`: by how much (`of` says against what), and whether the intervals are apart; tenfold and more is
    told as times."""
    if change.ratio is None:
        return "-"
    words = {True: ", outside", False: ", within", None: ""}[change.outside]
    if change.ratio >= MANY_TIMES - 1:
        return f"{1 + change.ratio:,.0f} times{of and f' {of}'}{words}"
    return f"{100 * change.ratio:+.0f} %{of and f' against {of}'}{words}"


def settings_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """`gpu h100-sxm-80gb -> b200-sxm-180gb, tensor_parallel_size 4 -> the default`: what differs."""
    names = [name for name in (*first, *second) if first.get(name) != second.get(name)]
    return ", ".join(
        f"{name} {first.get(name, 'the default')} -> {second.get(name, 'the default')}"
        for name in dict.fromkeys(names)
    )

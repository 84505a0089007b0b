"""The use cases as people read them: what each says, and where it is from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from capacity.answers.listings import UseCaseListing
from capacity.report.layout import grid, printed
from capacity.report.tables import listing


def listed_use_cases(cases: Sequence[UseCaseListing], format: str) -> str:
    """As JSON, CSV, or two tables."""
    return printed(list(_tables(cases))) if format == "table" else listing(cases, format, title="Use cases")


def _tables(cases: Sequence[UseCaseListing]) -> Iterator[Table]:
    """The values of all, then the sources of each."""
    values = grid(
        "Use cases",
        ("name", "left"),
        ("prompt", "right"),
        ("CV", "right"),
        ("output", "right"),
        ("CV", "right"),
        ("service levels", "left"),
        ("think, s", "right"),
    )
    for case in cases:
        values.add_row(
            case["name"],
            f"{case['input_len']:,}",
            f"{case['input_len_cv']:g}",
            f"{case['output_len']:,}",
            f"{case['output_len_cv']:g}",
            ", ".join(case["slo"]),
            f"{case['think_time_s']:g}",
        )
    yield values
    sources = grid("Where they are from", ("name", "left"), ("of", "left"), ("basis and source", "left"))
    for case in cases:
        for place, (field, origin) in enumerate(case["sources"].items()):
            sources.add_row("" if place else case["name"], field, origin)
    yield sources

"""Chart of a sweep's points: any numeric result against any varied option."""

from collections.abc import Sequence

from capacity.report.figures.chart import Chart, apply_layout, colour, coordinates, listed, new_figure, symbol
from capacity.report.views.sweep import FIGURES, OPTION, Row, varied_options

MAX_SERIES = 12


def answered_numbers(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the names of the numeric fields in the answers; common metrics such as TTFT come first."""
    found = dict.fromkeys(
        name
        for row in rows
        for name, value in row.items()
        if not name.startswith(OPTION) and isinstance(value, (int, float)) and not isinstance(value, bool)
    )
    first = [name for name, *_ in FIGURES if name in found]
    return (*first, *(name for name in found if name not in first))


def usual_axes(rows: Sequence[Row]) -> tuple[str, str | None]:
    """Return the default x axis (the numeric option with most values), and the option that has one line per value."""
    options = varied_options(rows)
    values = {name: {row.get(name) for row in rows} for name in options}
    numbers = [name for name in options if all(isinstance(v, (int, float)) for v in values[name])]
    over = max(numbers or options, key=lambda name: len(values[name]))
    others = [name for name in options if name != over]
    return over, min(others, key=lambda name: len(values[name]), default=None)


def sweep_points_chart(rows: Sequence[Row], *, x: str, y: str, by: str | None = None) -> Chart:
    """Return the chart of `y` against `x`, one line for each value of `by`; points without `x` or `y` are left out."""
    points = [row for row in rows if isinstance(row.get(y), (int, float)) and row.get(x) is not None]
    series = list(dict.fromkeys("" if by is None else str(row.get(by)) for row in points))
    figure = new_figure()
    for index, name in enumerate(series[:MAX_SERIES]):
        own = [row for row in points if by is None or str(row.get(by)) == name]
        own.sort(key=lambda row: _sort_key(row[x]))
        is_line = len({str(row[x]) for row in own}) == len(own)  # no two points have the same x
        figure.add_scatter(
            **coordinates((row[x], row[y]) for row in own),
            mode="lines+markers" if is_line else "markers",
            name=name or _axis_name(y),
            line={"color": colour(index), "dash": ("solid", "dash", "dot")[index // 6 % 3]},
            marker={"symbol": symbol(index), "size": 9},
        )
    apply_layout(figure, x=_axis_name(x), y=_axis_name(y), height=420)
    shown = min(len(series), MAX_SERIES)
    lines = (
        ""
        if by is None
        else f", a line for each {_axis_name(by)} ({listed(series[:shown])})"
        if series
        else ""
    )
    return Chart(
        name="sweep",
        title=f"{_axis_name(y)} over {_axis_name(x)}",
        alt=f"{len(points):,} of {len(rows):,} points{lines}.",
        figure=figure,
        rows=tuple({x: row[x], y: row[y], **({} if by is None else {by: row.get(by)})} for row in points),
    )


def _sort_key(value: object) -> tuple[bool, float, str]:
    """Return a sort key: numbers by size, then texts."""
    number = isinstance(value, (int, float))
    return not number, float(value) if isinstance(value, (int, float)) else 0.0, str(value)


def _axis_name(name: str) -> str:
    return name.removeprefix(OPTION).removesuffix(".value").replace("_", " ")

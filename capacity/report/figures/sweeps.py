"""Chart of a sweep's points: any numeric result against any varied option."""

from collections.abc import Sequence
from operator import itemgetter

from capacity.base.latency_metrics import METRICS
from capacity.report.display import phrase
from capacity.report.figures.chart import Chart, apply_layout, colour, listed, new_figure, symbol
from capacity.report.views.sweep import FIGURES, OPTION, Row, varied_options
from capacity.report.views.units import group_by, read_columns

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
    series = group_by(points, lambda row: phrase("{}", by and str(row.get(by))))
    figure = new_figure()
    for index, (name, own) in enumerate(list(series.items())[:MAX_SERIES]):
        own.sort(key=lambda row: _sort_key(row[x]))
        is_line = len({str(row[x]) for row in own}) == len(own)  # no two points have the same x
        figure.add_scatter(
            **read_columns(own, x=itemgetter(x), y=itemgetter(y)),
            mode="lines+markers" if is_line else "markers",
            name=name or _axis_name(y),
            line={"color": colour(index), "dash": ("solid", "dash", "dot")[index // 6 % 3]},
            marker={"symbol": symbol(index), "size": 9},
        )
    apply_layout(figure, x=_axis_name(x), y=_axis_name(y), height=420)
    lines = ""
    if by is not None and series:
        lines = f", a line for each {_axis_name(by)} ({listed(list(series)[:MAX_SERIES])})"
    return Chart(
        name="sweep",
        title=f"{_axis_name(y)} over {_axis_name(x)}",
        alt=f"{len(points):,} of {len(rows):,} points{lines}.",
        figure=figure,
        rows=tuple({name: row.get(name) for name in (x, y, by) if name} for row in points),
    )


def _sort_key(value: object) -> tuple[bool, float, str]:
    """Return a sort key: numbers by size, then texts."""
    if isinstance(value, (int, float)):
        return False, float(value), str(value)
    return True, 0.0, str(value)


def _axis_name(name: str) -> str:
    name = name.removeprefix(OPTION).removesuffix(".value")
    metric = METRICS.get(name.removesuffix("_s"))
    return name.replace("_", " ") if metric is None else f"{metric.label}, s"

"""Draw the charts that views declare: bars, panels of bars and curves, with whiskers for intervals."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from capacity.base.quantity import Quantity
from capacity.report.display import (
    STANDARD,
    Units,
    last_supported_place,
    number_text,
    phrase,
    round_like,
    text_and_interval,
)
from capacity.report.figures.chart import (
    DASHES,
    NEUTRAL,
    Chart,
    apply_layout,
    bar_style,
    colour,
    four_digits,
    log_axis,
    new_figure,
    symbol,
)
from capacity.report.layout import token_count_text
from capacity.report.subject import describe_answer
from capacity.report.views.units import Path, Unit, name_units, read_columns, value_at
from capacity.report.views.view import (
    Bars,
    Curves,
    CustomChart,
    Drawing,
    Panels,
    Stack,
    VerticalStack,
    View,
    Waterfall,
)

Numbers = Mapping[str, Mapping[Any, Quantity | None]]
BETTER_COLOUR, WORSE_COLOUR = 2, 5  # colours of a waterfall
MIN_TEXT_SHARE = 0.06  # share of a whole bar below which parts have no text
SMALLEST_TEXT = 11  # px; bars too short for it have no text
LABEL_SHARE, LABEL_PX = 0.2, 15  # width of a mark's label as a share of the x axis, and its height
MOST_MARKERS = 40  # points of a curve with a marker at each


def draw_charts(view: View, answer: Any) -> list[Chart]:
    """Return the charts of an answer's view."""
    drawn = (draw_block(block, answer) for block in view.blocks if isinstance(block, (Drawing, CustomChart)))
    return [chart for chart in drawn if chart.rows]


def draw_block(block: Drawing | CustomChart, answer: Any, units: Units = STANDARD) -> Chart:
    """Return the chart of a block of a view: a declared drawing, or a chart with its own drawing function."""
    return block.draw_in(units) if isinstance(block, CustomChart) else draw_chart(block, answer, units)


def draw_chart(drawing: Drawing, answer: Any = None, units: Units = STANDARD) -> Chart:
    """Return the chart of a declared drawing; its subject line describes `answer`. Without data, it has no `rows`."""
    scale = drawing.unit.scale_for(units)
    numbers = {
        name_units(name, units): {
            label: None if v is None else to_quantity(v).scale(scale) for label, v in row.items()
        }
        for name, row in drawing.data.items()
    }
    labels = list(dict.fromkeys(label for row in numbers.values() for label in row))
    x, y, title, alt = (
        name_units(text, units) for text in (drawing.labels, drawing.axis, drawing.title, drawing.alt)
    )
    rows = [{name_units(name, units): each for name, each in row.items()} for row in drawing.rows]
    figure = DRAW_FUNCTIONS[type(drawing)](drawing, numbers, labels, x, y)
    reference, words = drawing.reference
    if reference is not None:
        add_line = figure.add_vline if isinstance(drawing, (Bars, Stack)) else figure.add_hline
        line = {"color": NEUTRAL, "dash": "dash", "width": 2}
        add_line(reference, line=line, annotation_text=words, annotation_position="bottom left")
    _add_marks(figure, drawing, labels, scale)
    for label, whole in drawing.wholes.items():
        add_interval(figure, label, whole, scale)
    return Chart(
        name=drawing.name,
        title=title,
        alt=alt,
        figure=figure,
        subject=describe_answer(answer),
        rows=tuple(rows or ({x: label, **_row(numbers, label)} for label in labels)),
    )


def _add_marks(figure: Any, drawing: Drawing, labels: Sequence[Any], scale: float) -> None:
    """Add a vertical line for each mark of a drawing. On bars the legend names it, because a text would cover them."""
    marks = [(words, at) for words, at in drawing.marks.items() if at is not None]
    for place, (words, at) in enumerate(marks):
        line = {"color": NEUTRAL, "dash": "dot" if place else "dash", "width": 2}
        if isinstance(drawing, Curves):
            crowded = _is_crowded(figure, labels, at, [other for _, other in marks if other < at])
            _add_mark_label(figure, words, at, place, right=crowded)
        else:
            at *= scale
            name = f"{words} {four_digits(at)}"
            figure.add_scatter(name=name, x=[at], y=labels[:1], mode="lines", line=line, hoverinfo="skip")
        figure.add_vline(at, line=line)


def _is_crowded(figure: Any, labels: Sequence[float], at: float, others: Sequence[float]) -> bool:
    """Return whether a label left of the mark at `at` covers one of the marks `others`, and has room on the right."""
    if not others:
        return False
    convert = math.log10 if figure.layout.xaxis.type == "log" else float
    low, high = convert(min(labels)), convert(max(labels))
    near = convert(at) - convert(max(others)) < LABEL_SHARE * (high - low)
    return near and convert(at) < high - LABEL_SHARE * (high - low)


def _add_mark_label(figure: Any, words: str, at: float, place: int, *, right: bool) -> None:
    """Label the line at x = `at`: at the top of the plot if `place` is 0, else at the bottom, one above the other."""
    figure.add_annotation(
        x=math.log10(at) if figure.layout.xaxis.type == "log" else at,  # annotations need the logarithm
        y=0.0 if place else 1.0,
        yref="paper",
        text=words,
        showarrow=False,
        xanchor="left" if right else "right",
        yanchor="bottom" if place else "top",
        xshift=3 if right else -3,
        yshift=LABEL_PX * max(place - 1, 0),
    )


def to_quantity(value: float | Quantity) -> Quantity:
    """Convert a plain number to a quantity without an interval; return a quantity unchanged."""
    return value if isinstance(value, Quantity) else Quantity(value=value)


def _row(numbers: Numbers, label: Any) -> dict[str, object]:
    """Return a table row: the values of all series at this label, and the bounds of their intervals."""
    found = {name: row.get(label) for name, row in numbers.items()}
    cells: dict[str, object] = {name: each and round_like(each.value, each) for name, each in found.items()}
    for name, each in found.items():
        for end in ("low", "high"):
            if (value := getattr(each, end, None)) is not None:
                cells[f"{name}, {end}"] = round_like(value, each)
    return cells


def _draw_bars(drawing: Drawing, numbers: Numbers, labels: Sequence[Any], _x: str, y: str) -> Any:
    figure, log = new_figure(), drawing.log
    origin = (drawing.reference[0] or 0.0) if log else 0.0
    values = [each.value for row in numbers.values() for each in row.values() if each]
    signed = min(values, default=0.0) < 0
    place = "outside" if signed else "inside"
    # outside texts would collide with whiskers
    if log or (signed and _interval_ends(numbers) != [value for value in values if value]):
        place = "none"
    for index, (name, row) in enumerate(numbers.items()):
        bars = [row.get(label) for label in labels]
        figure.add_bar(
            name=name,
            y=labels,
            x=[each and each.value - origin for each in bars],
            base=[origin] * len(labels) if origin else None,
            orientation="h",
            showlegend=len(numbers) > 1,
            customdata=[_hover_text(each, drawing.unit) for each in bars],
            hovertemplate=f"{name}: %{{customdata}}<extra>%{{y}}</extra>",
            **_bar_options(drawing.unit, index, bars, place, "x"),
        )
    figure.update_yaxes(autorange="reversed")
    apply_layout(figure, x=y, y="", height=150 + max(40, 18 * len(numbers)) * len(labels), barmode="group")
    figure.update_layout(uniformtext={"minsize": SMALLEST_TEXT, "mode": "hide"})
    if drawing.ends is not None:
        figure.update_xaxes(range=drawing.ends, nticks=5, zeroline=True, zerolinecolor=NEUTRAL)
    elif log:
        figure.update_xaxes(**log_axis([*([0.5, origin] if origin else []), *_interval_ends(numbers)]))
    elif signed:
        figure.update_xaxes(zeroline=True, zerolinecolor=NEUTRAL)
    else:  # the widest whiskers belong to the longest bars and are cut
        figure.update_xaxes(range=[0, 1.2 * max(values, default=1.0)])
    return figure


def _hover_text(number: Quantity | None, unit: Unit) -> str:
    """Return a number with its interval; an amount of money has its symbol."""
    if number is None or not unit.symbol:
        return text_with_interval(number)
    text, within = unit.texts_of_scaled(number)
    return text + phrase(" ({})", within)


def _interval_ends(numbers: Numbers) -> list[float]:
    """Return all values and interval bounds except 0, which a logarithmic axis cannot show."""
    known = (each for row in numbers.values() for each in row.values() if each)
    return [end for each in known for end in (each.low, each.value, each.high) if end]


def _draw_stack(drawing: Drawing, numbers: Numbers, labels: Sequence[Any], _x: str, y: str) -> Any:
    figure = new_figure()
    least_shown = [MIN_TEXT_SHARE * whole for whole in _sums(numbers, labels)]
    for index, (name, row) in enumerate(numbers.items()):
        bars = [to_quantity(row.get(label) or 0.0) for label in labels]
        texts = [
            value_text(each, drawing.unit) if each.value > least else ""
            for each, least in zip(bars, least_shown, strict=True)
        ]
        style = {"text": texts, "insidetextanchor": "middle", "textposition": "inside", "textangle": 0}
        figure.add_bar(
            name=f"{name} {value_text(bars[0], drawing.unit)}" if len(labels) == 1 else name,
            y=labels,
            **read_columns(bars, x="value", customdata=text_with_interval),
            orientation="h",
            hovertemplate=f"{name}: %{{customdata}}<extra>%{{y}}</extra>",
            **style,
            **bar_style(index),
        )
    height = 180 + 60 * len(labels) + 30 * len(drawing.marks)
    apply_layout(figure, x=y, y="", height=height, barmode="stack")
    figure.update_yaxes(autorange="reversed")
    return figure


def add_interval(figure: Any, label: Any, whole: Quantity | None, scale: float) -> None:
    """Mark the value `whole` at `label`, with a whisker for its 90 % interval; add nothing without an interval."""
    if value_at(whole, "interval") is None:
        return
    assert whole is not None
    figure.add_scatter(
        name="90 % interval",
        showlegend=all(trace.name != "90 % interval" for trace in figure.data),
        x=[scale * whole.value],
        y=[label],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 14, "color": NEUTRAL},
        error_x={**whiskers([whole], scale=scale), "thickness": 2},
        hovertemplate=f"{label}: {text_with_interval(whole, scale)}<extra></extra>",
    )


def _draw_upright_stack(_: Drawing, numbers: Numbers, labels: Sequence[Any], x: str, y: str) -> Any:
    figure = new_figure()
    for index, (name, row) in enumerate(numbers.items()):
        figure.add_bar(
            name=name,
            **read_columns(row.items(), x="{0[0]}".format, y="1.value"),
            hovertemplate=f"%{{x}}: %{{y}} {y}<extra>{name}</extra>",
            **bar_style(index),
        )
    apply_layout(figure, x=x, y=y, height=330, barmode="stack")
    figure.update_xaxes(type="category")
    figure.update_yaxes(
        rangemode="tozero", dtick=math.ceil(max(_sums(numbers, labels), default=0.0) / 6) or 1
    )
    return figure


def _sums(numbers: Numbers, labels: Sequence[Any]) -> list[float]:
    return [sum(each.value for row in numbers.values() if (each := row.get(label))) for label in labels]


def _draw_panels(drawing: Drawing, numbers: Numbers, labels: Sequence[Any], x: str, _y: str) -> Any:
    figure = new_figure(rows=len(numbers), vertical_spacing=0.08)
    apply_layout(figure, x="", y="", height=220 * len(numbers) + 60)
    for index, (name, row) in enumerate(numbers.items()):
        bars = [row.get(label) for label in labels]
        figure.add_bar(
            name=name,
            x=list(map(str, labels)),
            **read_columns(bars, y="value"),
            hovertemplate=f"%{{x}} {x}: %{{text}}<extra>{name}</extra>",
            showlegend=False,
            row=index + 1,
            col=1,
            **_bar_options(drawing.unit, index, bars, "inside", "y"),
        )
        figure.update_yaxes(title_text=name, rangemode="tozero", row=index + 1, col=1)
    figure.update_xaxes(title_text=x, type="category", row=len(numbers), col=1)
    return figure


def _draw_waterfall(drawing: Drawing, numbers: Numbers, labels: Sequence[Any], _x: str, y: str) -> Any:
    assert isinstance(drawing, Waterfall)
    (row,) = numbers.values()
    values = [to_quantity(value) for value in row.values() if value is not None]
    steps = list(zip(labels[1:], values, values[1:], strict=False))
    figure = new_figure()
    for kind, shade in (("better", BETTER_COLOUR), ("worse", WORSE_COLOUR)):
        moved = [
            (label, before.value, after.value - before.value)
            for label, before, after in steps
            if (after.value == before.value or (after.value > before.value) is drawing.rising)
            is (kind == "better")
        ]
        figure.add_bar(
            **read_columns(moved, y="0", base="1", x="2"),
            orientation="h",
            name=kind,
            hovertemplate="%{y}<extra></extra>",
            **bar_style(shade),
        )
    figure.add_scatter(
        y=labels,
        **read_columns(values, x="value", text=text_with_interval),
        mode="markers",
        name="value after this technique, 90 % interval",
        marker={"color": NEUTRAL, "symbol": "line-ns-open", "size": 12},
        error_x=whiskers(values),
        hovertemplate="%{y}: %{text}<extra></extra>",
    )
    apply_layout(figure, x=y, y="", height=150 + 30 * len(labels), barmode="overlay")
    figure.update_xaxes(**log_axis(_interval_ends(numbers)))
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=labels)
    return figure


def _draw_curves(drawing: Drawing, numbers: Numbers, labels: Sequence[Any], x: str, y: str) -> Any:
    figure = new_figure()
    for index, (name, row) in enumerate(numbers.items()):
        many = len(row) > MOST_MARKERS  # then the dash distinguishes the lines
        dash = DASHES[index % len(DASHES) if many else 0]
        figure.add_scatter(
            name=name,
            x=list(row),
            **read_columns(row.values(), y="value", text=text_with_interval),
            mode="lines" if many else "lines+markers",
            line={"color": colour(index), "width": 2.5, "dash": dash},
            marker={"symbol": symbol(index), "size": 9},
            error_y=whiskers(row.values(), shade=colour(index)),
            hovertemplate=f"{name}, {x} %{{x:,}}: %{{text}}<extra></extra>",
        )
    apply_layout(figure, x=x, y=y, height=400)
    if drawing.shares:
        figure.update_xaxes(tickformat=".0%")
    elif not drawing.linear:
        figure.update_xaxes(
            type="log", tickvals=labels, ticktext=[token_count_text(label) for label in labels]
        )
    if drawing.log:
        figure.update_yaxes(**log_axis(_interval_ends(numbers)))
    else:
        figure.update_yaxes(rangemode="tozero", range=drawing.top and [0, drawing.top])
    return figure


DRAW_FUNCTIONS: Mapping[type, Callable[[Drawing, Numbers, Sequence[Any], str, str], Any]] = {
    Bars: _draw_bars,
    Stack: _draw_stack,
    VerticalStack: _draw_upright_stack,
    Panels: _draw_panels,
    Waterfall: _draw_waterfall,
    Curves: _draw_curves,
}


def _bar_options(
    unit: Unit, index: int, values: Sequence[Quantity | None], place: str, axis: str
) -> dict[str, object]:
    """Return text and whiskers of bars. The text is at the start of a bar because the whisker is at the bar's end."""
    return {
        "text": [value_text(each, unit) for each in values],
        "textposition": place,
        "insidetextanchor": "start",
        "textangle": 0,
        f"error_{axis}": whiskers(values),
        **bar_style(index),
    }


def value_text(number: Quantity | None, unit: Unit) -> str:
    """Format a number that is already in the reader's unit; "-" for None. Money has its symbol; other numbers have the
    digits that their interval supports, else three."""
    if number is None:
        return "-"
    if unit.symbol:
        return unit.texts_of_scaled(number)[0]
    if last_supported_place(number) is None:
        value = round_like(number.value)
        shown = round(value, unit.digits) if unit.digits else value
        return f"{shown:{unit.sign},.12g}{unit.after}"
    return number_text(number.value, number)


def whiskers(
    records: Collection[Any], path: Path = "", scale: float = 1.0, shade: str = NEUTRAL
) -> dict[str, object]:
    """Return the plotly error bars of the quantities at `path`, from low to high; one without an interval has none."""
    lengths = [_whisker_lengths(value_at(record, path), scale) for record in records]
    ends = read_columns(lengths, arrayminus="0", array="1")
    visible = any(map(any, lengths))
    return {"type": "data", "symmetric": False, **ends, "color": shade, "visible": visible}


def _whisker_lengths(quantity: Quantity | None, scale: float) -> tuple[float, float]:
    """Return the lengths of a quantity's whiskers below and above it; 0 without an interval."""
    ends = value_at(quantity, "interval")
    if quantity is None or ends is None:
        return 0.0, 0.0
    return scale * (quantity.value - ends[0]), scale * (ends[1] - quantity.value)


def text_with_interval(quantity: Quantity | None, scale: float = 1.0) -> str:
    """Return a number with its interval: `110 (80 to 160)`; without an interval, with four digits; "-" for None."""
    if quantity is None:
        return "-"
    value, interval = text_and_interval(quantity, scale)
    return f"{value} ({interval})" if interval else four_digits(quantity.value * scale)

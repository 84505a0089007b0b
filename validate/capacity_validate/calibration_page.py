"""The page of `capacity calibrate`: metrics and parameters before and after the calibration."""

from functools import partial

from capacity.report.views.units import TEXT
from capacity.report.views.view import Block, Column, Table, View
from capacity_validate.calibrating import Calibration
from capacity_validate.calibrating_runs import RunCalibration
from capacity_validate.comparison_page import error_text, metric_title
from capacity_validate.posterior import EvaluatedFigure


def calibration_view(answer: RunCalibration | Calibration) -> View:
    """Return the view of a calibration: metrics and parameters before and after it, or its text lines for kernels."""
    if isinstance(answer, Calibration):
        return View("", answer.lines()[:-1])

    def error(moment: str, figure: EvaluatedFigure) -> str:
        return error_text(getattr(figure, moment) / figure.measured - 1)

    def title(figure: EvaluatedFigure) -> str:
        name, of, run = figure.name.partition(" of ")
        return metric_title(name) + of + run

    figures = [
        *(Column("metric", title), Column("measured", lambda figure: f"{figure.measured:,.5g}", TEXT)),
        *(Column(f"error {moment}", partial(error, moment), TEXT) for moment in ("before", "after")),
    ]
    parameters = [
        Column("parameter", "title"),
        *(Column(moment, f"interval_texts.{side}", TEXT) for side, moment in enumerate(("before", "after"))),
    ]
    informed = [each for each in answer.parameters if each.is_informed]
    unseen = [each.title for each in answer.parameters if not each.is_informed]
    blocks: list[Block] = [
        f"{answer.profile}: fitted to {len(answer.figures)} metrics of {len(answer.sources)} file(s), {answer.model} "
        f"on {answer.engine}, based on {answer.base}",
        *(f"[yellow]Contradiction: {text}" for text in answer.contradictions),
        Table("Errors before and after calibration", answer.figures, figures, name="calibrated_metrics"),
        Table(
            "Parameters before and after (90 % intervals; x: factor on a time)",
            informed,
            parameters,
            name="calibrated_parameters",
        ),
        *([f"No information about: {'; '.join(unseen)}"] if unseen else []),
    ]
    return View("", blocks, notes=answer.notices)

"""Sweeps page: the configurations that `capacity sweep` evaluated, from its database or export, as chart and table."""

from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.report.figures.sweeps import answered_numbers, sweep_points_chart, usual_axes
from capacity.report.views.sweep import varied_options
from capacity.service.jobs import Task
from capacity_app import parts, state
from capacity_app.example_files import SWEEP, read_files
from capacity_app.widgets import widget_row

NONE = "no lines"
OUTCOMES = {"Done": "done", "Do not fit": "does not fit", "Failed": "failed"}  # status by label


paths = read_files(
    "Sweep results",
    "sweep_file",
    SWEEP,
    type=("csv", "json", "sqlite", "db"),
    help="The database of `capacity sweep`, or its output with `--export FILE.csv` or `--format json`.",
)
task = Task(function="capacity.planning.sweeps.sweep_results:sweep_results", arguments={"path": paths[0]})
found = parts.run_in_background("sweep", task, doing="Reading")
parts.draw_code_snippets(None, Path(paths[0]).name, {}, None, function="sweep_results")
rows = found.ready_value
options, numbers = varied_options(rows), answered_numbers(rows)
ended = [str(row.get("status")) for row in rows]
counts = {label: ended.count(status) for label, status in OUTCOMES.items()}
parts.draw_kpis([parts.Kpi(label, f"{count:,}") for label, count in {"Points": len(rows), **counts}.items()])
if not options or not numbers:
    raise InvalidInput("no chart: no option varies between the points, or no point has an answer")
with widget_row():
    usual_over, usual_lines = usual_axes(rows)
    # a link may contain an option of another sweep
    number = state.choice("Y axis", "sweep_y", tuple(numbers), numbers[0], width=240)
    over = state.choice("X axis", "sweep_x", tuple(options), usual_over, width=240)
    lines = state.choice("Lines", "sweep_by", (NONE, *options), usual_lines or NONE, width=240)
by = None if lines in (NONE, over) else lines
parts.draw_chart(sweep_points_chart(rows, x=over, y=number, by=by))
parts.draw_table("points", rows, alt="Every point, with its options, its status and its results.")

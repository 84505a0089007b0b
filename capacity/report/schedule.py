"""Schedules as text: a table of steps, and a chart with a row for each request and a column for each step."""

from collections.abc import Mapping, Sequence
from typing import Any

from capacity.report.display import phrase

MAX_COLUMNS = 160  # steps of one block of the chart


def steps_table(schedule: Mapping[str, Any]) -> str:
    """Return one line per step: start, end, free KV blocks, the scheduled requests as `name:tokens@computed` (tokens
    in the step, tokens computed before it), preempted and finished requests."""
    lines = [schedule_heading(schedule), f"{'start s':>10} {'end s':>10} {'free':>6}  rows"]
    for start_s, end_s, rows, preempted, finished, free in schedule["steps"]:
        shown = " ".join(_row_text(row) for row in rows)
        ended = {"preempted": preempted, "finished": finished}
        notes = [f"{event} {', '.join(names)}" for event, names in ended.items() if names]
        lines.append(f"{start_s:>10.6g} {end_s:>10.6g} {free:>6}  {'; '.join([shown, *notes])}")
    return "\n".join(lines)


def text_gantt(schedule: Mapping[str, Any]) -> str:
    """Return a text chart with one line for each request and one column for each step.

    `P` prefill, `d` decode, `v` decode with drafts, `x` preempted, `.` idle. All columns have the same width; the
    durations of steps are not drawn.
    """
    steps = schedule["steps"]
    names = list(dict.fromkeys(row[0] for step in steps for row in step[2]))
    width = max((len(str(name)) for name in names), default=0)
    lines = [schedule_heading(schedule)]
    for first in range(0, len(steps), MAX_COLUMNS):
        part = steps[first : first + MAX_COLUMNS]
        lines.append(
            f"steps {first} to {first + len(part) - 1}, from {part[0][0]:.6g} s to {part[-1][1]:.6g} s"
        )
        lines += [f"{name!s:>{width}} {_request_bar(name, part, steps, first)}" for name in names]
    return "\n".join(lines)


def schedule_heading(schedule: Mapping[str, Any]) -> str:
    """Return the scenario's name and engine, how the run ended, and the rejected requests."""
    scenario = schedule["scenario"]
    ending = schedule["status"] + phrase(": {}", schedule["error"])
    rejected = phrase(", rejected {}", ", ".join(schedule["rejected"]))
    return f"{scenario.get('name', 'scenario')} ({schedule['engine']}): {ending}{rejected}"


def radix_table(program: Mapping[str, Any]) -> str:
    """Return one line for each operation of a radix-cache program."""
    lines = [f"{'operation':>10} {'result':>7} {'evictable':>9} {'protected':>9} {'total':>7}"]
    for op in program["trace"]["ops"]:
        result = "-" if op["result"] is None else op["result"]
        lines.append(f"{op['op']:>10} {result:>7} {op['evictable']:>9} {op['protected']:>9} {op['total']:>7}")
    return "\n".join(lines)


def _row_text(row: Sequence[Any]) -> str:
    name, tokens, computed, *drafts = row
    return f"{name}:{tokens}@{computed}" + "".join(phrase("+{}", count) for count in drafts[:1])


def _request_bar(name: str, part: Sequence[Any], steps: Sequence[Any], first: int) -> str:
    active = [i for i, step in enumerate(steps) if any(row[0] == name for row in step[2])]
    cells = []
    for index, step in enumerate(part, start=first):
        row = next((row for row in step[2] if row[0] == name), None)
        if row is not None:
            cells.append("v" if len(row) > 3 and row[3] else "d" if row[1] == 1 and row[2] else "P")
        elif name in step[3]:
            cells.append("x")
        else:
            cells.append("." if active[0] < index < active[-1] else " ")
    return "".join(cells).rstrip()

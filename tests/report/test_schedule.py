"""Schedules as tables and charts, of one written by hand."""

from __future__ import annotations

from capacity.report.schedule import MAX_COLUMNS, radix_table, schedule_heading, steps_table, text_gantt

# start, end, rows (name, tokens, computed, drafts), preempted, finished, free blocks
STEPS = [
    (0.0, 0.5, [("a", 8, 0)], [], [], 9),
    (0.5, 0.6, [("a", 1, 8), ("b", 4, 0)], [], [], 8),
    (0.6, 0.7, [("b", 3, 4, 2)], ["a"], [], 8),
    (0.7, 0.8, [("b", 1, 9)], [], ["b"], 9),
    (0.8, 0.9, [("a", 9, 0)], [], ["a"], 10),
]
SCHEDULE = {
    "scenario": {"name": "two"}, "engine": "vllm-v1", "status": "finished", "error": None, "rejected": [],
    "steps": STEPS,
}  # fmt: skip


def test_a_row_a_request_and_a_column_a_step() -> None:
    lines = text_gantt(SCHEDULE).splitlines()
    assert lines[1] == "steps 0 to 4, from 0 s to 0.9 s"
    assert lines[2:] == ["a Pdx.P", "b  Pvd"]


def test_long_schedules_come_in_blocks() -> None:
    steps = [(i, i + 1, [("a", 1, i + 1)], [], [], 0) for i in range(MAX_COLUMNS + 1)]
    lines = text_gantt(SCHEDULE | {"steps": steps}).splitlines()
    assert [line for line in lines if line.startswith("a ")] == [f"a {'d' * MAX_COLUMNS}", "a d"]


def test_a_line_a_step() -> None:
    lines = steps_table(SCHEDULE).splitlines()
    assert lines[0] == schedule_heading(SCHEDULE) == "two (vllm-v1): finished"
    assert len(lines) == 2 + len(STEPS)
    assert lines[4].split() == ["0.6", "0.7", "8", "b:3@4+2;", "preempted", "a"]


def test_how_it_ended_and_who_was_rejected() -> None:
    ended = SCHEDULE | {"status": "stalled", "error": "no room", "rejected": ["c", "d"]}
    assert schedule_heading(ended) == "two (vllm-v1): stalled: no room, rejected c, d"


def test_a_radix_program_is_a_line_an_operation() -> None:
    op = {"op": "match", "result": None, "evictable": 3, "protected": 4, "total": 7}
    assert radix_table({"trace": {"ops": [op]}}).splitlines()[1].split() == ["match", "-", "3", "4", "7"]

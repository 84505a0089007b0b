"""Work under way on a page: run, shared, left, stale, and cancelled only when nobody else waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from capacity_app.sessions import runner
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.testing.v1 import AppTest

from capacity.service.jobs import Job

WAIT_S = 120.0


def page(requests: int, button: str | None) -> None:
    """A page with one simulation on it."""
    import streamlit as st
    from capacity_app import parts

    from capacity.service.jobs import Task

    arguments = {
        "model": "llama-3.1-8b",
        "gpu": "h100",
        "input_len": 500,
        "output_len": 50,
        "request_rate": 5.0,
        "num_prompts": st.number_input("n", value=requests, key="n"),
    }
    task = Task(function="capacity:simulate", arguments=arguments, reports=True)
    answer = parts.run_in_background("run", task, doing="Simulating", button=button)
    st.session_state.answer = answer


def session(requests: int, button: str | None = None) -> Any:
    return AppTest.from_function(page, args=(requests, button), default_timeout=WAIT_S).run()


def job_of(at: Any) -> Job:
    found: Job = at.session_state["_work_run"]["job"]
    return found


def test_an_answer_comes_and_goes_stale_until_the_next_one() -> None:
    at = session(50)
    job_of(at).ended.wait(WAIT_S)
    at.run()
    assert at.session_state.answer.value.run.to_dict()["completed"] == 50
    assert not at.session_state.answer.stale
    at.number_input(key="n").set_value(60).run()
    assert at.session_state.answer.stale
    assert at.session_state.answer.value.run.to_dict()["completed"] == 50
    job_of(at).ended.wait(WAIT_S)
    at.run()
    assert at.session_state.answer.value.run.to_dict()["completed"] == 60
    at.number_input(key="n").set_value(50).run()
    assert not at.session_state.answer.stale, "kept by its specification"


def test_a_button_waits_for_its_click() -> None:
    at = session(51, "Go")
    assert "job" not in at.session_state["_work_run"]
    at.button(key="run_run").click().run()
    job_of(at).ended.wait(WAIT_S)
    assert at.run().session_state.answer.value is not None


def test_new_inputs_end_the_run_of_the_old_ones() -> None:
    at = session(2_000_000)
    old = job_of(at)
    at.number_input(key="n").set_value(52).run()
    assert old.status == "cancelled"
    job_of(at).ended.wait(WAIT_S)
    assert at.run().session_state.answer.value.run.to_dict()["completed"] == 52


def test_a_run_that_another_session_waits_for_goes_on() -> None:
    one, other = session(1_900_000), session(1_900_000)
    shared = job_of(one)
    assert job_of(other) is shared
    one.number_input(key="n").set_value(53).run()
    assert not shared.finished
    other.button(key="cancel_run").click().run()
    assert shared.status == "cancelled"
    other.run()
    assert [info.value for info in other.info] == ["Cancelled."]
    runner().join(WAIT_S)


@pytest.mark.parametrize("button", [None, "Go"])
def test_a_refusal_reaches_the_page(button: str | None) -> None:
    at = session(-1, button)
    if button:
        at.button(key="run_run").click().run()
    job_of(at).ended.wait(WAIT_S)
    at.run()
    assert "num_prompts is -1" in at.exception[0].message


def two_jobs() -> None:
    """A page with two jobs under way, and words after them."""
    import streamlit as st
    from capacity_app import parts

    from capacity.service.jobs import Task

    for seed in (1, 2):
        arguments = {
            "model": "llama-3.1-8b",
            "gpu": "h100",
            "input_len": 500,
            "output_len": 50,
            "request_rate": 5.0,
            "num_prompts": 1_700_000,
            "seed": seed,
        }
        parts.run_in_background(
            f"run{seed}", Task(function="capacity:simulate", arguments=arguments), doing="Simulating"
        )
    st.text("after them")


def test_progress_drawn_again_before_it_was_sent_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a timer fires while the page is still on its way: the browser draws each element where it is
    told to, and refuses a place whose elder neighbours it never got."""
    queues: list[ForwardMsgQueue] = []
    made = ForwardMsgQueue.__init__

    def kept(queue: ForwardMsgQueue) -> None:
        made(queue)
        queues.append(queue)

    monkeypatch.setattr(ForwardMsgQueue, "__init__", kept)
    at = AppTest.from_function(two_jobs, default_timeout=WAIT_S).run()
    queue = queues[-1]
    fragments = {message.delta.fragment_id for message in deltas(queue) if message.delta.fragment_id}
    assert len(fragments) == 2
    for fragment in sorted(fragments):
        queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=[fragment])
        assert all(message.delta.fragment_id != fragment for message in deltas(queue))
    children: dict[tuple[int, ...], int] = {}
    for message in deltas(queue):
        *parent, index = message.metadata.delta_path
        there = children.get(tuple(parent), 0)
        assert index <= there, f"bad delta path index {index}: there are {there}"
        children[tuple(parent)] = max(there, index + 1)
    for place in ("run1", "run2"):
        at.button(key=f"cancel_{place}").click().run()
    assert runner().join(WAIT_S)


def deltas(queue: ForwardMsgQueue) -> list[Any]:
    """What the browser would be sent, in this order."""
    return [message for message in queue._queue if message.HasField("delta")]


def test_a_line_is_a_box_of_the_colour_that_it_begins_in() -> None:
    def lines() -> None:
        from capacity_app.views import show_line

        for line in (
            "[green]met[/green]: all",
            "[yellow]not proved[/yellow]",
            "[red]missed[/red]",
            "a [red]b[/red]",
        ):
            show_line(line)

    at = AppTest.from_function(lines).run()
    assert [each.value for each in (*at.success, *at.warning, *at.error)] == [
        "met\\: all",
        "not proved",
        "missed",
    ]
    assert [each.value for each in at.caption] == ["a b"]

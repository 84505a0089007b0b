"""A | B on any page: questions that are pinned, and the one in sight beside them. The link holds what is pinned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from capacity.answers.sides import Change
from capacity.deployment import Cost
from capacity.model import model_names
from capacity.planning.diff import Diff
from capacity.report.comparisons import difference_and_interval
from capacity.report.sides import change_text, settings_text
from capacity_app import parts
from capacity_app.boundary import boundary, plain
from capacity_app.jobs import Task
from capacity_app.side import LOADS, read_side
from capacity_app.side import Side as Side
from capacity_app.state import OWN_MODEL, SIDES, WIDGETS

CALLED = {name: widget.label for name, widget in WIDGETS.items()}  # settings as the sidebar calls them
LETTERS = "ABCD"
MOST = len(LETTERS) - 1  # pinned, beside the one in sight
IN_SIGHT = "_side_in_sight"
PAIRED = (
    "estimate",
    "simulate",
    "cost",
)  # pages that ask of one deployment on one traffic, and of nothing else

Ask = Callable[[Side], Task]
Row = Callable[[Any], Sequence[parts.Kpi]]


def figures(current: Side, answer: Any, *, ask: Ask, row: Row) -> dict[str, Any]:
    """The page's figures of merit, each with how far it is from A's, and every side beside each other.

    `row` makes the figures of what `ask`'s task answers. Returns the answers by letter, the one in sight last.
    """
    st.session_state[IN_SIGHT] = current
    sides = pinned()
    answers = _answers(sides, current, ask)
    done = {letter: row(found) for letter, found in answers.items()}
    here = list(row(answer))
    parts.kpis(against(here, done["A"]) if "A" in done else here)
    _buttons(current, sides)
    if done:
        _beside(current, here, sides, done)
    return {**answers, LETTERS[len(sides)]: answer}


def pinned() -> list[Side]:
    """What is pinned, A first; a side of the link that cannot be read is said and let go."""
    texts: list[str] = st.session_state[SIDES]
    found = {}
    for text in texts:
        with boundary():
            found[text] = read_side(text)
    st.session_state[SIDES] = list(found)
    if st.query_params.get_all("side") != list(found):
        st.query_params["side"] = list(found)
    return list(found.values())


def is_pinned(page: str) -> bool:
    """Whether an answer of this page is kept beside the one in sight: then that is asked at every change, by no
    button."""
    return any(side.page == page for side in pinned())


def side_of(page: str, arguments: Mapping[str, Any]) -> Side:
    """What a task of this page was asked, as a link holds it."""
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items()}
    model = said.pop("model")
    cost = {name: said.pop(name) for name in Cost.model_fields if name in said}
    return Side(page=page, model=model if isinstance(model, str) else OWN_MODEL, options=said, cost=cost)


def _answers(sides: list[Side], current: Side, ask: Ask) -> dict[str, Any]:
    """What the page answers for each that is pinned, by letter: those that are there."""
    done: dict[str, Any] = {}
    for letter, side in zip(LETTERS, sides, strict=False):
        with boundary():
            task = ask(side.asked_on(current))
            place = (
                f"side_{current.page}_{letter}"  # each page has its own, because their answers differ in type
            )
            answer = parts.background(place, task, doing=f"Asking {letter}")
            if answer.value is not None and not answer.stale:
                done[letter] = answer.value
    return done


def _buttons(current: Side, sides: list[Side]) -> None:
    """To pin the one in sight, and to let go of what is pinned."""
    with st.container(horizontal=True):
        st.button(
            f"Pin this as {LETTERS[min(len(sides), MOST - 1)]}",
            key="pin",
            icon=":material/push_pin:",
            on_click=pin,
            disabled=not may_be_pinned(current) or current in sides or len(sides) >= MOST,
            help="Then change anything: every figure shows how far it is from A. Up to three can be pinned"
            + ("." if may_be_pinned(current) else "; a pasted config.json and a trace cannot."),
        )
        for letter, side in zip(LETTERS, sides, strict=False):
            st.button(
                f"Unpin {letter}",
                key=f"unpin_{letter}",
                icon=":material/close:",
                on_click=_unpin,
                args=(side.text,),
            )


def may_be_pinned(side: Side) -> bool:
    """Whether a link can hold it: all of it is in the URL."""
    return side.model in model_names() and "trace" not in side.options


def pin() -> None:
    """Keep the question in sight beside what follows."""
    side: Side | None = st.session_state.get(IN_SIGHT)
    if side is not None and may_be_pinned(side):
        st.session_state[SIDES] = [*st.session_state[SIDES], side.text]


def pinned_texts() -> list[str]:
    """What is pinned, as the link has it."""
    return list(st.session_state.get(SIDES, ()))


def _unpin(text: str) -> None:
    st.session_state[SIDES] = [each for each in st.session_state[SIDES] if each != text]


def against(row: Sequence[parts.Kpi], first: Sequence[parts.Kpi]) -> list[parts.Kpi]:
    """Figures of merit with how far each is from A's."""
    changes = {label: change_text(change, of="A") for label, change in _changes(row, first).items()}
    return [
        replace(kpi, below="; ".join(filter(None, (kpi.below, changes.get(kpi.label, ""))))) for kpi in row
    ]


def _changes(row: Sequence[parts.Kpi], first: Sequence[parts.Kpi]) -> dict[str, Change]:
    """By label, the figures that both have as numbers."""
    before = {kpi.label: kpi.number for kpi in first}
    return {
        kpi.label: Change(figure=kpi.label, first=before[kpi.label], second=kpi.number)
        for kpi in row
        if kpi.number is not None and before.get(kpi.label) is not None
    }


def rows(sides: Mapping[str, Sequence[parts.Kpi]]) -> list[dict[str, str]]:
    """A row for each figure: every side with its interval; for each but the first, how far it is from the first."""
    first = next(iter(sides.values()))
    labels = dict.fromkeys(kpi.label for row in sides.values() for kpi in row)
    changes = {name: _changes(row, first) for name, row in sides.items()}
    shown = {name: {kpi.label: kpi for kpi in row} for name, row in sides.items()}
    table = []
    for label in labels:
        line = {"": label}
        for name in sides:
            kpi = shown[name].get(label)
            within = kpi is not None and kpi.number is not None and kpi.number.low is not None and kpi.below
            line[name] = "-" if kpi is None else f"{kpi.value} ({kpi.below})" if within else kpi.value
            if name != next(iter(sides)):
                change = changes[name].get(label)
                line[f"{name} against {next(iter(sides))}"] = "-" if change is None else change_text(change)
        table.append(line)
    return table


def _beside(
    current: Side, row: Sequence[parts.Kpi], sides: list[Side], done: Mapping[str, Sequence[parts.Kpi]]
) -> None:
    """Every side in a table, what differs between them, and, of the same traffic, both request by request."""
    here = LETTERS[len(sides)]
    st.subheader(f"Beside A: {here} is in sight")
    asked = [side.asked_on(current) for side in sides]
    first = asked[0]
    for letter, side in (*zip(LETTERS, asked, strict=False), (here, current)):
        said = _described(side) if side is first else settings_text(first.said, side.said, CALLED)
        st.caption(plain(f"{letter}: {said or 'as A'}"))
    alt = f"Each figure of A to {here}, and how far it is from A."
    parts.table("sides", rows({**done, here: row}), alt=alt)
    st.caption("outside: the two 90 % intervals have nothing in common; within: they overlap.")
    loads = [name for name in LOADS if name in current.options]
    if (
        current.page in PAIRED
        and current.deployed
        and current.traffic == first.traffic
        and loads not in ([], ["batch_size"])
        and current != first
    ):
        _paired(first, current, here)


def _described(side: Side) -> str:
    if not side.deployed:
        return f"{side.model}, of {', '.join(side.options['gpus'])}"
    tensor = side.options.get("tensor_parallel_size", 1)
    return f"{side.model}, {tensor} x {side.options['gpu']}"


def _paired(first: Side, current: Side, here: str) -> None:
    """The same arrivals through both, as `capacity diff`."""
    task = Task(function="capacity:diff", arguments={"first": first.deployment, "second": current.deployment})
    found: Diff | None = parts.background(
        "diff", task, doing="Serving both", button="Same arrivals, request by request"
    ).value
    if found is None:
        return
    differences = [
        {
            "": difference.metric.upper(),
            f"{here} less A, mean, ms": difference_and_interval(difference)[0],
            "95 % interval": difference_and_interval(difference)[1],
            "outside": "yes" if difference.significant else "no: it holds 0",
            f"sooner with {here}": f"{difference.faster_fraction:.0%}",
        }
        for difference in found.differences
    ]
    parts.table(
        "diff", differences, alt=f"How {here} differs from A for the same requests at the same instants."
    )
    st.caption(
        f"{found.requests:,} requests at the same instants through both. The interval is of the traffic's chance, not "
        "of the step model's error, which both share."
    )

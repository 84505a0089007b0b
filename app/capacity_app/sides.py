"""Comparison on any page: pinned inputs (sides A, B, ...) next to the current inputs. The link contains them."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import streamlit as st

from capacity.base.mappings import omit, select
from capacity.base.money import convert_amounts
from capacity.base.quantity import Quantity
from capacity.deployment import Cost, Pool, Service
from capacity.model import model_names
from capacity.planning.variations.deployment_comparison import LETTERS as LETTERS
from capacity.planning.variations.deployment_comparison import DeploymentComparison
from capacity.planning.variations.diff import Diff
from capacity.report.display import join_phrases, phrase
from capacity.report.views.diff import diff_view
from capacity.service.jobs import Task
from capacity_app import parts, views
from capacity_app.error_display import NotReady, escape_markdown, link_html, show_errors
from capacity_app.side import Side as Side
from capacity_app.side import read_side
from capacity_app.state import OWN_MODEL, SIDES, WIDGETS, Inputs, link_to

SETTING_LABELS = {name: widget.label for name, widget in WIDGETS.items()}  # the sidebar's labels
FACTOR_LIMIT = 10.0
DIFFERENT_LOADS = "different loads, not compared"
MAX_PINNED = len(LETTERS) - 1  # pinned sides, in addition to the current one
CURRENT_SIDE = "_side_in_sight"
PAGES_WITH_DIFF = ("estimate", "simulate", "cost")  # pages about one deployment under one load

Ask = Callable[[Side], Task]
Row = Callable[[Any], Sequence[parts.Kpi]]


def draw_figures(
    current: Side, answer: Any, *, ask: Ask, row: Row, slo: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Draw the key metrics with their changes from side A (the first pinned inputs), and a table of all sides.

    `ask` returns the task that computes a side's answer, and `row` converts an answer to its metrics. `slo`: service
    levels for comparing all sides under the current load. Returns a dict from letter (A, B, ...) to answer, the
    current side last.
    """
    sides = pinned_sides()
    here = LETTERS[len(sides)]
    others = dict(zip(LETTERS, (side.convert_to_page(current) for side in sides), strict=False))
    asked = {**others, here: current}
    answers = {**_answers(others, ask), here: answer}
    shown = {letter: list(row(found)) for letter, found in answers.items()}
    if sides and current.page in PAGES_WITH_DIFF and current.has_steady_load:
        with show_errors():
            _draw_verdict(list(asked.values()), current, ask, slo)
    alike = sides and "A" in answers and asked["A"].load == current.load
    parts.draw_kpis(compare_with_first(shown[here], shown["A"]) if alike else shown[here])
    draw_pin_buttons(current, sides)
    if len(answers) > 1:
        _show_all_sides(asked, here, shown)
    return answers


def pinned_sides() -> list[Side]:
    """Return the pinned sides of the comparison from the link; one that cannot be read is reported and removed."""
    texts: list[str] = st.session_state[SIDES]
    found = {}
    for text in texts:
        with show_errors():
            found[text] = read_side(text)
    st.session_state[SIDES] = list(found)
    if st.query_params.get_all("side") != list(found):
        st.query_params["side"] = list(found)
    return list(found.values())


def side_model(side: Side, inputs: Inputs) -> Any:
    """Return a side's model for library functions: the sidebar's model if its name is the same, else the model name."""
    return inputs.model if side.model == inputs.model_name else side.model


def side_of(page: str, arguments: Mapping[str, Any]) -> Side:
    """Return a task's arguments as a side of a comparison."""
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in arguments.items()}
    model = said.pop("model")
    cost, options = select(said, Cost.model_fields), omit(said, *Cost.model_fields)
    return Side(page=page, model=model if isinstance(model, str) else OWN_MODEL, options=options, cost=cost)


def _answers(others: Mapping[str, Side], ask: Ask) -> dict[str, Any]:
    """Return the finished answers of the pinned sides, as a dict from letter (A, B, ...) to answer."""
    done: dict[str, Any] = {}
    for letter, side in others.items():
        with show_errors():
            # each page has its own place, because their answers differ in type
            place = f"side_{side.page}_{letter}"
            done[letter] = parts.run_in_background(place, ask(side), doing=f"Computing {letter}").current
    return {letter: answer for letter, answer in done.items() if answer is not None}


def draw_pin_buttons(current: Side, sides: list[Side]) -> None:
    """Draw a button that pins the current side, and one to unpin each pinned side."""
    st.session_state[CURRENT_SIDE] = current
    with st.container(horizontal=True):
        st.button(
            f"Pin this as {LETTERS[min(len(sides), MAX_PINNED - 1)]}",
            key="pin",
            icon=":material/push_pin:",
            on_click=pin,
            disabled=not can_be_pinned(current) or current in sides or len(sides) >= MAX_PINNED,
            help="Pin these inputs, then change them: every metric shows its difference from A. Up to three can be "
            "pinned" + ("." if can_be_pinned(current) else ", but not a pasted config.json or a trace."),
        )
        for letter, side in zip(LETTERS, sides, strict=False):
            st.button(
                f"Unpin {letter}",
                key=f"unpin_{letter}",
                icon=":material/close:",
                on_click=_unpin,
                args=(side.link_text,),
            )


def _set_same_load(current: Side) -> None:
    """Replace the load of every pinned side with the current load."""
    asked = [side.under_load_of(current).link_text for side in pinned_sides()]
    st.session_state[SIDES] = list(dict.fromkeys(asked))


def _draw_verdict(asked: Sequence[Side], current: Side, ask: Ask, slo: tuple[str, ...]) -> None:
    """Draw for each deployment the replicas it needs to serve the current load within the SLO, and their cost."""
    same_load = [side.under_load_of(current) for side in asked]
    compared = [{**side.deployment, "model": ask(side).arguments["model"]} for side in same_load]
    answer = compare_in_background(compared, current.traffic, slo)
    served = all(side.needed for side in answer.sides)
    parts.draw_verdict("stable" if served else "saturated", answer.verdict)
    st.html(link_html(link_to("deployments"), "Charts of all sides"))


def compare_in_background(
    deployments: Sequence[Mapping[str, Any]], traffic: Mapping[str, Any], slo: Sequence[str]
) -> DeploymentComparison:
    """Compare deployments under one load in the background; the run length and seed of a page are not used.

    Raises NotReady until the comparison exists.
    """
    shared = {"traffic": omit(traffic, "num_prompts", "seed")}
    arguments = {
        "deployments": [{**each, **shared} for each in deployments],
        "slo": list(slo),
    }
    task = Task(function="capacity:compare_deployments", arguments=arguments, reports=True)
    found = parts.run_in_background("deployments", task, doing="Searching the maximum load of each side")
    if found.stale:
        raise NotReady
    answer: DeploymentComparison = found.ready_value
    return answer


def replicas_task(model: Any, side: Side, slo: Sequence[str]) -> Task:
    """Return the task that computes how many replicas a side's deployment needs for the side's load."""
    arguments = {
        "model": model,
        "pool": omit(side.select_fields(Pool.model_fields), "model", "replicas"),
        "traffic": side.load,
        "service": side.select_fields(Service.model_fields),
        "cost": side.select_fields(Cost.model_fields),
        "slo": tuple(slo),
    }
    return Task(function="capacity_app.tasks:replicas", arguments=arguments)


def can_be_pinned(side: Side) -> bool:
    """Return whether the side can be pinned: a link can contain its arguments."""
    return side.model in model_names() and "trace" not in side.options


def pin() -> None:
    side: Side | None = st.session_state.get(CURRENT_SIDE)
    if side is not None and can_be_pinned(side):
        st.session_state[SIDES] = [*st.session_state[SIDES], side.link_text]


def _unpin(text: str) -> None:
    st.session_state[SIDES] = [each for each in st.session_state[SIDES] if each != text]


def compare_with_first(row: Sequence[parts.Kpi], first: Sequence[parts.Kpi]) -> list[parts.Kpi]:
    """Return the metrics of `row`, each with its change from the same metric of the first pinned side (A)."""
    before = {kpi.label: kpi.number for kpi in first}
    return [
        replace(kpi, below=join_phrases(kpi.below, change_text(before.get(kpi.label), kpi.number, of="A")))
        for kpi in row
    ]


def comparison_rows(
    sides: Mapping[str, Sequence[parts.Kpi]], unlike: Set[str] = frozenset()
) -> list[dict[str, str]]:
    """Return one table row per metric: its value and interval on each side, and its change from the first side.

    Sides in `unlike` have a different load from the first side, so the table shows no change for them.
    """
    shown = {name: {kpi.label: kpi for kpi in row} for name, row in sides.items()}
    first, missing = next(iter(shown)), parts.Kpi("", parts.MISSING)
    table = []
    for label in dict.fromkeys(kpi.label for row in sides.values() for kpi in row):
        line = {"": convert_amounts(label)}
        for name, found in shown.items():
            kpi, before = (side.get(label, missing) for side in (found, shown[first]))
            line[name] = kpi.value_with_interval
            if name != first:
                change = change_text(before.number, kpi.number) or parts.MISSING
                line[f"{name} vs. {first}"] = DIFFERENT_LOADS if name in unlike else change
        table.append(line)
    return table


def change_text(first: Quantity | None, second: Quantity | None, *, of: str = "") -> str:
    """Return the change from the first number to the second as text; empty if a number is missing or the first is 0.

    Examples: `+25 %, outside` if the 90 % intervals do not overlap, and `12 times` if the factor is 10 or more. Each
    interval includes the errors that both numbers share.
    """
    if first is None or second is None or not first.value:
        return ""
    ratio, words = second.value / first.value, ""
    if first.interval and second.interval:
        apart = max(first.interval[0], second.interval[0]) > min(first.interval[1], second.interval[1])
        words = ", outside" if apart else ", within"
    if ratio >= FACTOR_LIMIT:
        return f"{ratio:,.0f} times{phrase(' {}', of)}{words}"
    return f"{100 * (ratio - 1):+z.0f} %{phrase(' vs. {}', of)}{words}"


def settings_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the settings that differ, with sidebar labels: `GPU h100-sxm-80gb -> b200-sxm-180gb`."""
    names = dict.fromkeys(name for name in (*first, *second) if first.get(name) != second.get(name))
    return ", ".join(
        f"{SETTING_LABELS.get(name, name)} {_setting_text(first.get(name))} -> {_setting_text(second.get(name))}"
        for name in names
    )


def _setting_text(value: Any) -> str:
    values = value if isinstance(value, (list, tuple)) else (value,)
    return " + ".join("the default" if each is None else str(each) for each in values)


def _show_all_sides(asked: Mapping[str, Side], here: str, shown: Mapping[str, Sequence[parts.Kpi]]) -> None:
    """Draw a table of all sides and their differences; for identical traffic, also compare request by request."""
    st.subheader(f"Comparison with A ({here}: current inputs)")
    first, current = asked["A"], asked[here]
    for letter, side in asked.items():
        said = side.description if side is first else settings_text(first.arguments, side.arguments)
        st.caption(escape_markdown(f"{letter}: {said or 'same as A'}"))
    others = " and ".join(letter for letter, side in asked.items() if side.load != current.load)
    if others:
        st.info(escape_markdown(f"{others} and {here}: {DIFFERENT_LOADS}."), icon=":material/difference:")
        st.button(
            f"Use the load of {here} for {others}",
            key="same_load",
            icon=":material/equal:",
            on_click=_set_same_load,
            args=(current,),
        )
    load = asked[next(iter(shown))].load
    unlike = {letter for letter, side in asked.items() if side.load != load}
    alt = f"Metrics of A to {here}, and their differences from A."
    parts.draw_table("sides", comparison_rows(shown, unlike=unlike), alt=alt)
    st.caption("outside: the two 90 % intervals do not overlap; within: they overlap.")
    same_traffic = current.has_one_deployment and current.traffic == first.traffic and current != first
    if (
        current.page in PAGES_WITH_DIFF
        and same_traffic
        and {"concurrency", "request_rate"} & current.options.keys()
    ):
        _show_paired_diff(first, current, here)


def _show_paired_diff(first: Side, current: Side, here: str) -> None:
    """Compare both sides request by request on the same arrivals, like `capacity diff`."""
    task = Task(function="capacity:diff", arguments={"first": first.deployment, "second": current.deployment})
    with show_errors():
        found: Diff = parts.run_in_background(
            "diff", task, doing="Simulating both", button="Compare on the same arrivals"
        ).ready_value
        views.draw_view(diff_view(found, "A", here), found)
        st.caption(
            "The interval covers the randomness of traffic, not the step model's error (equal for both). If it "
            "contains 0, the difference is not significant."
        )

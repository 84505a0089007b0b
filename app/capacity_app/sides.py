"""A | B: estimates that are pinned, and the one in sight beside them. The link holds what is pinned."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import streamlit as st

from capacity.answers.records import Estimate
from capacity.answers.sides import changes
from capacity.base.errors import InvalidInput
from capacity.base.fields import parse_json_object
from capacity.deployment.engines import engine_names
from capacity.hardware import profile_names
from capacity.model import model_names
from capacity.model.quantization import known_quantizations, kv_cache_format_names
from capacity.planning.diff import Diff
from capacity.report.comparisons import difference_and_interval
from capacity.report.display import Units
from capacity.report.sides import change_text, settings_text, side_rows
from capacity_app import parts
from capacity_app.boundary import boundary, plain
from capacity_app.jobs import Task
from capacity_app.state import SIDES, packed_text, unpacked_text

LETTERS = "ABCD"
MOST = len(LETTERS) - 1  # pinned, beside the one in sight
LARGEST = 10_000_000  # of any number that the sidebar takes
NAMES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "model": model_names,
    "gpu": profile_names,
    "engine": engine_names,
    "quantization": lambda: tuple(known_quantizations()),
    "kv_cache_dtype": lambda: tuple(kv_cache_format_names()),
}
POOL = (
    "gpu",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
    "engine",
    "max_model_len",
)
LOADS = ("batch_size", "concurrency", "request_rate")
TRAFFIC = ("input_len", "output_len", *LOADS, "random_range_ratio", "client_latency_s")
COST = ("price_tier", "price")
MERITS = {  # a figure on the page, by the field that it shows
    "TTFT": "ttft_s",
    "TPOT": "tpot_s",
    "E2E latency": "e2e_s",
    "Output tokens/s": "output_tokens_per_s",
    "per user": "output_tokens_per_s_per_user",
    "per GPU": "output_tokens_per_s_per_gpu",
    "$ per 1M output": "usd_per_million_output_tokens",
}


@dataclass(frozen=True, kw_only=True)
class Side:
    """A question to `estimate`: keywords of pool and traffic in `options`, of the price in `cost`."""

    model: str
    options: dict[str, Any]
    cost: dict[str, Any]

    @property
    def text(self) -> str:
        """As a link has it."""
        return packed_text(json.dumps(asdict(self), sort_keys=True))

    @property
    def said(self) -> dict[str, Any]:
        """All of it by name."""
        return {"model": self.model, **self.options, **self.cost}

    def of(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The keywords of these names."""
        return {name: value for name, value in self.said.items() if name in names}

    @property
    def deployment(self) -> dict[str, Any]:
        """The fields of a deployment file."""
        return {
            "model": self.model,
            "pools": [self.of(POOL)],
            "traffic": self.of(TRAFFIC),
            "cost": self.of(COST),
        }


def read_side(text: str) -> Side:
    """A side from a link, where nothing is trusted: names that the sidebar has, numbers that it could have.

    Raises InvalidInput.
    """
    found = parse_json_object(unpacked_text(text).encode(), "side")
    model, options, cost = found.get("model"), found.get("options"), found.get("cost")
    if not isinstance(options, dict) or not isinstance(cost, dict) or "gpu" not in options:
        raise InvalidInput("a side of the link is no question: pin it again")
    for name, value in {"model": model, **options, **cost}.items():
        if not _may_be(name, value):
            raise InvalidInput(f"a side of the link says {str(name)[:40]}={str(value)[:40]}: pin it again")
    return Side(model=str(model), options=options, cost=cost)


def _may_be(name: str, value: object) -> bool:
    if name in NAMES:
        return isinstance(value, str) and value in NAMES[name]()
    if name == "price_tier":
        return isinstance(value, str) and value.replace("-", "").isalnum()
    if name == "price":
        return isinstance(value, str) and value.replace(".", "", 1).isdigit()
    return name in (*POOL, *TRAFFIC) and isinstance(value, (bool, int, float)) and 0 <= value <= LARGEST


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


def answers(sides: list[Side]) -> dict[str, Estimate]:
    """The estimates of what is pinned, by letter: those that are there."""
    done: dict[str, Estimate] = {}
    for letter, side in zip(LETTERS, sides, strict=False):
        with boundary():
            task = Task(
                function="capacity_app.tasks:estimated",
                arguments={"model": side.model, "options": side.options, "cost": side.cost},
            )
            answer = parts.background(f"side_{letter}", task, doing=f"Asking {letter}").value
            if answer is not None:
                done[letter] = answer[0]
    return done


def buttons(current: Side, sides: list[Side]) -> None:
    """To pin the one in sight, and to let go of what is pinned."""
    is_preset = current.model in model_names()
    with st.container(horizontal=True):
        st.button(
            f"Pin this as {LETTERS[min(len(sides), MOST - 1)]}",
            key="pin",
            icon=":material/push_pin:",
            on_click=_pin,
            args=(current.text,),
            disabled=not is_preset or current in sides or len(sides) >= MOST,
            help="Then change anything: every figure shows how far it is from A. Up to three can be pinned"
            + ("." if is_preset else "; a pasted config.json cannot."),
        )
        for letter, side in zip(LETTERS, sides, strict=False):
            st.button(
                f"Unpin {letter}",
                key=f"unpin_{letter}",
                icon=":material/close:",
                on_click=_unpin,
                args=(side.text,),
            )


def _pin(text: str) -> None:
    st.session_state[SIDES] = [*st.session_state[SIDES], text]


def _unpin(text: str) -> None:
    st.session_state[SIDES] = [each for each in st.session_state[SIDES] if each != text]


def against(row: list[parts.Kpi], first: Estimate, answer: Estimate) -> list[parts.Kpi]:
    """Figures of merit with how far each is from A's."""
    found = {change.figure: change_text(change, of="A") for change in changes(first, answer)}
    return [
        replace(kpi, below="; ".join(filter(None, (kpi.below, found[field]))))
        if (field := MERITS.get(kpi.label)) in found
        else kpi
        for kpi in row
    ]


def beside(
    current: Side, answer: Estimate, sides: list[Side], done: Mapping[str, Estimate], units: Units
) -> None:
    """Every side in a table, what differs between them, and, of the same traffic, both request by request."""
    if not done:
        return
    here = LETTERS[len(sides)]
    st.subheader(f"Beside A: {here} is in sight")
    first = sides[0]
    for letter, side in (*zip(LETTERS, sides, strict=False), (here, current)):
        said = (
            f"{side.model}, {side.options['gpu']}" if side is first else settings_text(first.said, side.said)
        )
        st.caption(plain(f"{letter}: {said or 'as A'}"))
    rows = side_rows({**done, here: answer}, units)
    parts.table("sides", rows, alt=f"Each figure of A to {here}, and how far it is from A.")
    st.caption("outside: the two 90 % intervals have nothing in common; within: they overlap.")
    loads = [name for name in LOADS if name in current.options]
    if current.of(TRAFFIC) == first.of(TRAFFIC) and loads != ["batch_size"] and current != first:
        _paired(first, current, here)


def _paired(first: Side, current: Side, here: str) -> None:
    """The same arrivals through both, as `capacity diff`."""
    task = Task(function="capacity:diff", arguments={"first": first.deployment, "second": current.deployment})
    found: Diff | None = parts.background(
        "diff", task, doing="Serving both", button="Same arrivals, request by request"
    ).value
    if found is None:
        return
    rows = [
        {
            "": difference.metric.upper(),
            f"{here} less A, mean, ms": difference_and_interval(difference)[0],
            "95 % interval": difference_and_interval(difference)[1],
            "outside": "yes" if difference.significant else "no: it holds 0",
            f"sooner with {here}": f"{difference.faster_fraction:.0%}",
        }
        for difference in found.differences
    ]
    parts.table("diff", rows, alt=f"How {here} differs from A for the same requests at the same instants.")
    st.caption(
        f"{found.requests:,} requests at the same instants through both. The interval is of the traffic's chance, not "
        "of the step model's error, which both share."
    )

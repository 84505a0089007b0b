"""Use cases, such as chat, RAG and code completion: typical request lengths, SLOs and think times, with sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from capacity.base.errors import InvalidInput, MalformedFile, UnknownName
from capacity.base.spec import Spec

if TYPE_CHECKING:
    from capacity.deployment.traffic import Traffic

FILE = Path(__file__).with_name("use_cases.toml")
USE_CASES = ("chat", "rag", "code", "agents", "summarise", "reasoning", "batch")
SPREAD_FIELDS = frozenset(("length_distribution", "random_range_ratio"))  # each sets the length distribution

Text = Annotated[str, Field(min_length=1)]
FilledFields = dict[str, float | str]


class Sourced(Spec):
    """Base class of values that have a source."""

    source: Text
    date: Annotated[str, Field(pattern=r"\d{4}-\d{2}-\d{2}")]
    basis: Literal["measured", "published", "assumed"]

    @property
    def origin(self) -> str:
        """Return the source as text for a note."""
        return f"{self.basis}: {self.source}, {self.date}"


class TokenLengths(Sourced):
    """Prompt or output tokens of a request: mean and coefficient of variation."""

    mean: Annotated[int, Field(ge=1)]
    cv: Annotated[float, Field(ge=0)]


class ServiceLevels(Sourced):
    """Latency limits of a use case, each in the form of `--slo`."""

    limits: tuple[Text, ...] = Field(min_length=1)


class ThinkTime(Sourced):
    """Mean time in seconds between a response and the user's next request."""

    mean: Annotated[float, Field(ge=0)]


class UseCase(Spec):
    """One use case: typical request lengths, SLOs and think time."""

    name: Text
    title: Text
    about: Text
    input_len: TokenLengths
    output_len: TokenLengths
    slo: ServiceLevels
    think_time_s: ThinkTime


def use_cases() -> tuple[UseCase, ...]:
    """Return all use cases, in the order of `USE_CASES`."""
    return tuple(_read().values())


def find_use_case(name: str) -> UseCase:
    """Return the use case of this name. Raises UnknownName."""
    if name not in USE_CASES:
        raise UnknownName("use case", name, USE_CASES, aliases=("summarize", "agent", "coding"))
    return _read()[name]


@cache
def _read() -> Mapping[str, UseCase]:
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    sources: Mapping[str, str] = tables.pop("sources")
    try:
        return {
            name: UseCase.model_validate({"name": name, **_with_sources(tables[name], sources)})
            for name in USE_CASES
        }
    except (KeyError, ValidationError) as error:
        raise MalformedFile(FILE, f"is not a valid list of use cases: {error}") from None


def _with_sources(table: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, object]:
    """Return the table of a use case with the key of each source replaced by its full text."""
    return {
        name: {**value, "source": sources[value["source"]]} if isinstance(value, dict) else value
        for name, value in table.items()
    }


def filled_fields(traffic: Traffic) -> FilledFields:
    """Return values for unset traffic fields, from the use case and the number of users. Raises InvalidInput."""
    filled = _use_case_fields(traffic) or _measured_length_spread(traffic)
    if traffic.users is None:
        return filled
    for other in ("concurrency", "batch_size"):
        if getattr(traffic, other) is not None:
            raise InvalidInput(f"users and {other} both set the load: use one of them")
    think_s = float(filled.get("think_time_s", traffic.think_time_s))
    wait_s = think_s + traffic.response_s
    if not wait_s:
        raise InvalidInput(
            "users need a think time between a response and the next request: add --think-time-s, or --use-case"
        )
    if traffic.user_loop == "closed" and not think_s:
        raise InvalidInput(
            "users without think time are the same as --concurrency: use that, or add --think-time-s"
        )
    if traffic.user_loop == "open":
        filled["request_rate"] = traffic.users / wait_s
    return filled


def _use_case_fields(traffic: Traffic) -> FilledFields:
    """Return unset fields from the use case: lengths unless there is a trace; think time for users and sessions."""
    if traffic.use_case is None:
        return {}
    case, said = find_use_case(traffic.use_case), traffic.model_fields_set
    given: FilledFields = {}
    if traffic.users is not None or traffic.turns > 1:
        given["think_time_s"] = case.think_time_s.mean
    if traffic.trace is None:
        given |= {"input_len": case.input_len.mean, "output_len": case.output_len.mean}
        if not said & SPREAD_FIELDS:
            given |= _length_spread(case)
    return {name: value for name, value in given.items() if name not in said}


def _measured_length_spread(traffic: Traffic) -> FilledFields:
    """Return the length distribution of a measured chat trace if the user gives mean lengths and no distribution.

    Empty for a use case, for a trace, and for a batch, in which all requests have identical lengths.
    """
    given = traffic.model_fields_set
    no_means = traffic.input_len is None and traffic.output_len is None
    if (
        no_means
        or traffic.use_case is not None
        or given & SPREAD_FIELDS
        or traffic.trace is not None
        or traffic.batch_size is not None
    ):
        return {}
    return {name: value for name, value in _length_spread(find_use_case("chat")).items() if name not in given}


def _length_spread(case: UseCase) -> FilledFields:
    return {
        "length_distribution": "lognormal",
        "input_len_cv": case.input_len.cv,
        "output_len_cv": case.output_len.cv,
    }


def filled_notes(traffic: Traffic) -> tuple[str, ...]:
    """Return notes on the values that the use case set, and on the request rate that the number of users implies.

    Source of the rate of users: Denning and Buzen, The Operational Analysis of Queueing Network Models, 1978.
    """
    filled = {name for name, value in filled_fields(traffic).items() if getattr(traffic, name) == value}
    filled -= traffic.model_fields_set
    notes: list[str] = []
    if traffic.use_case is not None:
        notes.append(_case_note(find_use_case(traffic.use_case), filled))
    elif filled & {"input_len_cv", "output_len_cv"}:
        notes.append(
            f"request lengths vary as in the Azure LLM inference trace 2023, conversations (measured): lognormal, CV "
            f"{traffic.input_len_cv:g} of prompts, {traffic.output_len_cv:g} of outputs; use --random-range-ratio 0 "
            "for identical lengths"
        )
    if traffic.users is not None and traffic.user_loop == "closed":
        notes.append(
            f"{traffic.users:,} users, think time {traffic.think_time_s:g} s: simulated as a closed loop, in which "
            "each user waits for the response and thinks before the next request; --user-loop open uses a fixed rate"
        )
    if "request_rate" in filled:
        most = "" if traffic.response_s else ", an upper bound; set --response-s"
        notes.append(
            f"{traffic.users:,} users / (think time {traffic.think_time_s:g} s + response time "
            f"{traffic.response_s:g} s) = {traffic.request_rate:.4g} requests/s{most}"
        )
    return tuple(notes)


def _case_note(case: UseCase, filled: set[str]) -> str:
    values: list[tuple[str, Sourced]] = []
    for name in ("input_len", "output_len"):
        if name in filled:
            known: TokenLengths = getattr(case, name)
            spread = f" (CV {known.cv:g})" if f"{name}_cv" in filled else ""
            values.append((f"{name} {known.mean:,}{spread}", known))
    if "think_time_s" in filled:
        values.append((f"think_time_s {case.think_time_s.mean:g}", case.think_time_s))
    values.append((f"SLO {', '.join(case.slo.limits)} unless you give your own", case.slo))
    grouped = groupby(values, key=lambda value: value[1].basis)
    assumed = "; ".join(f"{basis} {', '.join(text for text, _ in group)}" for basis, group in grouped)
    return f"{case.name}: {assumed}; sources: `capacity use-cases`"


def service_levels(given: str | Sequence[str], traffic: Traffic) -> tuple[str, ...]:
    """Return the given SLOs, or those of the traffic's use case, in the form of `--slo`."""
    if given:
        return (given,) if isinstance(given, str) else tuple(given)
    return () if traffic.use_case is None else find_use_case(traffic.use_case).slo.limits

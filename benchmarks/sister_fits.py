"""One fit for two cards with the same chip and different memory, so that the faster card is never the slower one.

The constants are equal, except that kernels may reach a smaller fraction of the faster memory, at least the rate of the
slower memory. Used by `fit_profiles.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from reference_tables.form import Operator, profile_of

from capacity.hardware.calibration import Constants, Parameter

OF_MEMORY = {  # the fraction of the faster memory that is kept, by constant; quantization is a kernel of its own
    "bandwidth_fraction": "kept_fraction",
    "routed_fraction": "kept_fraction",
    "quantize_fraction": "kept_quantize_fraction",
}
Key = tuple[str, str, str]


class SisterRow(NamedTuple):
    """A measured row, and whether the card with the faster memory ran it."""

    row: Any
    faster: bool


def part_sisters(operator: Operator, sisters: Mapping[str, str]) -> tuple[Operator, Operator | None]:
    """Return the operator with the tables that only one card of a chip has, and one with a table for each two cards.

    `sisters`: cards with the faster memory, by those with the slower one. The second operator's tables have the keys of
    the slower card; None if there are none.
    """
    of_memory = any(parameter.name in OF_MEMORY for parameter in operator.parameters)
    pairs = {key: (sisters.get(key[0], ""), *key[1:]) for key in operator.tables if of_memory}
    pairs = {key: sister for key, sister in pairs.items() if sister in operator.tables}
    if operator.name == "nccl" or not pairs:
        return operator, None
    apart = {key: rows for key, rows in operator.tables.items() if key not in {*pairs, *pairs.values()}}
    tables = {
        key: [
            replace(row, row=SisterRow(row.row, card == sister))
            for card in (key, sister)
            for row in operator.tables[card]
        ]
        for key, sister in pairs.items()
    }
    lowest = max(
        profile_of(card).hbm_bytes_per_s / profile_of(faster).hbm_bytes_per_s
        for card, faster in sisters.items()
    )
    names = dict.fromkeys(OF_MEMORY[each.name] for each in operator.parameters if each.name in OF_MEMORY)
    kept = [Parameter(name=name, start=0.9, low=lowest, high=1.0) for name in names]
    converted: dict[str, Any] = {}

    def predict(constants: Constants, row: SisterRow) -> float:
        if not row.faster:
            return operator.predict(constants, row.row)
        if converted.get("of") is not constants:  # the fit asks for the same constants row after row
            converted.update(of=constants, value=split_constants(constants, faster=True))
        return operator.predict(converted["value"], row.row)

    both = replace(operator, tables=tables, predict=predict, parameters=(*operator.parameters, *kept))
    return replace(operator, tables=apart), both


def split_constants(constants: Mapping[str, Any], *, faster: bool) -> dict[str, Any]:
    """Return the constants of one of the two cards."""
    own = {name: value for name, value in constants.items() if name not in OF_MEMORY.values()}
    if not faster:
        return own
    return {
        name: value * constants[OF_MEMORY[name]] if name in OF_MEMORY else value
        for name, value in own.items()
    }


def join_constants(slower: Mapping[str, Any], faster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constants of both cards as one fit; empty if they do not have its form."""
    names = slower.keys() - {"fit", *OF_MEMORY}
    if not faster or any(slower[name] != faster.get(name) for name in names):
        return {}
    kept = {OF_MEMORY[name]: faster[name] / slower[name] for name in reversed(OF_MEMORY) if name in slower}
    return {**slower, **kept}

"""Split cases into fitted and held-out ones by whole shapes, because cases of a fitted shape would be easy to predict.

A multiplication [m, k] x [k, n] with another m runs the same kernels on the same weights. If only some m were held
out, the error would measure interpolation, not the prediction of a new matrix.
"""

import math
from collections.abc import Hashable, Sequence
from hashlib import md5
from typing import Any

from capacity_validate.cases import OPERATORS, Case, MeasuredCase

MIN_SHAPES = 3  # largest and smallest are fitted, so at least one is between them
MIN_HELD_OUT = 0.2  # minimum fraction of cases in held-out shapes
ENOUGH_HELD_OUT = 0.3  # sufficient fraction of cases, so that no two neighbours by size are held out
MIN_HELD_OUT_CASES = 3  # minimum number of held-out cases
MIN_CASES_FOR_ENDS = 4  # minimum number of cases of a shape to fit both ends


def split_cases(measured: Sequence[MeasuredCase]) -> tuple[list[MeasuredCase], list[MeasuredCase]]:
    """Split each operator's cases into fitted and held-out ones, chosen by size and case id, never by time.

    Every second shape in order of size is held out, up to half of the cases, but never the smallest or largest,
    because a fit should interpolate. With too few shapes, half of the cases are held out, without the
    smallest and largest if there are enough.
    """
    fitted: list[MeasuredCase] = []
    held_out: list[MeasuredCase] = []
    for operator in dict.fromkeys(m.case.operator for m in measured):
        members = [m for m in measured if m.case.operator == operator]
        chosen = _choose_shapes(members) or _choose_cases(members)
        held_out += (m for m in members if m.case.id in chosen)
        fitted += (m for m in members if m.case.id not in chosen)
    return fitted, held_out


def describe_split(measured: Sequence[MeasuredCase]) -> str:
    """Return a description of the cases that `split_cases` holds out."""
    seen, held = ({shape_key(m.case) for m in half} for half in split_cases(measured))
    if held and not held & seen:
        return f"whole shapes: {len(held)} of {len(held | seen)}, every second one by size"
    return f"half of the cases of {len(held | seen)} shape(s), chosen by a hash of the case id"


def shape_key(case: Case) -> Hashable:
    """Return the shape of a case without its load (tokens, batch): a matrix, attention heads, an expert layer."""
    loads = OPERATORS.get(case.operator, {}).get("loads", ())
    return case.operator, tuple(entry for entry in case.sizes if entry[0] not in loads)


def case_work(measured: MeasuredCase) -> float:
    """Return a size to sort cases by: FLOP + bytes, or the product of the case's dimensions if both are unknown."""
    return (measured.flops + measured.bytes) or float(math.prod(size for _, size in measured.case.sizes))


def digest(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def _choose_shapes(members: Sequence[MeasuredCase]) -> set[str]:
    """Return the ids of all cases of the held-out shapes; empty if there are too few shapes."""
    shapes: dict[Any, list[MeasuredCase]] = {}
    for member in members:
        shapes.setdefault(shape_key(member.case), []).append(member)
    if len(shapes) < MIN_SHAPES:
        return set()
    ordered = sorted(shapes, key=lambda key: (math.prod(size for _, size in key[1]), str(key)))
    inner = ordered[1:-1]
    chosen: set[str] = set()
    for turn in (inner[::2], inner[1::2]):
        if len(chosen) >= max(MIN_HELD_OUT_CASES, ENOUGH_HELD_OUT * len(members)):
            break
        for key in turn:
            if len(chosen) + len(shapes[key]) <= len(members) // 2:
                chosen |= {m.case.id for m in shapes[key]}
    chosen = chosen or {m.case.id for m in min((shapes[key] for key in inner), key=len)}
    return chosen if len(chosen) >= MIN_HELD_OUT * len(members) else set()


def _choose_cases(members: Sequence[MeasuredCase]) -> set[str]:
    """Return the ids of half of the cases, without the smallest and largest case if there are enough."""
    ordered = sorted(members, key=lambda m: (case_work(m), m.case.id))
    inner = ordered[1:-1] if len(ordered) >= MIN_CASES_FOR_ENDS else ordered
    by_digest = sorted(inner, key=lambda m: digest(m.case.id))
    return {m.case.id for m in by_digest[: len(members) // 2]}

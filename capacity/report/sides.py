"""Sides of a comparison in words: how far a figure is from another, and which settings differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capacity.answers.sides import Change

MANY_TIMES = 10.0


def change_text(change: Change, *, of: str = "") -> str:
    """`+25 %, outside`: by how much (`of` says against what), and whether the intervals are apart; tenfold and more is
    told as times."""
    if change.ratio is None:
        return "-"
    words = {True: ", outside", False: ", within", None: ""}[change.outside]
    if change.ratio >= MANY_TIMES - 1:
        return f"{1 + change.ratio:,.0f} times{of and f' {of}'}{words}"
    return f"{100 * change.ratio:+z.0f} %{of and f' against {of}'}{words}"


def settings_text(
    first: Mapping[str, Any], second: Mapping[str, Any], called: Mapping[str, str] | None = None
) -> str:
    """`gpu h100-sxm-80gb -> b200-sxm-180gb, tensor_parallel_size 4 -> the default`: what differs; `called`: settings
    by other names."""
    names, known = [name for name in (*first, *second) if first.get(name) != second.get(name)], called or {}
    return ", ".join(
        f"{known.get(name, name)} {_said(first.get(name, 'the default'))} -> {_said(second.get(name, 'the default'))}"
        for name in dict.fromkeys(names)
    )


def _said(value: Any) -> str:
    return " + ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

"""A checked fact: what was measured, what bounds it, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`value` should be at most `limit` (or equal it, where `exact`)."""

    name: str
    value: float
    limit: float
    detail: str
    exact: bool = False

    @property
    def passed(self) -> bool:
        return self.value == self.limit if self.exact else self.value <= self.limit

"""A checked fact: what was measured, what bounds it, and whether it held."""

from __future__ import annotations

from dataclasses import dataclass

ON_HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`value` should be at most `limit` (or equal it, where `exact`)."""

    name: str
    value: float
    limit: float
    detail: str
    exact: bool = False
    device: str = ""  # that it was checked on: the measured one, or ON_HOST for what only the CPU has shown

    @property
    def passed(self) -> bool:
        return self.value == self.limit if self.exact else self.value <= self.limit

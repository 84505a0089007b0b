"""The result of a check: the measured value, its limit, and whether the check passed."""

from dataclasses import dataclass
from typing import ClassVar

from capacity.base.record import WrittenRecord

ON_HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(WrittenRecord):
    """One check: `value` must be at most `limit` (or equal to it, if `exact`)."""

    LAST: ClassVar[tuple[str, ...]] = ("passed",)

    name: str
    value: float
    limit: float
    detail: str
    exact: bool = False
    device: str = ""  # the checked device: the measured one, or ON_HOST if checked on the CPU only

    @property
    def passed(self) -> bool:
        return self.value == self.limit if self.exact else self.value <= self.limit

"""The text of a number of bytes."""

from __future__ import annotations

import pytest

from capacity.base.quantity import size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (3_210, "3.2 kB"),
        (42_000, "42 kB"),
        (1_249_000, "1.2 MB"),
        (9_960_000, "10 MB"),
        (2.5e9, "2.5 GB"),
        (3e12, "3,000 GB"),
    ],
)
def test_size_has_the_unit_of_its_magnitude(num_bytes: float, text: str) -> None:
    assert size_text(num_bytes) == text

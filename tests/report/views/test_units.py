"""Units: the one place where a number becomes text."""

from __future__ import annotations

from capacity.answers.records import Quantity
from capacity.report.display import Units
from capacity.report.layout import token_count_text
from capacity.report.views import units


def test_a_unit_scales_rounds_and_follows_the_readers_units() -> None:
    assert units.MS_1.texts(1.23456) == ("1,234.6", "")
    assert units.MS_1.texts(1.23456, Units(time="s")) == ("1.2346", "")
    assert units.GIB.texts(2**30, Units(memory="GB")) == ("1.07", "")
    assert (units.PERCENT.texts(0.256)[0], units.PERCENT_0.texts(0.256)[0]) == ("25.6%", "26%")
    assert (units.COUNT.texts(None)[0], units.TOKENS.texts(None)[0]) == ("-", "no limit")
    assert (units.TEXT.texts(True)[0], units.TEXT.texts("")[0]) == ("yes", "")
    assert units.TIMES.texts(Quantity(value=1.234, low=1.0, high=1.5)) == ("1.23", "1.00 to 1.50")


def test_token_counts_are_read_as_flags_write_them() -> None:
    assert [token_count_text(n) for n in (None, 100, 4096, 4097, 1 << 20)] == [
        "no limit",
        "100",
        "4K",
        "4,097",
        "1M",
    ]

"""Attention computed by other ways is the same."""

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.technique_checks import (  # noqa: E402
    attention_sinks,
    online_softmax,
    sliding_window,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_attention_by_other_ways_is_the_same() -> None:
    for finding in (online_softmax(), sliding_window(), attention_sinks()):
        assert finding.passed, finding

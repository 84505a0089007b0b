"""Fields made into specs: what is wrong is named in one line."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, Traffic, build


def test_flags_are_named_as_the_command_line_does() -> None:
    with pytest.raises(InvalidInput, match=r"--max-num-seqs is 0: must be greater than or equal to 1"):
        build(Pool, {"gpu": "h100", "max_num_seqs": 0}, flags=True)


def test_nan_is_refused_and_inf_is_a_rate() -> None:
    assert build(Traffic, {"request_rate": float("inf")}).request_rate == float("inf")
    with pytest.raises(InvalidInput, match="request_rate is nan"):
        build(Traffic, {"request_rate": float("nan")})

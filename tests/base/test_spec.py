"""What a user writes: frozen, unknown fields refused, true and false only where they are meant."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec
from capacity.deployment import Pool, Traffic, build


class Several(Spec):
    counts: tuple[int, ...] = ()
    fractions: tuple[float | None, ...] = ()
    flags: tuple[bool | None, ...] = ()
    flag: bool | None = None


def test_true_is_no_number() -> None:
    assert Several(flags=(True, None), flag=False, counts=(1,)).flags == (True, None)
    for wrong in ({"counts": (1, True)}, {"counts": [False]}, {"fractions": (True,)}):
        with pytest.raises(ValidationError, match="no number"):
            Several.model_validate(wrong)
    with pytest.raises(InvalidInput, match="input_len is True: true and false are no number"):
        build(Traffic, {"input_len": True, "output_len": 4})
    with pytest.raises(InvalidInput, match="max_num_seqs is True"):
        build(Pool, {"gpu": "h100", "max_num_seqs": True})
    assert build(Pool, {"gpu": "h100", "enforce_eager": True}).enforce_eager is True

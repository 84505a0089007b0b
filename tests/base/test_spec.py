"""What a user writes: frozen, unknown fields refused, true and false only where they are meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from capacity.base.errors import InvalidInput
from capacity.base.spec import Spec, short_count
from capacity.deployment import Pool, Traffic, build


class Several(Spec):
    counts: tuple[int, ...] = ()
    fractions: tuple[float | None, ...] = ()
    flags: tuple[bool | None, ...] = ()
    flag: bool | None = None


def test_true_is_no_number() -> None:
    assert Several(flags=(True, None), flag=False, counts=(1,)).flags == (True, None)
    for wrong in ({"counts": (1, True)}, {"counts": [False]}, {"fractions": (True,)}):
        with pytest.raises(ValidationError, match="must be a number"):
            Several.model_validate(wrong)
    with pytest.raises(InvalidInput, match="input_len is True: must be a number or text, not true or false"):
        build(Traffic, {"input_len": True, "output_len": 4})
    with pytest.raises(InvalidInput, match="max_num_seqs is True"):
        build(Pool, {"gpu": "h100", "max_num_seqs": True})
    assert build(Pool, {"gpu": "h100", "enforce_eager": True}).enforce_eager is True


@given(
    count=st.integers(0, 10**6),
    suffix=st.sampled_from([("k", 10**3), ("m", 10**6), ("K", 2**10), ("M", 2**20)]),
)
def test_a_small_letter_is_decimal_and_a_capital_binary(count: int, suffix: tuple[str, int]) -> None:
    assert short_count(f" {count}{suffix[0]} ") == count * suffix[1]


@pytest.mark.parametrize("text", ["", "12", "k", "-1k", "1kk", "1,5k", "1e3k", "inf", "²k"])
def test_what_is_no_short_count_stays_as_it_is(text: str) -> None:
    assert short_count(text) == text


def test_a_fraction_is_rounded_to_the_nearest_token() -> None:
    assert short_count("25.6k") == 25_600
    assert short_count("0.3K") == 307


@pytest.mark.parametrize(
    ("spec", "name"), [(Pool, "kv_budget"), (Pool, "num_gpu_blocks_override"), (Traffic, "input_len")]
)
def test_every_whole_number_may_be_written_short(spec: type[Spec], name: str) -> None:
    beside = {"gpu": "h100"} if spec is Pool else {}
    assert getattr(build(spec, {**beside, name: "6.4K"}), name) == 6554
    with pytest.raises(InvalidInput, match=name):
        build(spec, {**beside, name: "6.4X"})


def test_a_text_is_not_read_as_a_number() -> None:
    assert build(Traffic, {"image_size": "1k", "images_per_prompt": "1k"}).image_size == "1k"

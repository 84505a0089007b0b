"""Grammars cost host time of every row, and a compilation before the first."""

from __future__ import annotations

import pytest

import capacity
from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.pool.settings import COMPILE_S, MASK_S

LOAD = {"input_len": 200, "output_len": 30, "concurrency": 4, "num_prompts": 20}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.1-70b"])
def test_a_mask_takes_its_time_for_each_sequence_whatever_the_depth(model: str) -> None:
    plain, masked = (
        resolve(model, Pool(gpu="h100", tensor_parallel_size=4, structured_output=grammar)).step_setting
        for grammar in ("none", "cached")
    )
    assert masked.host_time().per_sequence_s == pytest.approx(plain.host_time().per_sequence_s + MASK_S)
    assert masked.host_time().step_s == plain.host_time().step_s


def test_a_grammar_of_its_own_is_compiled_before_the_first_token() -> None:
    ttft, tpot = {}, {}
    for grammar in ("none", "cached", "each"):
        answer = capacity.simulate("llama-3.1-8b", gpu="h100", **LOAD, structured_output=grammar).to_dict()
        ttft[grammar], tpot[grammar] = answer["mean_ttft_ms"], answer["mean_tpot_ms"]
    assert tpot["none"] <= tpot["cached"]
    assert ttft["each"] > ttft["cached"] + 0.9 * COMPILE_S * 1e3

"""What there is to ask about: every preset and every profile, with numbers that are known by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity.answers.listings import gpus, models, use_cases
from capacity.base.errors import InvalidInput
from capacity.hardware import profile_names
from capacity.model import model_names


def test_every_preset_and_every_profile_is_listed() -> None:
    assert [model["name"] for model in models()] == list(model_names())
    assert [gpu["name"] for gpu in gpus()] == list(profile_names())


def test_numbers_by_hand() -> None:
    """Llama-3.1-8B: 32 layers x 8 KV heads x 128 values x 2 x 2 B. An H100 moves 3.35 TB/s."""
    (llama,) = [model for model in models() if model["name"] == "llama-3.1-8b"]
    assert llama["kv_bytes_per_token"] == 32 * 8 * 128 * 2 * 2
    (h100,) = [gpu for gpu in gpus() if gpu["name"] == "h100-sxm-80gb"]
    assert h100["hbm_bytes_per_s"] == pytest.approx(3.35e12, rel=0.001)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        gpus(profiles=tmp_path / "nowhere")


def test_use_cases_are_listed_with_their_sources() -> None:
    cases = {case["name"]: case for case in use_cases()}
    assert cases["chat"]["input_len"] == 1155  # of the trace's 19,366 requests
    assert set(cases["chat"]["sources"]) == {"input_len", "output_len", "slo", "think_time_s"}
    assert cases["rag"]["sources"]["input_len"].startswith("assumed: ")

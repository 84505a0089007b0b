"""Parameter counts against transformers' own modules, built on the meta device: to the parameter, family by family.

`tests/data/model_counts.json` holds configurations (the defaults of transformers 5.23's classes, and public copies of
published ones) and how many parameters its text model has. What is not exact is listed, with how far it is off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capacity.model import from_hf_config

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "model_counts.json").read_text(encoding="utf-8")
)
# read by their fields' names: what the names do not say, as a part of all parameters
ASSUMED = {
    "diffllama": 1e-5,  # four vectors a layer of differential attention
    "olmo_hybrid": 1e-5,
    "lfm3": 1e-3,
    "bailing_hybrid": 0.006,  # gates and convolutions of its attention
    "inkling_text": 0.002,
    "zaya": 0.005,
    "hy_v4": 0.014,  # hyper-connections
    "glm5_next_text": 0.002,
}
NOT_READ = {
    "recurrent_gemma": "max_position_embeddings",
    "rwkv": "recurrence",
    "xlstm": "intermediate_size",
}
EXACT = [row for row in ROWS if row["name"] not in ASSUMED | NOT_READ and row["name"] != "zamba2"]


@pytest.mark.parametrize("row", EXACT, ids=[row["name"] for row in EXACT])
def test_counts_are_those_of_the_reference_modules(row: dict[str, Any]) -> None:
    model = from_hf_config(row["config"], name=row["name"])
    assert model.total_params == row["params"]
    assert not model.assumed
    if row.get("vision_params") and "vision_config" not in model.uncounted:
        assert model.vision_params == row["vision_params"]


@pytest.mark.parametrize("name", ASSUMED)
def test_what_is_read_by_names_is_near_and_said(name: str) -> None:
    row = next(row for row in ROWS if row["name"] == name)
    model = from_hf_config(row["config"], name=name)
    assert model.total_params == pytest.approx(row["params"], rel=ASSUMED[name])
    assert model.assumed
    assert "(assumed)" in model.notes[0]

"""`simulate`: its record."""

from __future__ import annotations

import json

import jsonschema

import capacity
from capacity.report.schemas import json_schema


def test_a_simulation_validates_against_its_schema() -> None:
    answer = capacity.simulate("llama-3.1-8b", gpu="h100", input_len=64, output_len=4, num_prompts=5)
    jsonschema.validate(json.loads(json.dumps(answer.to_dict())), json_schema("simulation"))

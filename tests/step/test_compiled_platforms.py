"""Chips whose programs are compiled for each shape of a step: no launches, padded rows, no thread blocks."""

from __future__ import annotations

import pytest

from capacity.deployment.engines import find_engine
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting

CHIPS = {"tpu-v6e": 16, "gaudi3": 1, "trainium2": 1}


def setting(gpu: str, engine: str = "vllm@0.33") -> StepSetting:
    return StepSetting(
        model=load_model("llama-3.1-8b"), profile=load_profile(gpu), engine=find_engine(engine)
    )


@pytest.mark.parametrize("gpu", CHIPS)
def test_steps_of_compiled_programs_are_padded_to_powers_of_two(gpu: str) -> None:
    model = StepModel(setting(gpu))
    assert model.host.graph_sizes[0] == CHIPS[gpu]
    assert all(2 * small == large for small, large in zip(model.host.graph_sizes, model.host.graph_sizes[1:]))
    assert model.largest_prefill_graph == 32_768


@pytest.mark.parametrize("gpu", [*CHIPS, "h100"])
def test_attention_has_a_cost_per_thread_block_on_gpus_only(gpu: str) -> None:
    constants = setting(gpu).lookup().kernel("decode_attention", "16bit")
    assert (constants.occupancy_s > 0) is (gpu == "h100")


def test_chip_share_applies_to_constants_of_all_gpus() -> None:
    trainium, tpu = (setting(gpu).lookup().kernel("gemm", "bf16") for gpu in ("trainium2", "tpu-v6e"))
    assert trainium.compute_fraction == pytest.approx(0.442 * tpu.compute_fraction)
    assert trainium.fixed_s == pytest.approx(tpu.fixed_s / 0.442)
    assert "served means" in trainium.fit.source


@pytest.mark.parametrize(
    ("engine", "gpu", "early"),
    [
        ("sglang@0.5", "mi300x", True),
        ("sglang@0.5.10", "mi300x", False),
        ("sglang@0.5", "h100", False),
    ],
)
def test_early_releases_on_a_platform_widen_the_error_and_say_so(engine: str, gpu: str, early: bool) -> None:
    model = StepModel(setting(gpu, engine))
    assert model.error_factor == (2.5 if early else 1.0)
    assert any("2.5 times slower" in note for note in model.notes) is early

"""Start-up times: the parts that each engine has, and starts that the logs of the parts are not of."""

from __future__ import annotations

import math
import tomllib

import pytest
from scipy.stats import t as student

import capacity
from capacity.answers.records import StartUp
from capacity.answers.startup import LOGS, _student, startup_part


def startup(model: str, gpu: str, **options: object) -> StartUp:
    found = capacity.fit(model, gpu=gpu, **options).startup
    assert found is not None
    return found


def test_startup_of_each_engine_has_the_parts_that_it_goes_through() -> None:
    usual = ["process", "weights", "profiling"]
    assert list(startup("llama-3.1-8b", "h100").parts_s) == [*usual, "compile", "graphs"]
    assert list(startup("llama-3.1-8b", "h100", engine="sglang").parts_s) == [*usual, "graphs"]
    assert list(startup("llama-3.1-8b", "h100", engine="vllm@0.6").parts_s) == [*usual, "graphs"]
    assert list(startup("llama-3.1-8b", "h100", enforce_eager=True).parts_s) == usual
    assert capacity.fit("llama-3.1-8b", gpu="h100", engine="tgi").startup is None
    assert capacity.fit("llama-3.1-8b", gpu="mi300x").startup is None
    assert capacity.fit("llama-3.1-70b", gpu="h100").startup is None  # does not fit


def test_startup_weights_are_read_at_the_stated_rate_per_gpu() -> None:
    found = startup("llama-3.1-70b", "h100", tensor_parallel_size=4)
    weights = capacity.fit("llama-3.1-70b", gpu="h100", tensor_parallel_size=4).memory.weights_bytes
    assert found.parts_s["weights"].value == pytest.approx(weights / 1e9 / found.weights_gb_per_s)
    assert found.total_s.value == pytest.approx(sum(part.value for part in found.parts_s.values()))
    assert found.total_s.low is not None
    assert found.total_s.high is not None
    assert 0 < found.total_s.low < found.total_s.value < found.total_s.high


def test_startup_interval_holds_a_start_that_no_part_is_from() -> None:
    """vLLM issue 43189 (2026-05): about eight minutes until DeepSeek-V4-Flash serves on eight H20."""
    total = startup("deepseek-v4-flash", "h20", tensor_parallel_size=8).total_s
    assert total.low is not None
    assert total.high is not None
    assert total.low < 480 < total.high


def test_part_of_interval_holds_nine_of_ten_logs() -> None:
    """At least nine of ten logs lie inside the interval of their table."""
    tables = tomllib.loads(LOGS.read_text(encoding="utf-8"))
    inside = [
        part.low <= value <= part.high
        for name, table in tables.items()
        for part in [startup_part(name)]
        for value in table.values()
        if part.low is not None and part.high is not None
    ]
    assert len(inside) == sum(map(len, tables.values())) >= 30
    assert sum(inside) / len(inside) >= 0.9
    rates = tables["weights_gb_per_s"].values()
    mean = math.exp(sum(map(math.log, rates)) / len(rates))
    assert startup_part("weights_gb_per_s").value == pytest.approx(mean)


@pytest.mark.parametrize("freedom", [7, 18, 40])
def test_student_is_the_quantile_of_student_t(freedom: int) -> None:
    assert _student(freedom) == pytest.approx(float(student.ppf(0.95, freedom)), rel=0.004)


def test_every_start_up_log_has_a_source_and_a_date() -> None:
    for table in tomllib.loads(LOGS.read_text(encoding="utf-8")).values():
        for source, value in table.items():
            assert value > 0
            assert any(f"{year}-" in source for year in (2023, 2024, 2025, 2026)), source

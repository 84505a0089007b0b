"""What a plan recommends runs as printed and loses no quality; the rest is listed with what it would save."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from quick_plans import SHORT

from capacity.deployment import Pool
from capacity.deployment.drafts import draft_checkpoints
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.deployment.launch_dialects import DRAFT, METHODS_WITH_CHECKPOINT
from capacity.deployment.launch_writers import launch_command
from capacity.model import load_model
from capacity.planning.plan import plan
from capacity.planning.quality import EVALUATION_NOISE, METHODS, published_quality
from capacity.planning.records import Plan
from capacity.planning.search.conditions import conditions_of
from capacity.planning.space import Search
from capacity.pool.drafting import find_speculator
from capacity.pool.resolve import resolve
from capacity.report.tables import render

QUESTION: dict[str, Any] = {
    **SHORT, "gpus": "h100", "tensor_parallel_sizes": (1, 2), "max_num_batched_tokens": (None,),
    "serving": "aggregated", "request_rate": 40.0, "random_range_ratio": 0.3, "slo": "ttft:p95:500ms tpot:p95:8ms",
    "price": "2", "max_gpus": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def by_default() -> Plan:
    return plan("llama-3.1-8b", **QUESTION)


def test_recommendation_by_default_runs_as_printed_and_loses_no_quality(by_default: Plan) -> None:
    assert by_default.best is not None
    for answer in by_default.ranked:
        assert answer.quality.lossless
        assert answer.pool.speculator is None  # no acceptance was measured on this model
        assert answer.pool.kv_cache_dtype == "auto"
        for line in answer.launch:
            assert DRAFT not in line.command
    assert by_default.reasons["conditional"] > 0


def test_conditional_deployments_cost_less_and_name_what_they_depend_on(by_default: Plan) -> None:
    assert by_default.best is not None
    assert by_default.conditional
    for each in by_default.conditional:
        assert each.conditions
        assert each.answer.objective < by_default.best.objective
        assert each.answer.trial.met
    text = " ".join(render(by_default, "table", detail=False).split())
    drafted = next(each for each in by_default.conditional if each.answer.pool.speculator)
    assert (
        "eagle3 drafts with the acceptance rate measured on Llama-3.3-70B-Instruct" in drafted.conditions[0]
    )
    assert f"saves ${by_default.best.objective - drafted.answer.objective:,.2f}/h" in text
    assert text.index("Rent ") < text.index(drafted.conditions[0])


def test_plan_for_latency_without_percentiles_lists_what_is_faster_under_conditions() -> None:
    """Every limit is owed to each request; lossy formats and unnamed drafts are faster and never recommended."""
    question = QUESTION | {"slo": "ttft:500ms tpot:50ms", "request_rate": 10.0, "max_gpus": 4}
    answer = plan("llama-3.1-8b", **question | {"objective": "latency", "tensor_parallel_sizes": (1,)})
    assert answer.best is not None
    assert all(
        not conditions_of(Search(gpus="h100"), load_model("llama-3.1-8b"), each.pool)
        for each in answer.ranked
    )
    assert answer.conditional
    for each in answer.conditional:
        assert each.conditions
        assert each.answer.trial.met
        assert each.answer.objective == each.answer.trial.ratio < answer.best.trial.ratio
    text = " ".join(render(answer, "table", detail=False).split())
    assert " of the limits, saves " in text[text.index("Cheaper, but only under") :]


@pytest.mark.parametrize(
    ("asked", "conditions"),
    [
        ({"speculators": "none,eagle3"}, {"eagle3"}),
        ({"quantizations": (None, "fp8", "int4")}, {"int4"}),
        ({"max_quality_loss": 0.05}, {"int4", "fp8"}),
        ({"kv_cache_dtypes": ("auto", "fp8")}, {"fp8 KV"}),
    ],
)
def test_search_widened_by_name_may_recommend_it(
    asked: dict[str, Any], conditions: set[str], by_default: Plan
) -> None:
    """The answer is never more expensive, and nothing that was asked for is left as a condition."""
    answer = plan("llama-3.1-8b", **QUESTION, **asked)
    assert answer.best is not None
    assert by_default.best is not None
    assert answer.best.objective <= by_default.best.objective
    left = {condition for each in answer.conditional for condition in each.conditions}
    assert not any(name in condition for condition in left for name in conditions)


def test_plan_without_a_lossless_answer_recommends_nothing_and_lists_the_others() -> None:
    """A model of 131 GiB on GPUs of 48: only 4-bit weights fit, so there is no answer that keeps its quality."""
    question = QUESTION | {
        "tensor_parallel_sizes": (1,),
        "request_rate": 1.0,
        "slo": "ttft:p95:5s tpot:p95:150ms",
    }
    answer = plan("llama-3.1-70b", **question | {"gpus": "l40s", "price": "1", "max_gpus": 8})
    assert answer.best is None
    assert {"int4 weights"} <= {condition for each in answer.conditional for condition in each.conditions}
    for detail in (False, True):
        text = " ".join(render(answer, "table", detail=detail).split())
        assert "No deployment in the search space meets the SLO without the conditions listed below" in text
        assert "with int4 weights: $" in text


def test_no_loss_allowed_excludes_every_format_with_a_published_loss() -> None:
    answer = plan("llama-3.1-8b", **QUESTION, max_quality_loss=0.0, speculators="none")
    assert {each.pool.quantization for each in answer.ranked} == {None}
    assert answer.conditional == ()


def test_lossless_means_within_the_noise_of_an_evaluation() -> None:
    for params in (1e9, 8e9, 70e9, 500e9):
        table = {family: published_quality(family, params) for family in METHODS}
        fp8 = table["fp8"]
        assert fp8 is not None
        assert fp8.worst_loss_fraction is not None
        assert 0 < fp8.worst_loss_fraction <= EVALUATION_NOISE
        assert {name for name, change in table.items() if change is not None and change.lossless} == {"fp8"}


@pytest.mark.parametrize(
    ("model", "pool", "condition"),
    [
        ("llama-3.1-8b", {}, None),
        ("llama-3.1-8b", {"quantization": "fp8"}, None),
        ("llama-3.1-8b", {"quantization": "fp8", "engine": "tensorrt-llm"}, "a checkpoint in fp8"),
        ("llama-3.1-8b", {"quantization": "int4"}, "int4 weights"),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}, "fp8 KV cache"),
        ("llama-3.3-70b", {"speculator": "eagle3"}, None),
        (
            "llama-3.1-70b",
            {"speculator": "eagle3"},
            "eagle3 drafts with the acceptance rate measured on Llama-3.3-70B",
        ),
        ("deepseek-r1", {"speculator": "mtp"}, None),
        ("glm-4.5", {"speculator": "mtp"}, "mtp drafts with the acceptance rate measured on DeepSeek-R1"),
    ],
)
def test_conditions_of_an_engine(model: str, pool: dict[str, Any], condition: str | None) -> None:
    found = conditions_of(Search(gpus="h100"), load_model(model), Pool(gpu="h100", **pool))
    assert len(found) == (condition is not None)
    assert condition is None or found[0].startswith(condition)


def test_draft_checkpoints_are_named_by_the_launch_command_and_set_the_acceptance() -> None:
    for (target, method), known in draft_checkpoints().items():
        assert (known.checkpoint is None) == (method not in METHODS_WITH_CHECKPOINT)
        assert (known.accepted_length is None) == (known.checkpoint is None)
        pool = Pool(gpu="h100", speculator=method, num_speculative_tokens=2)
        for engine in ("vllm", "sglang", "tensorrt-llm"):
            launch = launch_command(engine, target, pool)
            text = launch.text + "".join(content for _, content in launch.files)
            assert DRAFT not in text
            assert known.checkpoint is None or known.checkpoint in text
    small = find_speculator("eagle3", load_model("gpt-oss-20b"))
    assert small.tokens_per_round(7) == pytest.approx(2.63)
    assert small.tokens_per_round(7) < find_speculator("eagle3").tokens_per_round(7) == pytest.approx(2.88)


def test_launch_line_states_every_setting_and_the_release(by_default: Plan) -> None:
    assert by_default.best is not None
    (line,) = by_default.best.launch
    words = shlex.split(line.command)
    pool = by_default.best.pool
    simulated = resolve("llama-3.1-8b", pool)
    for flag, value in (
        ("--max-model-len", simulated.max_model_len),
        ("--max-num-seqs", simulated.max_num_seqs),
        ("--max-num-batched-tokens", simulated.max_num_batched_tokens),
        ("--gpu-memory-utilization", simulated.engine.gpu_memory_utilization),
        ("--kv-cache-dtype", "auto"),
    ):
        assert words[words.index(flag) + 1] == str(value)
    assert "--enable-prefix-caching" in words
    assert 'pip install "vllm==0.33.0"' in line.notes[0]
    assert "vllm/vllm-openai:v0.33.0" in line.notes[0]
    again = resolve("llama-3.1-8b", read_vllm_command(line.command).pool(pool.gpu))
    assert again.limits == simulated.limits
    assert again.memory == simulated.memory

"""The head-to-head with other tools: the page shows the recorded figures, and our columns are true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from capacity.model import load_model

ROOT = Path(__file__).parent.parent


@pytest.fixture
def script(benchmark: Any) -> ModuleType:
    return benchmark("head_to_head")  # type: ignore[no-any-return]


@pytest.fixture
def recorded(script: ModuleType) -> dict[str, Any]:
    return json.loads(script.FIGURES.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def case(script: ModuleType, **changes: Any) -> Any:
    fields = {
        "source": "a source",
        "group": "dense, fitted configurations",
        "model": "llama-3.1-8b",
        "fields": {"gpu": "h100-sxm-80gb", "engine": "vllm@0.11"},
        "concurrency": 8,
        "input_len": 200,
        "output_len": 400,
        "tokens_per_s": 1000.0,
        "tpot_ms": 8.0,
    }
    return script.Case(**(fields | changes))


def test_page_shows_the_recorded_figures(script: ModuleType, recorded: Mapping[str, Any]) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.page_with(page, script.render(recorded)) == page


def test_record_has_figures_of_rows_in_groups_and_no_row(
    script: ModuleType, recorded: Mapping[str, Any]
) -> None:
    """The leaderboard has no licence: its rows may not be kept."""
    for found in recorded["sets"].values():
        for tool in found["tools"].values():
            assert set(tool["groups"]) <= {group for groups in script.GROUPS.values() for group in groups}
            assert all(
                not isinstance(value, list) or len(value) == 2
                for each in tool["groups"].values()
                for value in each.values()
            )


def test_roofline_of_one_sequence_reads_the_weights_once(script: ModuleType) -> None:
    answer = script.ask_roofline(case(script, concurrency=1, input_len=1, output_len=2))
    model = load_model("llama-3.1-8b")
    read = 2 * (model.total_params - model.vocab_size * model.hidden_size)  # bytes; not the embedding
    assert answer.tpot_ms == pytest.approx(1e3 * read / 3.35e12, rel=0.01)


def test_roofline_of_many_sequences_is_compute(script: ModuleType) -> None:
    answer = script.ask_roofline(case(script, concurrency=4096, input_len=16, output_len=16))
    flops = 2 * load_model("llama-3.1-8b").active_params
    assert answer.tokens_per_s == pytest.approx(
        989.4e12 / flops / 2, rel=0.01
    )  # half of the tokens are prompts


def test_batch_of_one_uses_the_experts_of_one_token(script: ModuleType) -> None:
    assert script.share_of_experts_used("gpt-oss-120b", 1) == pytest.approx(4 / 128)
    assert script.share_of_experts_used("gpt-oss-120b", 4096) == pytest.approx(1)


def test_nearest_row_is_another_row_of_the_same_source(script: ModuleType) -> None:
    own = case(script)
    near = case(script, concurrency=16, tokens_per_s=1800.0, tpot_ms=9.0)
    far = case(script, model="llama-3.1-70b", tokens_per_s=300.0, tpot_ms=30.0)
    elsewhere = case(script, source="another", tokens_per_s=1.0)
    answer = script.ask_nearest(own, [own, far, near, elsewhere])
    assert (answer.tokens_per_s, answer.tpot_ms) == (900.0, 9.0)
    assert script.ask_nearest(own, [own, elsewhere]) is None


def test_rows_that_a_tool_refuses_count_for_no_tool(script: ModuleType) -> None:
    cases = [case(script), case(script, group="experts", tokens_per_s=500.0)]
    exact = [script.Answer(tokens_per_s=each.tokens_per_s, tpot_ms=8.8, low=400, high=600) for each in cases]
    other = [script.Answer(tokens_per_s=1100.0, tpot_ms=8.0), None]
    tools = {script.OURS: script.Timed(exact, 0.1), script.OTHER: script.Timed(other, 1.0)}
    found = script.figures_of(cases, tools, {1: "out of memory"}, script.GROUPS[script.LEADERBOARD])
    every = found["tools"][script.OTHER]["groups"]["all"]
    assert every["rows"] == 1
    assert every["tokens_per_s"] == pytest.approx([0.1, 0.1])
    assert every[f"closer than {script.OURS}"] == 0
    ours = found["tools"][script.OURS]
    assert ours["groups"]["all"]["inside"] == 0
    assert ours["groups"]["all"]["tpot_ms"] == pytest.approx([0.1, 0.1])
    assert (ours["answered"], found["tools"][script.OTHER]["answered"]) == (2, 1)
    assert found["ours on refused rows"]["inside"] == 1


def test_question_states_the_launch(script: ModuleType, tmp_path: Path) -> None:
    fields = {
        "gpu": "h100",
        "engine": "vllm@0.11",
        "tensor_parallel_size": 8,
        "enable_expert_parallel": True,
        "quantization": "fp8",
    }
    question = script.aisimulate_question(
        case(script, model="qwen3-235b-a22b-2507", fields=fields, concurrency=64), tmp_path
    )
    assert question["model_path"] == "Qwen/Qwen3-235B-A22B-FP8"
    assert (question["system_name"], question["backend_name"]) == ("h100_sxm", "vllm")
    assert (question["tp_size"], question["moe_ep_size"], question["batch_size"]) == (8, 8, 64)
    assert "moe_tp_size" not in question
    own = script.aisimulate_question(case(script, model="qwen3-14b"), tmp_path)
    config = json.loads((Path(own["model_path"]) / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["num_hidden_layers"] == load_model("qwen3-14b").num_layers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["leaderboard", "published"])
def test_our_columns_are_what_the_script_computes(
    script: ModuleType, recorded: Mapping[str, Any], shared_dir: Path, name: str
) -> None:
    if name == "leaderboard":
        label, cases = script.LEADERBOARD, script.leaderboard_cases(shared_dir / "reference/measured")
    else:
        label, cases = script.PUBLISHED, script.published_cases(shared_dir)
    kept = recorded["sets"][label]
    refused = {int(number): why for number, why in kept["refused"].items()}
    found = script.figures_of(cases, script.own_tools(cases), refused, script.GROUPS[label])
    assert found["rows"] == kept["rows"]
    for tool, figures in found["tools"].items():
        for group, values in figures["groups"].items():
            assert flat(values) == pytest.approx(flat(kept["tools"][tool]["groups"][group]), abs=0.005), tool


@pytest.mark.parametrize("tool", ["ROOFLINE", "NEAREST"])
def test_baselines_are_what_the_script_computes(
    script: ModuleType, recorded: Mapping[str, Any], shared_dir: Path, tool: str
) -> None:
    cases = script.leaderboard_cases(shared_dir / "reference/measured")
    kept = recorded["sets"][script.LEADERBOARD]
    name = getattr(script, tool)
    ask = script.ask_roofline if tool == "ROOFLINE" else lambda each: script.ask_nearest(each, cases)
    tools = {script.OURS: script.timed(ask, cases)}
    found = script.figures_of(cases, tools, {int(n): "" for n in kept["refused"]}, ["all"])
    own, page = found["tools"][script.OURS]["groups"]["all"], kept["tools"][name]["groups"]["all"]
    assert own["rows"] == page["rows"]
    assert own["tokens_per_s"] == pytest.approx(page["tokens_per_s"], abs=0.005)


def flat(values: Mapping[str, Any]) -> dict[str, float]:
    pairs = {
        f"{k} {i}": v for k, each in values.items() if isinstance(each, list) for i, v in enumerate(each)
    }
    return pairs | {k: v for k, v in values.items() if not isinstance(v, list)}

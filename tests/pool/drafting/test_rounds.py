"""Rounds: limits of the cost model, published measurements, memory, and the simulator beside the formulas."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from library import SHARED
from resolved_pools import pool

from capacity.base.errors import DoesNotFit, InvalidInput, UnknownName
from capacity.pool.drafting import (
    Speculation,
    Speculator,
    acceptance_of_length,
    find_speculator,
    textbook_speedup,
)
from capacity.simulator import EngineSetup, simulate
from capacity.step import AffineStepTimes, decode_shape
from capacity.workload import Workload

RATE = st.floats(0, 1)


DRAFTS = st.integers(0, 12)


def chain(**fields: object) -> Speculator:
    return Speculator(name="eagle", kind="layer", draft_tokens=3, fused_inputs=2, **fields)  # type: ignore[arg-type]


def test_no_drafts_are_a_plain_step() -> None:
    speculation = Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.8))
    plain = speculation.round_of(8, 1000, 0)
    assert plain.speedup == 1
    assert plain.round_s == speculation.target.step_model.step_seconds(decode_shape(8, 1000))


@given(st.integers(1, 600), st.integers(1, 8))
def test_more_acceptance_is_never_slower_and_never_free(batch: int, drafts: int) -> None:
    target = pool("llama-3.1-8b", "h100")
    low = Speculation(target, chain(acceptance_rate=0.3)).round_of(batch, 800, drafts)
    high = Speculation(target, chain(acceptance_rate=0.9)).round_of(batch, 800, drafts)
    assert low.verify_s == high.verify_s
    assert high.tokens_per_round >= low.tokens_per_round
    assert high.speedup >= low.speedup * (1 - 0.02)  # the first draft step takes in more accepted tokens
    assert high.speedup < drafts + 1
    assert high.verify_cost > 0.99


def test_verification_is_nearly_free_at_batch_one_and_dear_when_compute_bound() -> None:
    speculation = Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.8))
    assert speculation.round_of(1, 1000, 3).verify_cost < 1.1
    assert speculation.round_of(512, 1000, 7).verify_cost > 1.5


def test_the_best_draft_length_shrinks_as_the_batch_grows() -> None:
    speculation = Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.7))
    best = [speculation.best_round(batch, 1000).draft_tokens for batch in (1, 64, 1024)]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]
    assert all(speculation.best_round(b, 1000).speedup >= 1 for b in (1, 64, 1024))


def test_the_break_even_batch_is_where_the_gain_ends() -> None:
    speculation = Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.5))
    batch = speculation.break_even_batch(500, 6)
    assert batch is not None
    assert speculation.round_of(batch, 500, 6).speedup <= 1
    assert speculation.round_of(batch - 1, 500, 6).speedup > 1
    assert Speculation(pool("llama-3.1-8b", "h100"), chain(acceptance_rate=0.0)).break_even_batch(500, 3) == 1


def test_deepseek_r1_mtp_against_the_published_table() -> None:
    """TensorRT-LLM, FP4, 8xB200, batch 1: speed-up 1.00/1.78/2.25/2.28/2.21/2.15. Ours within 6 %, optimum at 3.

    The lengths are published, the times are ours; nothing was fitted to this table.
    """
    speculation = Speculation(pool("deepseek-r1", "b200", "tensorrt-llm", 8, "nvfp4"), find_speculator("mtp"))
    ours = [speculation.round_of(1, 2000, k).speedup for k in range(6)]
    published = [1.00, 1.78, 2.25, 2.28, 2.21, 2.15]
    assert ours == pytest.approx(published, rel=0.06)
    assert max(range(6), key=lambda k: ours[k]) == 3


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_a_68m_draft_slows_llama_2_7b_at_batch_64(gpu: str) -> None:
    """Published: 5106.7 without, 2864.4 tok/s with a Llama-68M draft at batch 64 (0.56 times).

    GPU, k and acceptance are not stated. With an engine of that time (host 4 ms a step) the naive formula promises
    twice the speed, and ours a loss at k of 8 even with Spec-Bench's acceptance of a 68M draft (2.28 at k = 5).
    """
    target, draft = pool("llama-2-7b", gpu, "vllm@0.6"), pool("llama-68m", gpu, "vllm@0.6")
    speculator = find_speculator("draft-model")
    found = Speculation(target, speculator, draft=draft).round_of(64, 512, 8)
    naive = textbook_speedup(acceptance_of_length(2.28, 5), 8, 68 / 6738)
    assert naive > 2
    assert 0.4 < found.speedup < 0.85
    low = Speculation(target, speculator.with_acceptance("0.4"), draft=draft).round_of(64, 512, 5)
    assert low.speedup < 0.8


def test_the_published_throughputs_lie_between_ours() -> None:
    """Neither GPU nor engine are stated: on an H100, V0 and early V1 engines at 256 to 512 tokens bracket the 5106.7
    tokens/s without drafts, and acceptances from 0.4 to Spec-Bench's at k = 5 the 2864.4 with them.
    """

    def rate(engine: str, context: int, acceptance: str | None, drafts: int) -> float:
        target, draft = pool("llama-2-7b", "h100", engine), pool("llama-68m", "h100", engine)
        speculator = find_speculator("draft-model")
        if acceptance is not None:
            speculator = speculator.with_acceptance(acceptance)
        found = Speculation(target, speculator, draft=draft).round_of(64, context, drafts)
        return found.output_tokens_per_s if drafts else 64 / found.plain_step_s

    assert rate("vllm@0.6", 512, None, 0) < 5106.7 < rate("vllm@0.8", 256, None, 0)
    assert rate("vllm@0.6", 512, "0.4", 5) < 2864.4 < rate("vllm@0.6", 512, None, 5)


SPEC_BENCH = {
    "EAGLE3": "eagle3-tree", "EAGLE2": "eagle2-tree", "EAGLE": "eagle-tree", "Medusa": "medusa-tree",
    "PLD": "ngram", "SpS": "draft-model",
}  # fmt: skip


VICUNA_33B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 6656, "intermediate_size": 17920,
    "num_hidden_layers": 60, "num_attention_heads": 52, "vocab_size": 32000, "max_position_embeddings": 2048,
    "torch_dtype": "float16", "tie_word_embeddings": False,
}  # fmt: skip


TREE_BUILDING_S = 12.5e-3  # a round of that code: what its trees have in common, whatever the model


def test_spec_bench_speedups_at_batch_one(tmp_path: Path) -> None:
    """Vicuna 7B, 13B and 33B in HF transformers on A100, 16 rows: accepted lengths given, speed-ups predicted.

    Chains (a 68M draft, prompt lookup) within 10 %. Trees come out 15 to 35 % too fast: this leaderboard's code builds
    and prunes them in Python. One constant of 12.5 ms a round, whatever the model or method, brings all within 11 %.
    """
    if SHARED is None:
        pytest.skip("reference library not at hand (set CAPACITY_SHARED)")
    with gzip.open(Path(SHARED) / "reference/measured/spec_decode.csv.gz", "rt") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if row["workload"] == "all tasks"
            and row["gpu"] == "A100-80GB"
            and row["draft_or_method"] in SPEC_BENCH
        ]
    measured: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        cell = measured.setdefault((row["model"], SPEC_BENCH[row["draft_or_method"]]), {})
        cell[row["metric"]] = float(row["value"])
    assert len(measured) == 16
    config = tmp_path / "config.json"
    config.write_text(json.dumps(VICUNA_33B), encoding="utf-8")
    shapes = {
        "vicuna-7b-v1.3": "llama-2-7b",
        "vicuna-13b-v1.3": "llama-2-13b",
        "vicuna-33b-v1.3": str(config),
    }
    for (model, name), values in measured.items():
        speculator = find_speculator(name)
        length = values["mean_accepted_tokens_per_step"]
        if model == "vicuna-7b-v1.3" or name == "eagle3-tree":
            assert speculator.accepted_length == pytest.approx(length, abs=0.01)
        draft = pool("llama-68m", "a100", "hf-transformers") if name == "draft-model" else None
        speculation = Speculation(
            pool(shapes[model], "a100", "hf-transformers"),
            speculator.with_acceptance(f"length:{length}"),
            draft=draft,
        )
        found = speculation.round_of(1, 500)
        error = found.speedup / values["speedup_vs_autoregressive"] - 1
        if speculator.tree_tokens is None:
            assert abs(error) < 0.10, (model, name, error)
            continue
        assert 0.1 < error < 0.35, (model, name, error)
        built = found.tokens_per_round * found.plain_step_s / (found.round_s + TREE_BUILDING_S)
        assert built == pytest.approx(values["speedup_vs_autoregressive"], rel=0.11), (model, name)


def test_graphs_are_captured_for_the_rows_of_drafts() -> None:
    """vLLM captures up to 2 x max_num_seqs x (1 + drafts) rows: 64 sequences of 1 + 3 rows replay one."""
    many = pool("llama-3.1-8b", "h100")
    few = replace(many, max_num_seqs=64)
    rounds = [Speculation(target, find_speculator("eagle3")).round_of(64, 330, 3) for target in (few, many)]
    assert rounds[0].verify_s == rounds[1].verify_s
    assert rounds[0].verify_cost < 1.5


# memory


def test_a_draft_takes_its_weights_and_kv_from_the_cache() -> None:
    """Llama-68M at 16 bit: 136 MB of weights and 2 layers x 2 x 768 x 2 B = 6 KiB a token, beside 512 KiB."""
    speculation = Speculation(
        pool("llama-2-7b", "h100"), find_speculator("draft-model"), draft=pool("llama-68m", "h100")
    )
    memory = speculation.memory()
    assert memory.draft_kv_bytes_per_token == 6144
    assert memory.draft_weights_bytes == pytest.approx(2 * 68_030_208, rel=1e-3)
    plan = speculation.target.memory
    by_hand = (plan.kv_cache_bytes - memory.draft_weights_bytes) / (512 * 1024 + 6144)
    assert memory.kv_capacity_tokens_after == pytest.approx(by_hand, rel=1e-3)


def test_a_lookup_takes_no_memory() -> None:
    for model in ("gpt-oss-20b", "llama-2-7b"):
        memory = Speculation(pool(model, "h100"), find_speculator("ngram")).memory()
        assert memory.kv_capacity_tokens_after == memory.kv_capacity_tokens_before


def test_verifying_drafts_touches_more_experts() -> None:
    """gpt-oss-120b at batch 1: ten drafts read several times the experts of one token; a dense model's weights once."""
    sparse = Speculation(pool("gpt-oss-120b", "h200"), find_speculator("ngram")).round_of(1, 1000, 10)
    dense = Speculation(pool("llama-3.1-8b", "h200"), find_speculator("ngram")).round_of(1, 1000, 10)
    assert sparse.verify_cost > 1.8
    assert dense.verify_cost < 1.1


# the simulator beside the formula


@settings(max_examples=examples(20))
@given(st.integers(1, 4), st.integers(1, 40), st.sampled_from([(0,), (3,), (1, 3, 0, 2), (2, 2, 1)]))
def test_the_simulators_rounds_are_the_formulas(drafts: int, batch: int, accepted: tuple[int, ...]) -> None:
    """All requests alike: outputs/(mean accepted + 1) rounds, each base + rows x per token, after one prefill."""
    outputs = 1 + 12 * 5 * 7
    means = sum(min(a, drafts) for a in accepted) / len(accepted) + 1
    workload = Workload(
        arrival_s=np.zeros(batch), prompt_tokens=np.full(batch, 8), output_tokens=np.full(batch, outputs)
    )
    run = simulate(
        workload,
        EngineSetup(
            step_times=AffineStepTimes(1e-3, 1e-5),
            num_blocks=100_000,
            policy="vllm-v1",
            speculation=_cycle(drafts, accepted),
        ),
    )
    round_s = 1e-3 + 1e-5 * batch * (1 + drafts)
    rounds = (outputs - 1) / means
    assert run.status == "complete"
    assert run.summary.duration == pytest.approx(
        1e-3 + 8e-5 * batch + rounds * round_s, rel=0.01, abs=2 * round_s
    )


def _cycle(drafts: int, accepted: tuple[int, ...]) -> object:
    from capacity.simulator.schedulers import Speculation as Drafted

    return Drafted(drafts, accepted, lookahead_slots=drafts)


# bad questions


def test_what_cannot_be_is_refused_in_one_line() -> None:
    target = pool("llama-3.1-8b", "h100")
    with pytest.raises(InvalidInput, match="needs a draft model"):
        Speculation(target, find_speculator("draft-model"))
    with pytest.raises(InvalidInput, match="uses no --draft"):
        Speculation(target, find_speculator("eagle"), draft=pool("llama-68m", "h100"))
    with pytest.raises(InvalidInput, match="vocabulary"):
        Speculation(target, find_speculator("draft-model"), draft=pool("llama-68m", "h100"))
    with pytest.raises(InvalidInput, match="multi-token-prediction"):
        Speculation(target, find_speculator("mtp"))
    with pytest.raises(UnknownName, match="speculation method"):
        find_speculator("eagle9")
    speculation = Speculation(target, find_speculator("eagle"))
    for batch, context, drafts in ((0, 10, 1), (1, 0, 1), (1, 10, -1), (1, 10, 65)):
        with pytest.raises(InvalidInput):
            speculation.round_of(batch, context, drafts)
    with pytest.raises(InvalidInput):
        speculation.ttft_s(0)


def test_a_draft_that_does_not_fit_says_how_far_off() -> None:
    target = pool("llama-3-8b", "rtx-4090")
    with pytest.raises(DoesNotFit, match="draft's weights"):
        Speculation(
            target, find_speculator("self-draft").model_copy(update={"draft_quantization": "int8"})
        ).memory()

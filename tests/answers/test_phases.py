"""One load on one pool in closed form: spread over ranks, and refused with numbers where it cannot be."""

from __future__ import annotations

from typing import Any

import pytest

import capacity
from capacity.answers.phases import check_length, phases_of, request_lengths
from capacity.answers.simulate import simulate
from capacity.base.errors import DoesNotFit, InvalidInput
from capacity.deployment import Pool, Traffic
from capacity.planning.sizing.sized_estimate import estimate
from capacity.pool.resolve import ResolvedPool, resolve
from capacity.step.closed_form import PhaseTimes


def pool(**fields: float) -> ResolvedPool:
    return resolve("llama-3.1-8b", Pool(gpu="h100", max_model_len=8192, **fields))  # type: ignore[arg-type]


def times(resolved: ResolvedPool, **load: int) -> PhaseTimes:
    traffic = Traffic(input_len=500, output_len=50, **load)  # type: ignore[arg-type]
    return phases_of(resolved, traffic, request_lengths(resolved, traffic)).times


def test_ranks_of_a_dense_model_share_a_batch_and_the_fullest_sets_its_time() -> None:
    """7 requests on 2 ranks: 4 and 3. Latency is that of a batch of 4, and all 7 are done in its time."""
    one, two = times(pool(), batch_size=4), times(pool(data_parallel_size=2), batch_size=7)
    assert (two.ttft_s, two.tpot_s) == pytest.approx((one.ttft_s, one.tpot_s), rel=1e-12)
    assert two.requests_per_s == pytest.approx(one.requests_per_s * 7 / 4)


def test_ranks_of_a_dense_model_are_loops_of_their_own() -> None:
    equal = {"random_range_ratio": 0}
    # in one, messages and requests wait in another order
    own = dict.fromkeys(("front_end_output_token_s", "front_end_request_s", "front_end_input_token_s"), 0.0)
    one, two = (
        times(pool(**own), concurrency=8, **equal),
        times(pool(data_parallel_size=2, **own), concurrency=16, **equal),
    )
    assert two.tpot_s == pytest.approx(one.tpot_s, rel=1e-12)
    assert two.requests_per_s == pytest.approx(2 * one.requests_per_s)


def test_a_loop_waits_for_seats_and_a_batch_is_refused() -> None:
    narrow = pool(max_num_seqs=8)
    traffic = Traffic(input_len=500, output_len=50, concurrency=20)
    phases = phases_of(narrow, traffic, request_lengths(narrow, traffic))
    assert phases.requests == 8
    assert any(
        "Only 8 of the 20 requests run at a time (limit: max_num_seqs)" in note for note in phases.warnings
    )
    with pytest.raises(InvalidInput, match="--batch-size 20 exceeds max_num_seqs 8"):
        times(narrow, batch_size=20)


def test_a_batch_beyond_the_cache_says_what_fits() -> None:
    fields = Pool(gpu="h100", max_model_len=1600, num_gpu_blocks_override=101)
    small = resolve("llama-3.1-8b", fields)  # vLLM keeps a null block: 1,600 tokens
    with pytest.raises(DoesNotFit, match=r"3 x 550 tokens .* holds 2 such requests"):
        times(small, batch_size=3)
    traffic = Traffic(input_len=500, output_len=50, concurrency=3)
    assert phases_of(small, traffic, request_lengths(small, traffic)).requests == 2


@pytest.mark.parametrize(("engine", "fraction"), [("tensorrt-llm", 0.5), ("tgi", 0.5), ("vllm", 1)])
def test_an_engine_that_reserves_what_clients_ask_for_holds_fewer(engine: str, fraction: float) -> None:
    """500 + 50 tokens come, 500 + 600 may: half as many requests where all of it is reserved."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100", max_model_len=8192, engine=engine, max_num_seqs=4096))
    held = {}
    for max_tokens in (None, 600):
        traffic = Traffic(input_len=500, output_len=50, max_tokens=max_tokens, concurrency=100_000)
        held[max_tokens] = phases_of(resolved, traffic, request_lengths(resolved, traffic)).requests
    assert held[600] == pytest.approx(held[None] * fraction, rel=0.04)  # in whole blocks


def test_a_load_that_is_none_or_two_is_refused() -> None:
    for missing, traffic in (
        ("--input-len", Traffic(output_len=5, batch_size=1)),
        ("--output-len", Traffic(input_len=5, batch_size=1)),
        ("one of --batch-size", Traffic(input_len=5, output_len=5)),
    ):
        with pytest.raises(InvalidInput, match=missing):
            request_lengths(pool(), traffic)
    check_length(pool(), 8192)
    with pytest.raises(InvalidInput, match="8193 tokens exceeds max_model_len 8192"):
        check_length(pool(), 8193)


def test_images_are_tokens_of_the_prompt_and_work_of_the_tower() -> None:
    load: dict[str, Any] = {
        "gpu": "h100",
        "tensor_parallel_size": 2,
        "input_len": 200,
        "output_len": 50,
        "batch_size": 4,
    }
    plain = estimate("qwen3-vl-30b-a3b", **load)
    text = estimate("qwen3-vl-30b-a3b", **(load | {"input_len": 200 + 2 * 880}))
    seen = estimate("qwen3-vl-30b-a3b", images_per_prompt=2, image_size="1280x720", **load)
    assert seen.input_len == 200 + 2 * 880
    (tower,) = (row for row in seen.breakdown.prefill if row.name == "vision encoder")
    assert not any(row.name == "vision encoder" for row in plain.breakdown.prefill)
    # what the text of as many tokens costs, and the tower: its eight images go through it in the prompts' steps
    assert seen.ttft_s.value == pytest.approx(text.ttft_s.value + tower.seconds, rel=1e-6)
    assert plain.ttft_s.value < text.ttft_s.value


def test_images_and_a_clip_of_one_prompt_are_work_of_both_encoders() -> None:
    load: dict[str, Any] = {"gpu": "h100", "input_len": 100, "output_len": 10, "batch_size": 2}
    pictures: dict[str, Any] = {"images_per_prompt": 2, "image_size": "640x480"}
    tokens = 2 * 23 * 17

    def rows(**words: Any) -> tuple[int, dict[str, float]]:
        answer = estimate("qwen2.5-omni-7b", **load, **words)
        return answer.input_len, {row.name: row.seconds for row in answer.breakdown.prefill}

    (seen, pictured), (heard, listened) = rows(**pictures), rows(audio_seconds=20)
    both, together = rows(**pictures, audio_seconds=20)
    assert (seen, heard, both) == (100 + tokens, 100 + 500, 100 + tokens + 500)
    assert "audio encoder" not in pictured
    assert "vision encoder" not in listened
    assert together["vision encoder"] == pytest.approx(pictured["vision encoder"])
    assert together["audio encoder"] == pytest.approx(listened["audio encoder"])
    assert rows(audio_seconds=20, audio_tokens=300)[0] == 400


def test_a_model_that_embeds_makes_one_answer() -> None:
    load: dict[str, Any] = {"gpu": "l4", "input_len": 500, "batch_size": 8}
    assert estimate("bge-m3", output_len=1, **load) == estimate("bge-m3", **load)
    assert estimate("bge-m3", **load).tpot_s is None
    with pytest.raises(InvalidInput, match="--output-len 1"):
        estimate("bge-m3", output_len=2, **load)
    with pytest.raises(InvalidInput, match="--output-len 1"):
        simulate("bge-m3", gpu="l4", input_len=500, output_len=20, request_rate=2, num_prompts=10)
    run = simulate("bge-m3", gpu="h100", input_len=500, request_rate=2, num_prompts=10).to_dict()
    assert run["total_output_tokens"] == 10
    assert run["preemptions"] == 0


def test_an_assumed_tower_is_said_wherever_images_go_through_it() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "input_len": 50, "output_len": 9}
    said = "convolutional network, timed as matrix multiplications of equal work; its time was not measured"
    for images, basis in ((0, "calibrated"), (1, "assumed")):
        alone = estimate("gemma-3n-e4b", **asked, batch_size=2, images_per_prompt=images)
        loaded = simulate("gemma-3n-e4b", **asked, request_rate=2.0, num_prompts=5, images_per_prompt=images)
        assert alone.basis == basis
        for answer in (alone, loaded):
            assert any(said in warning for warning in answer.warnings) == bool(images)


def test_a_batch_beyond_the_cuda_graphs_says_what_it_costs() -> None:
    """A hybrid model's many kernels, launched one by one, take as long as its work: 513 requests take twice 512's."""
    options = {"gpu": "gh200-144gb", "input_len": 16, "output_len": 256}
    within, beyond = (capacity.estimate("nemotron-3-nano", batch_size=n, **options) for n in (512, 513))
    said = [note for note in beyond.warnings if "the largest CUDA graph" in note]
    assert len(said) == 1
    assert "Set --max-num-seqs 512, or raise --max-cudagraph-capture-size" in said[0]
    assert not any("the largest CUDA graph" in note for note in within.warnings)
    assert beyond.tpot_s.value > 1.1 * within.tpot_s.value
    eager = capacity.estimate("nemotron-3-nano", batch_size=513, enforce_eager=True, **options)
    assert not any("the largest CUDA graph" in note for note in eager.warnings)

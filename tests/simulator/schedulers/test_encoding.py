"""Images under vLLM V1: chunks that end before an image, and what the encoder runs when, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from engine_runs import run_engine
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from step_models import FunctionStepTimes

from capacity.base.errors import InvalidInput
from capacity.simulator import EngineSetup, SimulationResult
from capacity.simulator.engine import Engine
from capacity.simulator.engine_loop import readable_loop_reason
from capacity.simulator.members import Recording
from capacity.simulator.requests import Requests
from capacity.simulator.schedulers import SchedulerLimits, Sequence, Step
from capacity.simulator.schedulers.encoding import ImageEncoder
from capacity.simulator.schedulers.vllm_v1 import VllmV1
from capacity.step import AffineStepTimes, StepShape
from capacity.workload import PromptContent, Workload


@dataclass
class Watched:
    """Of every step: (request, tokens) of its rows, and (request, image) of what is encoded for it."""

    rows: list[list[tuple[int, int]]] = field(default_factory=list)
    encoded: list[list[tuple[int, int]]] = field(default_factory=list)

    def __call__(self, step: Step, engine: Engine) -> None:  # noqa: ARG002
        self.rows.append([(row.sequence.index, row.tokens) for row in step.rows])
        self.encoded.append([(r.index, image) for r, image in step.encoded])


def requests(prompt_tokens: list[int], images: list[int], image_tokens: int, outputs: int = 2) -> Workload:
    count = len(prompt_tokens)
    return Workload(
        arrival_s=np.zeros(count),
        prompt_tokens=np.array(prompt_tokens),
        output_tokens=np.full(count, outputs),
        images=np.array(images),
        image_tokens=np.full(count, image_tokens),
    )


def test_a_clip_is_encoded_after_the_images_by_its_own_size() -> None:
    """Two images of 30 tokens, a clip of 50, 20 of text, in chunks of 45: the clip begins in the second of them."""
    pictured = requests([130], [2], 30)
    result, seen = run(replace(pictured, audio_tokens=np.array([50])), max_num_batched_tokens=45)
    assert seen.rows[:3] == [[(0, 45)], [(0, 45)], [(0, 40)]]
    assert seen.encoded[:3] == [[(0, 0), (0, 1)], [(0, 2)], []]
    assert result.records.finish_ps.tolist() == [(70 + 10 + 10 + 10) * 10**9]  # 1 ms a token of images alone


def test_a_clip_alone_is_encoded_once() -> None:
    clip = Workload(
        arrival_s=np.zeros(1),
        prompt_tokens=np.array([80]),
        output_tokens=np.array([2]),
        audio_tokens=np.array([60]),
    )
    _, seen = run(clip, max_num_batched_tokens=50)
    assert seen.encoded == [[(0, 0)], [], []]
    with pytest.raises(InvalidInput, match="81 tokens of images and audio in a prompt of 80"):
        replace(clip, audio_tokens=np.array([81]))


def run(workload: Workload, **more: Any) -> tuple[SimulationResult, Watched]:
    """One engine whose step takes 10 ms, and 1 ms more for each token that the encoder computes."""
    watched = Watched()
    result = run_engine(
        workload,
        step_times=FunctionStepTimes(lambda shape: 0.010 + 0.001 * shape.encoder_tokens),
        num_blocks=more.pop("num_blocks", 1000),
        policy=more.pop("policy", "vllm-v1"),
        limits=SchedulerLimits(
            max_num_batched_tokens=more.pop("max_num_batched_tokens", 1000),
            max_encoder_tokens=more.pop("max_encoder_tokens", 100),
        ),
        observer=watched,
        **more,
    )
    assert result.status == "complete"
    return result, watched


def test_a_chunk_ends_before_an_image_that_the_budget_does_not_admit() -> None:
    """Two images of 60 tokens and 30 of text, 100 encoder tokens a step: 60 tokens, then 90, then the last answer."""
    result, seen = run(requests([150], [2], 60))
    assert seen.rows == [[(0, 60)], [(0, 90)], [(0, 1)]]
    assert seen.encoded == [[(0, 0)], [(0, 1)], []]
    assert result.records.finish_ps.tolist() == [(70 + 70 + 10) * 10**9]


def test_an_image_is_encoded_before_its_first_chunk_and_not_again() -> None:
    """60 tokens of image and 20 of text in chunks of 50."""
    _, seen = run(requests([80], [1], 60), max_num_batched_tokens=50)
    assert seen.rows[:2] == [[(0, 50)], [(0, 30)]]
    assert seen.encoded == [[(0, 0)], [], []]


def test_a_waiting_request_without_room_for_its_image_keeps_those_behind_it_waiting() -> None:
    """The second request's image waits for the budget of the next step; the third, which has none, waits behind it."""
    _, seen = run(requests([70, 70, 10], [1, 1, 0], 60))
    assert seen.rows[:2] == [[(0, 70)], [(0, 1), (1, 70), (2, 10)]]
    assert seen.encoded[:2] == [[(0, 0)], [(1, 0)]]


def test_the_cache_is_free_when_the_chunk_is_computed() -> None:
    """Asynchronous: as the second step is decided, the first is on its way and its image still held."""
    _, seen = run(requests([70, 70], [1, 1], 60), policy="vllm-v1-async")
    assert [step for step in seen.encoded if step] == [[(0, 0)], [(1, 0)]]
    assert [place for place, step in enumerate(seen.encoded) if step] == [0, 2]


def test_several_images_are_encoded_in_one_step_within_the_budget() -> None:
    _, seen = run(requests([150], [2], 60), max_encoder_tokens=120)
    assert seen.rows[0] == [(0, 150)]
    assert seen.encoded[0] == [(0, 0), (0, 1)]


def test_what_the_encoder_made_is_found_again_until_its_room_is_needed() -> None:
    """By hand: 100 tokens hold one image of 60; kept as it is let go, dropped for the next."""
    encoder, step = ImageEncoder(100), Step()
    first, second = (_sequence(index) for index in (0, 1))
    encoder.begin_step(step)
    assert encoder.schedulable_tokens(first, 0, 70) == 70
    encoder.encode(first, 0, 70)
    assert step.encoded == [(first, 0)]
    assert encoder.schedulable_tokens(second, 0, 70) == 0
    encoder.release(first)
    encoder.encode(first, 0, 70)
    assert step.encoded == [(first, 0)]  # found
    encoder.release(first)
    encoder.encode(second, 0, 70)
    assert step.encoded == [(first, 0), (second, 0)]
    assert encoder.schedulable_tokens(first, 0, 70) == 0


def test_a_chunk_ends_before_a_kept_image_whose_space_an_earlier_image_needs() -> None:
    """Of two images of 60 tokens in a cache of 100, the first one takes the space of the second one."""
    encoder, step = ImageEncoder(100), Step()
    only = _sequence(0)
    only.images = 2
    encoder.begin_step(step)
    encoder.encode(only, 60, 60)
    encoder.release(only)
    assert encoder.schedulable_tokens(only, 0, 130) == 60
    encoder.encode(only, 0, 60)
    assert step.encoded == [(only, 1), (only, 0)]


def test_what_a_preemption_kept_from_being_encoded_is_not_found() -> None:
    """Preempted in the step that was to encode it (by priority), it is encoded when it is back."""
    encoder, step, again = ImageEncoder(100), Step(), Step()
    only = _sequence(0)
    encoder.begin_step(step)
    encoder.encode(only, 0, 70)
    encoder.cancel_encoding(only)
    encoder.release(only)
    assert step.encoded == []
    encoder.begin_step(again)
    assert encoder.schedulable_tokens(only, 0, 70) == 70
    encoder.encode(only, 0, 70)
    assert again.encoded == [(only, 0)]


def _sequence(index: int) -> Sequence:
    made = Sequence(index, id=index, arrival=0, prompt_tokens=70, max_known=72, priority=0, table=None)
    made.images, made.image_tokens = 1, 60
    return made


@settings(max_examples=examples(60), deadline=None)
@given(
    images=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    image_tokens=st.integers(1, 80),
    text=st.integers(1, 90),
    chunk=st.integers(8, 300),
    encoder_tokens=st.integers(80, 300),
    policy=st.sampled_from(("vllm-v1", "vllm-v1-async")),
    num_blocks=st.sampled_from((40, 1000)),
)
def test_every_image_is_encoded_before_it_is_needed_within_the_budget_and_once(
    images: list[int],
    image_tokens: int,
    text: int,
    chunk: int,
    encoder_tokens: int,
    policy: str,
    num_blocks: int,
) -> None:
    prompts = [text + count * image_tokens for count in images]
    workload = requests(prompts, images, image_tokens, outputs=40)
    result, seen = run(
        workload,
        policy=policy,
        max_num_batched_tokens=chunk,
        max_encoder_tokens=encoder_tokens,
        num_blocks=num_blocks,
    )
    done = [0] * len(images)
    encoded: set[tuple[int, int]] = set()
    preempted = bool(result.records.preemptions.any())
    for rows, now in zip(seen.rows, seen.encoded, strict=True):
        assert len(now) * image_tokens <= encoder_tokens
        assert preempted or encoded.isdisjoint(now)
        encoded.update(now)
        if preempted:
            continue
        for request, tokens in rows:
            done[request] += tokens
            reached = min(-(-done[request] // image_tokens), images[request])
            assert encoded.issuperset((request, image) for image in range(reached))
    assert encoded == {(request, image) for request, count in enumerate(images) for image in range(count)}
    if not preempted:
        assert sum(map(len, seen.encoded)) == sum(images)
        assert done == [prompt + 39 for prompt in prompts]


def test_a_shape_has_the_tokens_and_the_squares_of_what_is_encoded() -> None:
    shapes: list[StepShape] = []

    def step_s(shape: StepShape) -> float:
        shapes.append(shape)
        return 0.01

    run_engine(
        requests([150, 70], [2, 1], 60),
        step_times=FunctionStepTimes(step_s),
        num_blocks=100,
        policy="vllm-v1",
        limits=SchedulerLimits(max_encoder_tokens=200),
        engine_loop="events",
    )
    assert (shapes[0].encoder_tokens, shapes[0].encoder_pairs) == (180, 3 * 60**2)
    assert shapes[1].encoder_tokens == 0


def test_images_run_on_the_compiled_engines() -> None:
    setup = EngineSetup(
        step_times=AffineStepTimes(0.01, 0.0),
        num_blocks=100,
        policy="vllm-v1",
        limits=SchedulerLimits(max_encoder_tokens=100),
    )
    words = Requests(requests([150], [2], 60)), Requests(requests([150], [0], 60))
    with_images, without = (readable_loop_reason(Recording(), [setup], each) for each in words)
    assert with_images == without


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"policy": "sglang"},
            "only the schedulers vllm-v1 and vllm-v1-async and chunked support images, not sglang",
        ),
        ({"limits": SchedulerLimits()}, "no vision encoder that is simulated"),
        (
            {"limits": SchedulerLimits(max_encoder_tokens=59)},
            "exceeds the encoder's limit of 59 tokens per step",
        ),
        ({"limits": SchedulerLimits(max_encoder_tokens=60, pipeline_stages=2)}, "--pipeline-parallel-size"),
        ({"limits": SchedulerLimits(max_encoder_tokens=60, enable_chunked_prefill=False)}, "chunked-prefill"),
    ],
)
def test_an_engine_that_encodes_nothing_refuses_images(fields: dict[str, Any], why: str) -> None:
    setup = {"policy": "vllm-v1", "limits": SchedulerLimits(max_encoder_tokens=100)} | fields
    with pytest.raises(InvalidInput, match=why):
        run_engine(requests([150], [2], 60), step_times=AffineStepTimes(0.01, 0.0), num_blocks=100, **setup)


def test_a_policy_of_ones_own_may_encode() -> None:
    class Own(VllmV1):
        pass

    result, _ = run(requests([150], [2], 60), policy=Own)
    assert result.records.completed.all()


def test_a_workload_refuses_images_outside_of_prompts_and_of_prompts_that_share() -> None:
    with pytest.raises(InvalidInput, match="request 1 has 120 tokens of images and audio in a prompt of 119"):
        requests([150, 119], [1, 2], 60)
    columns = {"arrival_s": [0.0], "prompt_tokens": [90], "output_tokens": [1], "images": [1]}
    with pytest.raises(InvalidInput, match="must be given together"):
        Workload(**columns)
    content = PromptContent.from_segments([[(7, 90)]])
    with pytest.raises(InvalidInput, match="without shared content"):
        Workload(**columns, image_tokens=[60], content=content)

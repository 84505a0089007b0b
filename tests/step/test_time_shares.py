"""GPU time of a request: closed forms by hand, the closed loop's, limits, and no jumps as the load grows."""

from __future__ import annotations

import math

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.deployment import Pool
from capacity.pool.resolve import resolve
from capacity.step.closed_form import EngineLimits, closed_loop_times
from capacity.step.shape import StepCost, StepShape
from capacity.step.time_shares import EngineLoad, request_seconds

LIMITS = EngineLimits(
    max_num_seqs=256,
    max_num_batched_tokens=1_000_000,
    chunked_prefill=True,
    mixes_prefill_with_decode=True,
    window_tokens=None,
    request_latency_s=0.0,
)


class Linear:
    """A step takes 10 ms, 0.1 ms a decode row and 0.01 ms a prompt token."""

    def step_seconds(self, shape: StepShape) -> float:
        if not (shape.decode_sequences or shape.prefill_tokens):
            return 0.0
        return 0.010 + 1e-4 * shape.decode_sequences + 1e-5 * shape.prefill_tokens

    def step_cost(self, shape: StepShape) -> StepCost:
        raise NotImplementedError


def load_of(rate: float, **changed: object) -> EngineLoad:
    fields: dict[str, object] = {
        "requests_per_s": rate,
        "input_len": 1000,
        "output_len": 101,
        "most_decoding": 256,
    }
    return EngineLoad(**(fields | changed))  # type: ignore[arg-type]


def test_a_trickle_by_hand() -> None:
    """Nobody else is there: the prompt's step of its own, 20 ms; and 100 steps of one row, 10.1 ms each."""
    seconds = request_seconds(Linear(), LIMITS, load_of(1e-9))
    assert seconds.prefill_s == pytest.approx(0.020)
    assert seconds.decode_s == pytest.approx(100 * 0.0101)


def test_full_by_hand() -> None:
    """Among 256 others a prompt adds its tokens alone, 10 ms; 100 tokens take a 256th of 100 steps of 35.6 ms."""
    seconds = request_seconds(Linear(), LIMITS, load_of(1e6))
    assert seconds.prefill_s == pytest.approx(0.010)
    assert seconds.decode_s == pytest.approx(100 * (0.010 + 0.0256) / 256)


def test_infinite_rate_is_full_and_asks_for_one_batch() -> None:
    """The batch sizes on the way there change nothing and are not computed."""
    asked = set[int]()

    class Counted(Linear):
        def step_seconds(self, shape: StepShape) -> float:
            asked.add(shape.decode_sequences)
            return super().step_seconds(shape)

    full = request_seconds(Counted(), LIMITS, load_of(math.inf))
    assert asked - {0} == {256}
    assert full == request_seconds(Linear(), LIMITS, load_of(1e9))


def test_half_way_by_hand() -> None:
    """b = rate x 100 x (10 ms + b x 0.1 ms) / (1 - rate x 10 ms): at 20 a second b = 20 / (1 - 0.2 - 0.2)."""
    seconds = request_seconds(Linear(), LIMITS, load_of(20.0))
    b = 20 / 0.6
    assert seconds.decode_s == pytest.approx(100 * (0.010 + 1e-4 * b) / b, rel=2e-3)
    assert seconds.prefill_s == pytest.approx(0.010, rel=1e-6)


def test_few_users_share_a_step_more_than_the_mean_says() -> None:
    """Of arrivals by the clock, b decode at a time on average, but those who do are b / (1 - exp(-b)) together."""
    rate = 0.9  # b is about 0.9 x 100 x 10 ms
    seconds = request_seconds(Linear(), LIMITS, load_of(rate))
    b = rate * 1.0 / (1 - rate * (0.010 + seconds.prefill_s))
    batch = b / (1 - math.exp(-b))
    assert seconds.decode_s == pytest.approx(100 * (0.010 + 1e-4 * batch) / batch, rel=0.02)
    alone = request_seconds(Linear(), LIMITS, load_of(rate, in_flight=1.0))
    assert alone.decode_s == pytest.approx(100 * 0.0101)  # one user is never two


def test_a_single_token_has_no_decode() -> None:
    assert request_seconds(Linear(), LIMITS, load_of(5.0, output_len=1)).decode_s == 0.0


def test_hits_take_prefill_away() -> None:
    whole, half = (request_seconds(Linear(), LIMITS, load_of(1e-9, hit_fraction=hit)) for hit in (0.0, 0.5))
    assert half.prefill_s == pytest.approx(whole.prefill_s / 2)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("concurrency", [1, 2, 7, 32, 100])
def test_a_closed_loop_shares_as_its_closed_form_does(model: str, concurrency: int) -> None:
    """Its own prolongations and steps, by another way: the load is given as a rate alone."""
    resolved = resolve(model, Pool(gpu="h100"))
    times = closed_loop_times(
        resolved.step_model, resolved.limits, concurrency, input_len=700, output_len=150
    )
    load = EngineLoad(
        requests_per_s=times.requests_per_s,
        input_len=700,
        output_len=150,
        most_decoding=256,
        in_flight=float(concurrency),
    )
    seconds = request_seconds(resolved.step_model, resolved.limits, load)
    share = seconds.prefill_s / (seconds.prefill_s + seconds.decode_s)
    assert share == pytest.approx(times.prefill_share, rel=0.03)
    busy = times.requests_per_s * (seconds.prefill_s + seconds.decode_s)
    assert 0.93 < busy <= 1.01  # the rest of the cycle is the front end's


def test_ranks_in_lock_step_share_as_their_closed_form_does() -> None:
    """A prompt on either of them holds up both, and a step decodes the batches of both."""
    resolved = resolve("qwen3-30b-a3b", Pool(gpu="h100", data_parallel_size=2, enable_expert_parallel=True))
    times = closed_loop_times(
        resolved.step_model, resolved.limits, 48, input_len=700, output_len=150, ranks=2
    )
    load = EngineLoad(
        requests_per_s=times.requests_per_s,
        input_len=700,
        output_len=150,
        most_decoding=256,
        in_flight=48.0,
        ranks=2,
    )
    seconds = request_seconds(resolved.step_model, resolved.limits, load)
    share = seconds.prefill_s / (seconds.prefill_s + seconds.decode_s)
    assert share == pytest.approx(times.prefill_share, rel=0.03)


@settings(deadline=None, max_examples=examples(25))
@given(rate=st.floats(0.05, 60), closed=st.booleans())
def test_nothing_jumps_as_the_load_grows(rate: float, closed: bool) -> None:
    """A load that is 1 % greater has shares that are at most a few per cent elsewhere, full or not."""
    resolved = resolve("llama-3.1-8b", Pool(gpu="h100"))
    in_flight = 64.0 if closed else None
    before, after = (
        request_seconds(
            resolved.step_model,
            resolved.limits,
            EngineLoad(
                requests_per_s=each, input_len=700, output_len=150, most_decoding=256, in_flight=in_flight
            ),
        )
        for each in (rate, rate * 1.01)
    )
    shares = [each.prefill_s / (each.prefill_s + each.decode_s) for each in (before, after)]
    assert shares[1] == pytest.approx(shares[0], rel=0.06)

"""Data-parallel ranks: one is the plain engine, a dense model's are replicas, a mixture's wait for each other;
requests, tokens and blocks are conserved over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from engine_runs import differences, random_run, run_engine
from examples import examples
from filled_pools import H100, VLLM, pool_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

import capacity
from capacity.answers.deployment_run import run_service
from capacity.base.errors import InvalidInput, UnknownName
from capacity.deployment import Pool, Service
from capacity.deployment.engines import find_engine
from capacity.deployment.launch_command import read_line as read_vllm_command
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.planning.evaluation.step_error import Factors, ScaledSteps
from capacity.pool.resolve import resolve
from capacity.pool.weights import stage_weights
from capacity.simulator import EngineSetup, python_engines, simulate
from capacity.simulator.kv_cache.pool import JointPool
from capacity.simulator.schedulers import SchedulerLimits
from capacity.simulator.setup import make_pool
from capacity.step import AffineStepTimes, SlowestRank, StepShape, decode_shape, prefill_shape
from capacity.step.closed_form import EngineLimits, closed_loop_times
from capacity.step.model import StepModel
from capacity.step.setting import StepSetting
from capacity.workload import LognormalLengths, SteadyArrivals, Workload, synthetic

STEPS = AffineStepTimes(0.008, 4e-5, per_context_token_s=2e-8)
LIMITS = SchedulerLimits(max_num_seqs=16, max_num_batched_tokens=512, max_model_len=4000)
IDLE = StepShape()


class CountedSteps:
    """A joint step takes 1 ms and 10 us a row of the fullest rank; what was asked for is kept."""

    def __init__(self) -> None:
        self.asked: list[tuple[StepShape, ...]] = []

    def step_ps(self, shape: StepShape) -> int:
        return 10**9 + 10**7 * shape.num_tokens

    def decode_piece(self, shape: StepShape) -> None:  # noqa: ARG002
        return None

    def joint_ps(self, shapes: Sequence[StepShape]) -> int:
        self.asked.append(tuple(shapes))
        return max(self.step_ps(shape) for shape in shapes)


def requests(count: int, rate: float, seed: int = 0) -> Workload:
    return synthetic(
        num_requests=count,
        arrivals=SteadyArrivals(rate),
        prompt=LognormalLengths(150, 1.0, highest_tokens=2000),
        output=LognormalLengths(30, 1.0, highest_tokens=400),
        seed=seed,
    )


def at_once(
    prompts: Sequence[int], outputs: Sequence[int], arrivals: Sequence[float] | None = None
) -> Workload:
    return Workload(
        arrival_s=np.array(arrivals if arrivals is not None else [0.0] * len(prompts)),
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
    )


# the policy and the loop


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 10**6))
def test_one_rank_in_lockstep_takes_the_steps_of_the_plain_engine(seed: int) -> None:
    workload, options = random_run(seed)
    for unused in ("sample_interval_s", "goodput_ms"):
        options.pop(unused)
    setup = EngineSetup(**options)
    plain = simulate(workload, setup, engine_loop="events")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(python_engines, "make_pool", lambda setup: JointPool([make_pool(setup)]))
        inside = simulate(workload, setup, engine_loop="events")
    assert [name for name in differences(plain, inside) if name != "data_parallel_requests"] == []


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 3),
    policy=st.sampled_from(("vllm-v1", "vllm-v1-async", "sglang", "tensorrt-llm", "tgi")),
)
@example(
    seed=107, ranks=1, policy="vllm-v1"
)  # a prompt is turned away within a cap: the next waits for its arrival
@example(
    seed=5, ranks=2, policy="vllm-v1"
)  # a rank is chosen while a step runs, by the queues of that instant
def test_a_queue_limit_that_is_never_reached_changes_nothing(seed: int, ranks: int, policy: str) -> None:
    workload, options = random_run(seed)
    if workload.content is None:
        tokens = workload.prompt_tokens.copy()
        tokens[seed % len(tokens)] = options["limits"].max_model_len
        workload = replace(workload, prompt_tokens=tokens)
    options |= {"policy": policy, "kv_windows": (None,), "window_tokens": None}
    options.pop("sample_interval_s")
    goodput_ms = options.pop("goodput_ms")
    alone = run_engine(workload, **options, data_parallel_size=ranks, goodput_ms=goodput_ms)
    setup = EngineSetup(**options, data_parallel_size=ranks)
    limited = simulate(workload, setup, queue_limit=10**9, goodput_ms=goodput_ms)
    assert not differences(alone, limited)


def test_a_mixtures_ranks_answer_alike_with_and_without_a_limit_that_is_never_reached() -> None:
    resolved = resolve("qwen3-30b-a3b", Pool(gpu="h100-sxm-80gb", data_parallel_size=4))
    workload = requests(150, 60.0)
    alone = run_service([resolved], Service(), workload)
    limited = run_service([resolved], Service(max_queued_requests=10**9), workload)
    assert alone.data_parallel_requests
    assert not differences(alone, limited)


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10**6), ranks=st.integers(2, 4), policy=st.sampled_from(("vllm-v1", "vllm-v1-async"))
)
def test_requests_tokens_and_blocks_are_conserved_over_ranks(seed: int, ranks: int, policy: str) -> None:
    """Every row computes a token of a prompt or of an answer, once, save for cached and recomputed ones."""
    workload, options = random_run(seed)
    steps = CountedSteps()
    options |= {"step_times": steps, "policy": policy, "kv_windows": (None,), "window_tokens": None}
    run = run_engine(workload, **options, data_parallel_size=ranks)
    assert run.status == "complete"  # and with it: no blocks leaked
    assert sum(run.data_parallel_requests) == len(workload) - run.rejected
    assert len(steps.asked) == run.steps
    assert all(len(shapes) == ranks and any(s.num_tokens for s in shapes) for shapes in steps.asked)
    records = run.records
    served = records.output_tokens > 0
    rows = sum(shape.num_tokens for shapes in steps.asked for shape in shapes)
    wanted = int((records.prompt_tokens + records.output_tokens - 1)[served].sum())
    if run.preemptions == 0:
        assert rows == wanted - int(records.cached_tokens[served].sum())
    again = run_engine(workload, **options, data_parallel_size=ranks)
    assert not differences(run, again)


def test_ranks_begin_every_step_together_and_wait_for_the_slowest() -> None:
    """A prompt of 100 tokens and one of 10: 1 ms + 100 x 10 us for both, then two steps of 1.01 ms."""
    steps = CountedSteps()
    run = simulate(
        at_once([100, 10], [3, 2]),
        EngineSetup(
            step_times=steps,
            num_blocks=50,
            policy="vllm-v1",
            limits=LIMITS,
            data_parallel_size=2,
            data_parallel_balance="round-robin",
        ),
    )
    first_ms, end_ms = run.records.first_token_ps / 1e9, run.records.finish_ps / 1e9
    assert first_ms.tolist() == [2.0, 2.0]
    assert end_ms.tolist() == pytest.approx([4.02, 3.01])
    assert [tuple(shape.num_tokens for shape in shapes) for shapes in steps.asked] == [
        (100, 10),
        (1, 1),
        (1, 0),
    ]
    assert run.data_parallel_requests == (1, 1)


def test_independent_ranks_of_equal_load_are_slower_together() -> None:
    """Waiting for the slowest costs: the mean E2E of replicas is below that of ranks in lock-step."""
    workload = requests(200, 60.0)
    setup = EngineSetup(step_times=STEPS, num_blocks=2000, limits=LIMITS)
    apart = simulate(workload, [setup] * 4)
    together = simulate(workload, replace(setup, data_parallel_size=4, data_parallel_balance="round-robin"))
    assert together.summary.completed == apart.summary.completed == 200
    assert together.summary.e2el_ms.mean > apart.summary.e2el_ms.mean  # type: ignore[union-attr]


def test_replicas_of_ranks_conserve_requests() -> None:
    workload = requests(300, 80.0)
    setup = EngineSetup(
        step_times=STEPS,
        num_blocks=400,
        limits=LIMITS,
        data_parallel_size=3,
        data_parallel_balance="round-robin",
    )
    run = simulate(workload, [setup] * 2, router="least-outstanding")
    assert run.status == "complete"
    assert sum(replica.requests for replica in run.replicas) == sum(run.data_parallel_requests) == 300
    assert len(run.data_parallel_requests) == 6
    assert 0 < run.kv_utilization_peak <= 1


# balancing


def balanced(balance: str, arrivals: Sequence[float], outputs: Sequence[int]) -> tuple[int, ...]:
    run = simulate(
        at_once([10] * len(arrivals), outputs, arrivals),
        EngineSetup(
            step_times=AffineStepTimes(0.01, 0.0),
            num_blocks=500,
            policy="vllm-v1",
            limits=LIMITS,
            data_parallel_size=2,
            data_parallel_balance=balance,
        ),
    )
    return run.data_parallel_requests


def test_balances_by_hand() -> None:
    """Request 0 runs long on rank 0, the others end within a step; three more come while vLLM knows no more of the
    queues than what it sent itself: 4, 4: to 0; 8, 4: to 1; 8, 8: to 0. After 0.1 s it knows that rank 1 is empty."""
    outputs, soon = (100, 1, 1, 1, 1), (0.0, 0.0, 0.031, 0.055, 0.08)
    assert balanced("round-robin", soon, outputs) == (3, 2)
    assert balanced("published-queues", soon, outputs) == (3, 2)
    assert balanced("fewest-requests", soon, outputs) == (1, 4)
    assert balanced("published-queues", (0.0, 0.0, 0.11, 0.22, 0.33), outputs) == (1, 4)
    with pytest.raises(UnknownName, match="published-queues"):
        balanced("fair", soon, outputs)


def test_prompts_wait_for_those_of_other_ranks_but_not_for_ever() -> None:
    """TensorRT-LLM's balance: the third prompt would be alone, and all ranks generate: it waits three steps."""
    steps = CountedSteps()

    def third_began(wait: int) -> int:
        steps.asked.clear()
        simulate(
            at_once([5, 5, 7], [20, 20, 2], [0.0, 0.0, 0.0045]),
            EngineSetup(
                step_times=steps,
                num_blocks=100,
                policy="tensorrt-llm",
                policy_options={"asynchronous": False},
                prompt_wait_steps=wait,
                limits=LIMITS,
                data_parallel_size=2,
                data_parallel_balance="fewest-requests",
            ),
        )
        return next(i for i, shapes in enumerate(steps.asked) if shapes[0].prefill_tokens == 7)

    at_once_step = third_began(0)
    assert third_began(1) == at_once_step
    waits = [third_began(wait) - at_once_step for wait in range(2, 8)]
    assert 0 < max(waits) <= 7


def test_prompts_wait_under_tensorrt_llm_alone() -> None:
    with pytest.raises(InvalidInput, match="leave it out"):
        simulate(
            at_once([5], [5]),
            EngineSetup(step_times=STEPS, num_blocks=9, prompt_wait_steps=3, data_parallel_size=2),
        )


# step times


def steps_of(model: str = "deepseek-v3", **parallel: object) -> StepModel:
    setting = StepSetting(model=load_model(model), profile=load_profile("h200"), engine=find_engine("vllm"))
    return StepModel(replace(setting, **parallel))  # type: ignore[arg-type]


@pytest.mark.parametrize("expert_parallel", [True, False])
def test_equal_ranks_take_the_time_of_one_of_them(expert_parallel: bool) -> None:
    steps = steps_of(data_parallel_size=8, enable_expert_parallel=expert_parallel)
    for shape in (decode_shape(32, 2000), prefill_shape(1, 3000), decode_shape(700, 500)):
        assert steps.joint_seconds([shape] * 8) == pytest.approx(steps.step_seconds(shape), rel=1e-12)
        assert steps.step_cost(shape).seconds == pytest.approx(steps.step_seconds(shape), rel=1e-12)
    assert steps.joint_seconds([IDLE] * 8) == 0


def test_the_slowest_rank_and_the_union_of_tokens_set_the_time() -> None:
    steps = steps_of(data_parallel_size=4, enable_expert_parallel=True)
    few, many, prompt = decode_shape(8, 1000), decode_shape(64, 1000), prefill_shape(1, 4000)
    assert steps.joint_seconds([few, few, few, many]) > steps.joint_seconds([few] * 4)
    assert steps.joint_seconds([many] * 4) >= steps.joint_seconds([few, few, few, many])
    # eager: one prompt on one rank is less than one on each, and more than what that rank does alone
    alone, all_four = steps.joint_seconds([prompt, few, few, few]), steps.joint_seconds([prompt] * 4)
    assert steps.joint_seconds([few] * 4) < alone < all_four
    assert steps.joint_seconds([prompt, IDLE, IDLE, IDLE]) <= alone
    assert steps.joint_ps([prompt, few, few, few]) == round(alone * 1e12)
    slowest = SlowestRank(STEPS)
    assert slowest.joint_ps([few, IDLE, many]) == STEPS.step_ps(many) == slowest.step_ps(many)
    assert slowest.decode_piece(few) == STEPS.decode_piece(few)


def test_without_data_parallel_ranks_nothing_is_shared_or_exchanged() -> None:
    """And a dense model's ranks have nothing to do with each other."""
    for steps in (steps_of(tensor_parallel_size=8), steps_of("llama-3.1-8b", data_parallel_size=4)):
        assert "expert exchange" not in {op.name for op in steps.step_cost(decode_shape(8, 100)).operators}
    plain, ranks = steps_of("llama-3.1-8b"), steps_of("llama-3.1-8b", data_parallel_size=4)
    assert plain.step_seconds(decode_shape(8, 100)) == ranks.step_seconds(decode_shape(8, 100))


def test_a_plans_safety_factor_stretches_joint_steps() -> None:
    steps = steps_of(data_parallel_size=2)
    scaled = ScaledSteps(steps, Factors(prefill=2.0, decode=1.5))
    few, prompt = decode_shape(8, 1000), prefill_shape(1, 4000)
    assert scaled.joint_ps([few, few]) == round(1.5 * steps.joint_ps([few, few]))
    assert scaled.joint_ps([few, prompt]) == round(2.0 * steps.joint_ps([few, prompt]))


# memory


def test_ranks_repeat_attention_and_divide_experts() -> None:
    model = load_model("deepseek-r1")
    experts = sum(
        model.checkpoint.part_bytes(part) for part in model.parameter_parts() if part.sharding == "experts"
    )

    def weights(**fields: object) -> float:
        return stage_weights(pool_of(model, H100, VLLM, **fields), 0)  # type: ignore[arg-type]

    for expert_parallel in (True, False):
        rank = weights(data_parallel_size=8, enable_expert_parallel=expert_parallel)
        assert rank == pytest.approx(weights() - experts * 7 / 8, rel=1e-6)
    assert weights(tensor_parallel_size=8) < rank


def test_a_latent_is_held_once_under_data_parallelism() -> None:
    """TP repeats DeepSeek's latent on each GPU; DP has a cache of its own on each, of equal blocks."""
    tensor = capacity.fit("deepseek-r1", gpu="h200", tensor_parallel_size=8)
    data = capacity.fit("deepseek-r1", gpu="h200", data_parallel_size=8, enable_expert_parallel=True)
    assert tensor.gpu.count == data.gpu.count == 8
    plans = [
        resolve("deepseek-r1", Pool(gpu="h200", **sizes)).memory  # type: ignore[arg-type]
        for sizes in ({"tensor_parallel_size": 8}, {"data_parallel_size": 8})
    ]
    assert plans[0].kv_block_bytes == plans[1].kv_block_bytes
    assert 8 * data.kv_capacity_tokens > 4 * tensor.kv_capacity_tokens
    assert f"{8 * data.kv_capacity_tokens:,} tokens" in data.warnings[-1]
    with pytest.raises(InvalidInput, match="data_parallel_size is 0: must be greater than or equal to 1"):
        capacity.fit("deepseek-r1", gpu="h200", data_parallel_size=0)


def test_sglang_divides_its_chunk_over_ranks_and_reserves_more() -> None:
    """8192 tokens become 1024 a rank; the reserve is that of 8192 tokens, TP8, and 4.5 MiB x 8 ranks x 512 rows."""
    tensor, data = (
        resolve("deepseek-r1", Pool(gpu="h200", engine="sglang", **sizes))  # type: ignore[arg-type]
        for sizes in ({"tensor_parallel_size": 8}, {"data_parallel_size": 8, "enable_expert_parallel": True})
    )
    assert data.max_num_batched_tokens * 8 == tensor.max_num_batched_tokens
    graph = tensor.engine.default_limits(tensor.profile.memory_engine_bytes, "hopper").largest_graph(8)
    assert graph is not None
    more = data.memory.activations_bytes - tensor.memory.activations_bytes
    prefill_graphs = 1.5 * 1024  # only without DP attention
    least = max(prefill_graphs, 10 * 1024 - (512 + 1.5 * tensor.max_num_batched_tokens + 1024 + 2 * graph))
    per_row = 4.5 if graph > 300 else 3.0
    free = 1 - data.memory.nontorch_bytes / data.memory.total_bytes  # the fraction applies to what is free
    assert more / 2**20 == pytest.approx(free * (8 * graph * per_row - least), abs=0.001 * 2**10 * 160)
    explicit = resolve(
        "deepseek-r1", Pool(gpu="h200", engine="sglang", data_parallel_size=8, max_num_batched_tokens=4096)
    )
    assert explicit.max_num_batched_tokens == 4096


def test_a_dense_models_ranks_are_replicas() -> None:
    """Same memory, same run, twice and thrice over; only the GPUs are counted as one engine's."""
    one, three = (capacity.fit("llama-3.1-8b", gpu="h100", data_parallel_size=n) for n in (1, 3))
    assert one.memory == three.memory
    assert (one.gpu.count, three.gpu.count) == (1, 3)
    workload = requests(150, 60.0)
    service = Service(router="least-outstanding")
    ranks, replicas = (
        run_service([resolve("llama-3.1-8b", Pool(gpu="h100", **sizes))], service, workload)  # type: ignore[arg-type]
        for sizes in ({"data_parallel_size": 3}, {"replicas": 3})
    )
    assert not differences(ranks, replicas)
    estimates = [
        capacity.estimate(
            "llama-3.1-8b",
            gpu="h100",
            data_parallel_size=n,
            input_len=500,
            output_len=100,
            concurrency=8 * n,
            random_range_ratio=0.0,
            front_end_request_s=0.0,
            front_end_input_token_s=0.0,
            front_end_output_token_s=0.0,
        )
        for n in (1, 3)
    ]
    assert estimates[1].requests_per_s.value == pytest.approx(3 * estimates[0].requests_per_s.value)
    assert estimates[0].ttft_s is not None
    assert estimates[1].ttft_s is not None
    assert estimates[1].ttft_s.value == pytest.approx(estimates[0].ttft_s.value, rel=0.01)


# closed form


class ConstantJoint:
    """Every step of all ranks takes 10 ms."""

    def step_seconds(self, shape: StepShape) -> float:  # noqa: ARG002
        return 0.01

    def joint_seconds(self, shapes: Sequence[StepShape]) -> float:
        assert len(shapes) == 4
        return 0.01


def test_a_closed_loop_over_ranks_with_constant_steps() -> None:
    """C requests, each of one prefill step and 9 decode steps of 10 ms: C per 90 ms and what prefills add (nothing)."""
    limits = EngineLimits(
        max_num_seqs=64,
        max_num_batched_tokens=4096,
        chunked_prefill=True,
        mixes_prefill_with_decode=True,
        window_tokens=None,
        request_latency_s=0.0,
    )
    times = closed_loop_times(ConstantJoint(), limits, 32, input_len=100, output_len=10, ranks=4)  # type: ignore[arg-type]
    assert times.tpot_s == times.ttft_s == 0.01
    assert times.requests_per_s == pytest.approx(32 / 0.09)
    assert times.decode_shape.decode_sequences * 4 == times.decode_sequences


def test_estimate_and_simulation_of_ranks_agree() -> None:
    """DeepSeek-R1 on 8 H200 in lock-step: the run of 400 requests and the steady state of a longer one."""
    deployment = {
        "gpu": "h200",
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "max_model_len": 4096,
    }
    lengths = {"input_len": 500, "output_len": 150, "concurrency": 64}
    drawn = {**deployment, **lengths, "random_range_ratio": 0.5}
    estimate = capacity.estimate("deepseek-r1", **drawn)
    run = capacity.simulate("deepseek-r1", **drawn, num_prompts=400).run
    assert sum(run.data_parallel_requests) == 400
    assert max(run.data_parallel_requests) - min(run.data_parallel_requests) <= 30
    assert run.summary.request_throughput == pytest.approx(estimate.requests_per_s.value, rel=0.1)


# what users write


def test_a_pasted_command_says_the_ranks() -> None:
    for flag in ("-dp 8", "--data-parallel-size=8", "--data-parallel-size 8"):
        command = read_vllm_command(f"vllm serve deepseek-ai/DeepSeek-R1 {flag} --enable-expert-parallel")
        pool = command.pool("h200")
        assert (pool.data_parallel_size, pool.num_gpus, command.ignored) == (8, 8, ())


def test_what_ranks_cannot_do_is_refused_in_one_line() -> None:
    ranks = {"gpu": "h200", "data_parallel_size": 8, "input_len": 100, "output_len": 10, "num_prompts": 10}
    roles = {"replicas": 2, "prefill_replicas": 1}
    with pytest.raises(InvalidInput, match="the compiled engines cannot run this"):
        capacity.simulate("deepseek-r1", **ranks, **roles, request_rate=1.0, engine_loop="core")
    with pytest.raises(InvalidInput, match="data_parallel_size is 0"):
        capacity.fit("deepseek-r1", gpu="h200", data_parallel_size=0)

"""Stages that time kernels and whole-model steps in alternation, then steps of a second model, which no fit uses.

Constants are fitted to kernels, and the loop's host time to steps of the first model. Only a second model (a mixture
of experts if the campaign has one) can show the error of the constants on another model.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from capacity.base.errors import UnsupportedModel
from capacity.model import ModelSpec
from capacity_validate.campaigns import TransformerStage, order_bit_reversed, order_cases
from capacity_validate.capture import GraphCapturer
from capacity_validate.cases import Case, make_case
from capacity_validate.devices import telemetry_reader
from capacity_validate.engine_cases import add_engine_cases, installed_engine
from capacity_validate.kernels import TRITON, KernelContext, PreparedCase, Unsupported
from capacity_validate.model_error import measured_cases
from capacity_validate.plausibility import DRIFT, DRIFT_CPU, timing_remarks
from capacity_validate.profile_match import is_provisional
from capacity_validate.runner import CaseRunner
from capacity_validate.session import Session, StageResults, WholeModel
from capacity_validate.small_models import cut_layers, layers_that_fit
from capacity_validate.step_inputs import InputRow
from capacity_validate.telemetry import Telemetry, telemetry_remarks
from capacity_validate.timing import make_stopwatch
from capacity_validate.transformer import DecodeGraph, Transformer, require_supported

HALF_DEPTH_SHARE = 0.05  # fraction of the stage's time for steps with half of the layers, if layers were cut
# timed again and again between the cases, to show heat and other load: large enough to draw the card's full power
REFERENCES = {"cuda": {"m": 4096, "n": 4096, "k": 4096}, "cpu": {"m": 64, "n": 512, "k": 512}}
# fractions of free memory; the rest is for kernels, graphs, activations and check references
MEMORY_SHARE = 0.5  # for the model's weights
CACHE_SHARE = 0.2  # for its KV cache
# fraction of the memory left by the model for input sets of one kernel; the rest is for temporaries
KERNELS_SHARE = 0.5


def step_stage(session: Session, results: StageResults) -> None:
    """Build the model, time every case, and record the slowdown or drift that other load on the machine caused."""
    _build_model(session, results)
    session = session.with_model(results.whole, None)
    model = session.transformer
    steps = (
        []
        if model is None or session.plan.transformer is None
        else step_cases(session.plan.transformer, model.model, eager=session.on_gpu and not model.capturable)
    )
    telemetry = make_telemetry(session)
    runner = make_runner(session, telemetry, reference=reference_case(session))
    wall_s, cpu_s = time.monotonic(), time.process_time()
    kept_s = HALF_DEPTH_SHARE * session.time_left_s() if session.whole and session.whole.half_depth else 0.0
    with telemetry or nullcontext():
        results.outcome = runner.run(
            interleave(kernel_cases(session), steps),
            passes=session.plan.passes,
            deadline=time.monotonic() + session.time_left_s() - kept_s,
            progress=session.progress,
        )
        if not results.outcome.interrupted:
            _time_half_depth(session, runner)
    results.throttled_fraction = 0.0 if telemetry is None else telemetry.throttled_fraction
    if not session.on_gpu:
        results.slowdown = max(1.0, (time.monotonic() - wall_s) / max(1e-3, time.process_time() - cpu_s))
    # a card that slows down from first to last pass gives inconsistent times
    drift = results.outcome.drift
    text = f"the time of the same work changed by {drift:+.0%} from beginning to end"
    if session.on_gpu and abs(drift) > DRIFT:
        results.broken.append(f"{text}, due to heat or other processes on the card; measure again")
    elif abs(drift) > DRIFT_CPU:
        results.remarks.append(f"noisy: {text}")
    results.remarks += telemetry_remarks(telemetry, top_hz=session.facts.sm_clock_max_hz)
    results.remarks += timing_remarks(measured_cases(session))


def kernel_cases(session: Session) -> list[Case]:
    """Return the kernels to time, most valuable first; on a GPU, those of an installed engine too."""
    engine = installed_engine() if session.on_gpu else ""
    return list(add_engine_cases(order_cases(session.plan), engine, session.profile))


def make_telemetry(session: Session) -> Telemetry | None:
    reader = telemetry_reader(session.facts)
    return None if reader is None else Telemetry(reader)


def reference_case(session: Session) -> Case:
    """Return the matrix multiplication that is timed repeatedly to detect changes of the device during the run."""
    kernel = "fp32" if not session.on_gpu else "fp16" if "bf16" in session.missing else "bf16"
    return make_case("gemm", kernel, variant="reference", **REFERENCES[session.facts.kind])


def _build_model(session: Session, results: StageResults) -> None:
    """Build the campaign's transformer with the layers that fit; add a remark if layers were cut or it cannot run."""
    stage = session.plan.transformer
    if stage is None:
        return
    spec = session.find_model(stage.model)
    if (reason := unsupported_reason(session, spec)) is not None:
        results.remarks.append(f"no whole model was run: {reason}")
        return
    layers = layers_that_fit(spec, MEMORY_SHARE * session.facts.memory_free_bytes)
    layers = min(layers, stage.max_layers or layers)
    if layers < 1:
        results.remarks.append(f"{spec.name} does not fit in memory: no whole model was run")
        return
    half_depth = max(1, layers // 2) if layers < spec.num_layers else None
    if half_depth:
        results.remarks.append(f"{spec.name} was cut to {layers} of {spec.num_layers} layers")
    results.whole = WholeModel(spec=spec, half_depth=half_depth)
    cache_bytes = CACHE_SHARE * session.facts.memory_free_bytes
    model = _make_transformer(session, stage, cut_layers(spec, layers), cache_bytes, seed=session.seed)
    results.whole = replace(results.whole, transformer=model)


def unsupported_reason(session: Session, spec: ModelSpec) -> str | None:
    """Return why the harness or this device cannot run a model; None if it can run."""
    try:
        require_supported(spec)
    except UnsupportedModel as refusal:
        return str(refusal)
    if (reason := session.missing.get(TRITON)) is not None:
        return reason
    reason = session.missing.get(spec.dtype)
    return None if reason is None else f"{spec.name} uses {spec.dtype}, and {reason}"


def _make_transformer(
    session: Session, stage: TransformerStage, model: ModelSpec, cache_bytes: float, *, seed: int
) -> Transformer:
    """Return a transformer whose KV cache is large enough for the stage's cases, limited to `cache_bytes`."""
    contexts = [(point.batch, point.context) for point in stage.decode]
    contexts += [(1, tokens) for tokens in (*stage.prefill, stage.kv_tokens)]
    needed = max(batch * math.ceil(tokens / BLOCK) for batch, tokens in contexts)
    block_bytes = BLOCK * sum(group.bytes_per_token for group in model.kv_cache_groups())
    blocks = max(1, min(needed, int(cache_bytes / block_bytes)))
    built = Transformer(model, device=session.facts.torch_name, num_blocks=blocks, seed=seed)
    built.fill_caches()
    return built


def make_runner(
    session: Session, telemetry: Telemetry | None, *, reference: Case | None = None
) -> CaseRunner:
    """Return the runner that times kernel cases and steps of the session's model."""
    facts = session.facts
    bench = KernelContext(
        session.torch,
        facts.torch_name,
        facts.cache_bytes,
        session.generator(),
        KERNELS_SHARE * session.free_bytes(),
        missing=session.missing,
    )
    return CaseRunner(
        bench=bench,
        stopwatch=make_stopwatch(session.torch, facts.torch_name, threads=facts.compute_units),
        log=session.log,
        case_s=session.plan.case_s,
        own_calls=_step_calls(session, bench),
        telemetry=telemetry,
        datasheet=session.profile if session.on_gpu and not is_provisional(session.profile) else None,
        seed=session.seed,
        reference=reference,
    )


def _step_calls(session: Session, bench: KernelContext) -> Callable[[Case], PreparedCase | None]:
    """Return a function that prepares a step of the whole model, and returns None for a kernel case."""
    model = session.transformer

    def prepare(case: Case) -> PreparedCase | None:
        if model is None or not case.is_step:
            return None
        generator = session.torch.Generator().manual_seed(session.seed)
        call = StepRunner(model, generator, bench.captures if session.on_gpu else None).call(case)
        return PreparedCase(calls=[call], capturable=False)

    return prepare


def _time_half_depth(session: Session, runner: CaseRunner) -> None:
    """If layers were cut, also time the longest prefill and the last decode with half the layers, to extrapolate."""
    whole, stage = session.whole, session.plan.transformer
    if whole is None or whole.transformer is None or whole.half_depth is None or stage is None:
        return
    model = whole.transformer
    few = cut_layers(model.model, whole.half_depth)
    points = TransformerStage(model=stage.model, prefill=stage.prefill[-1:], decode=stage.decode[-1:])
    every_layer = model.layers
    model.layers = every_layer[: whole.half_depth]
    try:
        cases = step_cases(points, few, eager=session.on_gpu and not model.capturable)
        deadline = time.monotonic() + session.time_left_s()
        runner.run(cases, passes=1, deadline=deadline, progress=session.progress)
    finally:
        model.layers = every_layer


def interleave(cases: list[Case], steps: list[Case]) -> list[Case]:
    """Spread whole-model steps over the first half of the kernel cases, so both are timed in the same minutes."""
    if not steps:
        return cases
    every = max(1, len(cases) // (2 * len(steps)))
    mixed: list[Case] = []
    waiting = order_bit_reversed(steps)
    for position, case in enumerate(cases):
        if position % every == 0 and waiting:
            mixed.append(waiting.pop(0))
        mixed.append(case)
    return [*mixed, *waiting]


WEIGHTS_SHARE = 0.6  # fraction of the memory left by the first model
UNSEEN_CACHE_SHARE = 0.15


def unseen_stage(session: Session, results: StageResults) -> None:
    stage = session.plan.unseen
    if stage is None:
        return
    if session.time_left_s() <= 0:
        results.remarks.append(f"{stage.model}: omitted, the budget was spent")
        return
    spec = session.find_model(stage.model)
    if (reason := unsupported_reason(session, spec)) is not None:
        results.remarks.append(f"no second model was run: {reason}")
        return
    session.announce(f"{spec.name}, a held-out model")
    free = session.free_bytes()
    layers = min(layers_that_fit(spec, WEIGHTS_SHARE * free), stage.max_layers or spec.num_layers)
    if layers < 1:
        results.remarks.append(
            f"{spec.name} does not fit in memory next to the first model: no second model was run"
        )
        return
    few = cut_layers(spec, layers)
    model = _make_transformer(session, stage, few, UNSEEN_CACHE_SHARE * free, seed=session.seed + 1)
    try:
        cases = step_cases(stage, few, eager=session.on_gpu and not model.capturable, of="unseen")
        own = session.with_model(WholeModel(spec=spec, transformer=model), None)
        telemetry = make_telemetry(session)
        with telemetry or nullcontext():
            outcome = make_runner(own, telemetry).run(
                cases,
                passes=session.plan.passes,
                deadline=time.monotonic() + session.time_left_s(),
                progress=session.progress,
            )
    finally:
        model.release()
        session.free_memory()
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.left_out:
        results.remarks.append(f"{spec.name}: the budget did not cover {len(outcome.left_out)} steps")


BLOCK = 16
EAGER = "eager"  # decode steps on a GPU without a graph, launched kernel by kernel


def step_cases(
    stage: TransformerStage, model: ModelSpec, *, eager: bool = False, of: str = "model"
) -> list[Case]:
    """Return a stage's cases. `of`: "model" (to fit) or "unseen" (to hold out); `eager`: decode without graphs."""
    layers = model.num_layers
    variant = EAGER if eager else ""
    prefills = [make_case(f"{of} prefill", model.dtype, tokens=n, layers=layers) for n in stage.prefill]
    decodes = [
        make_case(
            f"{of} decode", model.dtype, variant=variant, batch=p.batch, context=p.context, layers=layers
        )
        for p in stage.decode
    ]
    return prefills + decodes


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Builds calls of whole-model steps: send the tokens, run, and read the sampled tokens, as in an engine."""

    model: Transformer
    generator: Any
    captures: GraphCapturer | None = None

    def call(self, case: Case) -> Callable[[], object]:
        if case.operator.endswith(" prefill"):
            prompt = [self._row(case["tokens"], 0, self._blocks(1, case["tokens"])[0])]
            return lambda: self.model.next_tokens(self.model.inputs(prompt))
        batch, context = case["batch"], case["context"]
        rows = [self._row(1, context - 1, blocks) for blocks in self._blocks(batch, context)]
        if self.captures is None or case.variant == EAGER:
            return lambda: self.model.next_tokens(self.model.inputs(rows))
        graph = DecodeGraph(self.model, self.captures, batch=batch, max_context=context)
        return lambda: graph.next_tokens(self.model.inputs(rows))

    def _row(self, tokens: int, computed: int, blocks: Any) -> InputRow:
        ids = torch.randint(self.model.model.vocab_size, (tokens,), generator=self.generator).tolist()
        return InputRow(tokens=ids, computed=computed, blocks=blocks)

    def _blocks(self, sequences: int, tokens: int) -> list[Any]:
        """Return the block ids of each sequence, scattered as in a pool that has served requests for some time."""
        each = math.ceil(tokens / BLOCK)
        if sequences * each > self.model.num_blocks:
            held = self.model.num_blocks * BLOCK
            raise Unsupported(
                f"{sequences} contexts of {tokens} tokens exceed the {held} tokens of cache that fit in memory"
            )
        order = torch.randperm(self.model.num_blocks, generator=self.generator).numpy()
        return [order[i * each : (i + 1) * each] for i in range(sequences)]

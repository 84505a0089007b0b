"""Rank the deployments that meet the SLO: the best of each GPU and weight format, then all others."""

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from capacity.answers.costs import cost_of
from capacity.answers.drawn_energy import drawn_energy
from capacity.base.record import make_from
from capacity.deployment import Pool
from capacity.deployment.command_words import Launch
from capacity.deployment.flag_table import find_published_release
from capacity.deployment.launch_writers import is_launched, launch_command
from capacity.model.layers import LatentAttention
from capacity.planning.evaluation.cost_bounds import Load
from capacity.planning.evaluation.evaluation_context import EvaluationContext, EvaluationRequest
from capacity.planning.evaluation.evaluation_pool import EvaluationPool
from capacity.planning.evaluation.slo_evaluation import Evaluation
from capacity.planning.evaluation.step_error import LEVELS
from capacity.planning.records import LaunchLine, Ranked
from capacity.planning.search.candidate_family import EvaluatedCandidate, Order
from capacity.planning.search.replica_search import ReplicaSearch
from capacity.planning.space import Candidate, Search
from capacity.pool.memory import memory_fraction
from capacity.pool.resolve import ResolvedPool

MAX_RANKED = 8  # answers in the ranking
KV_CACHE_FLAG = ("vllm", "sglang")  # engines with a flag for the default format of the KV cache, auto
KV_CACHE_WRITTEN = ("llama.cpp", "ollama")  # engines whose launch always names the format
MEMORY_FLAG = ("vllm", "sglang", "tensorrt-llm")  # engines with a flag for the memory fraction


class CloserEvaluation(NamedTuple):
    """Results of simulating a ranked deployment again: `trial` at the required confidence, `predicted` with predicted
    step times, and the highest confidence at which the SLO is met."""

    trial: Evaluation
    predicted: Evaluation | None
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Ranking of the deployments that a search found; simulates only the best again, at several confidences."""

    context: EvaluationContext
    search: Search
    load: Load
    evaluator: EvaluationPool

    def rank(
        self, contenders: Iterable[ReplicaSearch], leaders: Sequence[EvaluatedCandidate], *, closer: int
    ) -> tuple[Ranked, ...]:
        """Return `leaders` (the best of each GPU and weight format) and the best deployments on other hardware setups,
        sorted; evaluate the first `closer` of them again."""
        best = {(id(tried.option), tried.replicas) for tried in leaders}
        met = [tried for contender in contenders for tried in contender.met]
        shown = _select_shown([*leaders, *met], lambda tried: (id(tried.option), tried.replicas) in best)
        looks = self._look_closer([tried for tried, _ in shown[:closer]])
        looks += [CloserEvaluation(tried.trial, None, self.search.confidence) for tried, _ in shown[closer:]]
        return tuple(
            self._answer(tried, look, is_best) for (tried, is_best), look in zip(shown, looks, strict=True)
        )

    def _look_closer(self, answers: Sequence[EvaluatedCandidate]) -> list[CloserEvaluation]:
        required = self.search.confidence
        higher = [level for level in LEVELS if level > required]
        tasks = []
        for tried in answers:
            candidate = tried.candidate
            if _wants_intervals(tried.trial):
                tasks.append(EvaluationRequest(candidate=candidate, confidence=required, intervals=True))
            whole = tried.trial.window is not None  # the answer was judged on the whole traffic
            looked = EvaluationRequest(candidate, None, sample=not whole, whole=whole)
            tasks.append(looked._replace(give_up=False))
            tasks += [looked._replace(confidence=level) for level in higher]
        trials = iter(self.evaluator.run_all(tasks))
        looks = []
        for tried in answers:
            trial = (next(trials) if _wants_intervals(tried.trial) else None) or tried.trial
            predicted = next(trials)
            confidence, holds = required, True  # at this confidence and all lower ones
            for level in higher:
                tried_at = next(trials)
                holds = holds and tried_at is not None and tried_at.met
                confidence = level if holds else confidence
            looks.append(CloserEvaluation(trial, predicted, confidence))
        return looks

    def _answer(self, tried: EvaluatedCandidate, look: CloserEvaluation, is_best: bool) -> Ranked:
        option, replicas, _ = tried
        trial = look.trial
        steps = self.context.resolve_pool(option.pool).step_model
        watts, output_per_s = option.watts(replicas), trial.output_tokens_per_s
        if self.load.offered_per_s is not None:  # the trial may cover only the busiest window
            output_per_s = min(output_per_s, self.load.offered_per_s * self.load.output_tokens)
        return make_from(
            Ranked,
            look,
            option,
            candidate=tried.candidate,
            num_gpus=option.gpus(replicas),
            billed_gpus=option.billed_gpus(replicas),
            objective=tried._replace(trial=trial).objective,
            **self._cost_and_energy(tried, look.predicted or trial),
            watts=watts,
            joules_per_output_token=watts / output_per_s if output_per_s else None,
            launch=launch_lines(self.context, tried.candidate),
            basis=steps.basis,
            step_error_assumed=steps.residuals("decode").fit.basis == "assumed",
            best_of_its_kind=is_best,
        )

    def _cost_and_energy(self, tried: EvaluatedCandidate, trial: Evaluation) -> dict[str, object]:
        """Return the cost, idle time and whole instances included, and the drawn energy at the served load."""
        pools = [(self.context.resolve_pool(pool), pool.replicas) for pool in tried.candidate.pools]
        load = self.context.served_load(pools, trial, self.load.offered_per_s)
        if load is None:
            return {"cost": None, "drawn": None}
        return {
            "cost": cost_of(tried.option.price, pools, load),
            "drawn": drawn_energy(pools, load).with_carbon(self.search.co2_g_per_kwh),
        }


def pin_defaults(resolved: ResolvedPool) -> Pool:
    """Return the pool with explicit values for the engine's defaults that affect the predicted times and intervals."""
    settings: dict[str, object] = {
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "enable_prefix_caching": resolved.prefix_caching,
    }
    if resolved.engine.name in MEMORY_FLAG:
        settings["gpu_memory_utilization"] = memory_fraction(resolved)
    return resolved.pool.model_copy(update=settings)


def attention_backend(resolved: ResolvedPool) -> str | None:
    """Return the attention backend that the launch must name to match the predictions; None: the engine's choice."""
    groups = resolved.model.layer_groups
    dense = any(isinstance(g.mixer, LatentAttention) and g.mixer.indexer is None for g in groups)
    if not dense or not resolved.kv_cache_dtype.startswith("fp8"):
        return None
    return resolved.engine.fp8_latent_backend.get(resolved.profile.architecture)


def launch_as_planned(model_id: str, resolved: ResolvedPool) -> Launch:
    """Return the command that starts one replica as it was simulated; its first note names the engine's release."""
    pool = pin_defaults(resolved)
    launch = launch_command(pool.engine, model_id, pool)
    words = launch.words
    backend = attention_backend(resolved)
    if backend is not None:
        words = (*words, "--attention-backend", backend)
    notes = launch.notes
    if resolved.engine.name in KV_CACHE_FLAG and "--kv-cache-dtype" not in words:
        at = words.index("--port")
        words = (*words[:at], "--kv-cache-dtype", "auto", *words[at:])
    elif pool.kv_cache_dtype == "auto" and resolved.engine.name not in (*KV_CACHE_FLAG, *KV_CACHE_WRITTEN):
        default = f"the default of {resolved.engine.name}, which has no flag for it"
        notes += (f"KV cache in the model's format, {default}",)
    release = find_published_release(pool.engine, amd=pool.on_amd)
    ways = [
        *([] if release.requirement is None else [f'pip install "{release.requirement}"']),
        *([] if release.image is None else [f"image {release.image}"]),
    ]
    note = f"planned for {resolved.engine.name} {release.version}"
    if ways:
        note += f": {', or '.join(ways)}"
    cap = resolved.profile.power_cap_watts
    if cap is not None:
        notes = (f"on every server: sudo nvidia-smi -pl {cap:.0f}", *notes)
    return replace(launch, words=words, notes=(note, *notes))


def launch_lines(context: EvaluationContext, candidate: Candidate) -> tuple[LaunchLine, ...]:
    """Return the launch line of each kind of server of a deployment; empty if its engine is only a baseline."""
    lines, model = [], context.model
    for pool in candidate.pools:
        if not is_launched(pool.engine):
            return ()
        launch = launch_as_planned(model.hf_id or model.name, context.resolve_pool(pool))
        command, files = shlex.join(launch.words), dict(launch.files)
        lines.append(make_from(LaunchLine, pool, launch, command=command, files=files))
    return tuple(lines)


def _select_shown(
    answers: Iterable[EvaluatedCandidate], is_best: Callable[[EvaluatedCandidate], bool]
) -> list[tuple[EvaluatedCandidate, bool]]:
    """Return the best deployment of each hardware setup, sorted, and whether it is the best of its GPU and format."""
    chosen: dict[tuple[object, ...], EvaluatedCandidate] = {}

    def order(tried: EvaluatedCandidate) -> tuple[Order, float]:
        return (tried.order, tried.trial.ratio)

    for tried in answers:
        rival = chosen.setdefault(_shape(tried), tried)
        if (not is_best(tried), order(tried)) < (not is_best(rival), order(rival)):
            chosen[_shape(tried)] = tried
    ahead = sum(map(is_best, chosen.values()))
    ranked = sorted(chosen.values(), key=lambda tried: (not is_best(tried), order(tried)))
    shown = sorted(ranked[: max(MAX_RANKED, ahead)], key=order)
    return [(tried, is_best(tried)) for tried in shown]


def _shape(tried: EvaluatedCandidate) -> tuple[object, ...]:
    option, pool = tried.option, tried.option.pool
    return (
        pool.gpu,
        pool.power_cap,
        pool.quantization,
        pool.tensor_parallel_size,
        pool.pipeline_parallel_size,
        pool.enable_expert_parallel,
        pool.speculator,
        option.prefill and option.prefill.tensor_parallel_size,
        option.router,
    )


def _wants_intervals(trial: Evaluation) -> bool:
    return trial.seen == "all" and all(level.low_s is None for level in trial.levels)

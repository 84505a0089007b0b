"""Speedup of speculative decoding by batch size, in closed form and simulated with the engine's scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from capacity.answers.engine_setup import setup_of, with_drafts
from capacity.answers.phases import check_length
from capacity.base.checked import validate_arguments
from capacity.base.errors import InvalidInput
from capacity.base.flags import ENGINE_LOOP, with_flags
from capacity.base.keywords import document_options, split
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import DeploymentFile, Pool, make_deployment
from capacity.deployment.deployment import Deployment
from capacity.deployment.drafts import METHOD_ENGINES, drafting_notes
from capacity.model import ModelSpec
from capacity.pool.drafting import (
    DraftMemory,
    Speculation,
    TextbookEntry,
    configure_speculator,
    expected_tokens,
    find_speculator,
    speculators,
    textbook_speedup,
    textbook_table,
)
from capacity.pool.resolve import resolve
from capacity.simulator import SimulationResult, simulate
from capacity.simulator.schedulers import DrawnSpeculation, schedulers_with_ability
from capacity.techniques.one_pool import PoolAnswer, pool_notes, require_one_rank, shared_fields
from capacity.workload import Workload, random_requests

BATCHES = (1, 4, 16, 64, 256)
LONGEST_DRAFT = 8
SIMULATED_OUTPUT = 256  # tokens of each request in a simulation
MAX_SIMULATED_REQUESTS = 256  # requests of it


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatedRun:
    """Simulation results of the same arrivals without and with speculative decoding."""

    draft_tokens: int  # in depth
    verified_tokens: int  # rows in addition to the last token, for each request: a tree's nodes
    plain: SimulationResult
    speculated: SimulationResult

    @property
    def throughput_gain(self) -> float:
        """Return output tokens per second with drafts, divided by those without."""
        return self.speculated.summary.output_throughput / self.plain.summary.output_throughput


def simulate_speculation(
    speculation: Speculation,
    workload: Workload,
    *,
    draft_tokens: int | None = None,
    seed: int = 0,
    engine_loop: str = "auto",
) -> SpeculatedRun:
    """Simulate `workload` without drafts, and again with drafts that vLLM V1's scheduler verifies.

    In a draft tree every node takes one token of the budget and one KV slot. Each depth has its own acceptance rate.
    Raises InvalidInput.
    """
    target = speculation.target
    without = replace(target, pool=target.pool.without_drafts)
    plain, able = setup_of(without), schedulers_with_ability("drafts")
    if plain.policy not in able:
        raise InvalidInput(
            f"drafts are not simulated with {target.engine.label}: its scheduler, {plain.policy}, supports one "
            f"token per request, and only {', '.join(able)} support drafts. Use --engine vllm, or leave out "
            "--simulate."
        )
    drafted = with_drafts(plain, speculation, draft_tokens, seed=seed)
    drawn = drafted.speculation
    assert isinstance(drawn, DrawnSpeculation)
    return SpeculatedRun(
        draft_tokens=len(drawn.rates),
        verified_tokens=drawn.k,
        plain=simulate(workload, plain, engine_loop=engine_loop),
        speculated=simulate(workload, drafted, engine_loop=engine_loop),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRow:
    """Results for one batch size: with the given and the best number of draft tokens, and from the textbook formula.

    A round is one draft and its verification step. Times are in seconds. `textbook_speedup` uses the mean acceptance
    over all depths and the modelled draft time, and assumes that verification takes no extra time.
    `simulated_speedup`: output tokens/s with drafts divided by those without, in a simulated closed loop of this batch
    size; None if not requested.
    """

    batch_size: int
    draft_tokens: int
    verified_tokens: int
    tokens_per_round: float
    draft_s: float
    verify_s: float
    plain_step_s: float
    tpot_s: float
    speedup: float
    verify_cost: float
    output_tokens_per_s: float
    textbook_tokens: float
    textbook_speedup: float
    best_draft_tokens: int
    best_verified_tokens: int
    best_speedup: float
    simulated_speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceSource:
    """Source of the acceptance rates, with the model and the setting (engine, GPU, batch) of the measurement."""

    text: str
    date: str
    basis: str
    model: str
    setting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Prefill time (s) of one prompt, without and with the prefill of the draft model, if no request waits."""

    plain: float
    with_draft: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculating(PoolAnswer):
    """Results for each batch size. `acceptance` by depth: probability that a draft is accepted if all before it are.

    `break_even_batch` None: drafts are faster up to `largest_batch`, the limit of max_num_seqs and of the KV cache with
    the draft model loaded.
    """

    SCHEMA: ClassVar[str] = "capacity/speculate/v1"

    method: str
    draft: str | None
    draft_tokens: int
    verified_tokens: int
    drafts: str  # the same in words
    acceptance: tuple[float, ...]
    acceptance_source: AcceptanceSource
    context_tokens: int
    break_even_batch: int | None
    largest_batch: int
    memory: DraftMemory
    ttft_s: FirstTokens
    rows: tuple[SpeculationRow, ...]
    warnings: tuple[str, ...]


@document_options(Pool)
@validate_arguments
@with_flags
def speculate(
    model: str | ModelSpec | DeploymentFile,
    *,
    method: str | None = None,
    draft_tokens: int | None = None,
    context_tokens: int = 1024,
    batches: Sequence[int] = BATCHES,
    simulate: bool = False,
    engine_loop: Annotated[str, ENGINE_LOOP] = "auto",
    **options: Any,
) -> Speculating:
    """Return the speedup of drafts by batch size (given and best draft length), break-even batch, memory and TTFT.

    `method` None: the pool's `speculator`, else eagle3. Batch sizes that the engine cannot run are left out. `simulate`
    adds the speedup in simulated closed loops. Raises DoesNotFit or InvalidInput.
    """
    deployment = make_deployment(model, pool=split(options, Pool)[0], question="speculate", simulate=simulate)
    speculation = _make_speculation(deployment, method, draft_tokens)
    resolved, speculator = speculation.target, speculation.speculator
    check_length(resolved, context_tokens)
    k = speculator.depth(resolved.pool.num_speculative_tokens)
    largest = speculation.largest_batch(context_tokens)
    held, left_out = _batches_that_fit(batches, largest)
    plain_ttft_s, drafted_ttft_s = speculation.ttft_s(context_tokens)
    said = (*pool_notes(resolved), *drafting_notes(resolved.engine.name, speculator.name))
    return Speculating(
        **shared_fields(resolved),
        method=speculator.name,
        draft=resolved.pool.draft,
        draft_tokens=k,
        verified_tokens=speculator.verified_tokens(k),
        drafts=speculator.describe_shape(k),
        acceptance=speculator.rates(k),
        acceptance_source=make_from(
            AcceptanceSource,
            speculator,
            text=speculator.source,
            model=speculator.acceptance_model,
            setting=speculator.acceptance_setting,
        ),
        context_tokens=context_tokens,
        break_even_batch=speculation.break_even_batch(context_tokens, k),
        largest_batch=largest,
        memory=speculation.memory(),
        ttft_s=FirstTokens(plain=plain_ttft_s, with_draft=drafted_ttft_s),
        rows=tuple(
            _speculation_row(speculation, batch, context_tokens, k, engine_loop if simulate else None)
            for batch in held
        ),
        warnings=(*dict.fromkeys(said), *left_out),
    )


def _make_speculation(deployment: Deployment, method: str | None, draft_tokens: int | None) -> Speculation:
    """Return the deployment's pool combined with a draft method. Raises DoesNotFit or InvalidInput."""
    pool = require_one_rank(deployment.pool, "speculate")
    depth = pool.num_speculative_tokens if draft_tokens is None else draft_tokens
    if depth is not None and not 1 <= depth <= 64:
        raise InvalidInput(f"--draft-tokens {depth}: must be from 1 to 64")
    pool = pool.model_copy(update={"num_speculative_tokens": depth})
    resolved = resolve(deployment.model, pool)
    found = find_speculator(method or pool.speculator or "eagle3", resolved.model)
    resolved.memory.require_fit()
    return Speculation(resolved, configure_speculator(pool, found))


def _batches_that_fit(batches: Sequence[int], largest: int) -> tuple[list[int], tuple[str, ...]]:
    """Return the batch sizes up to `largest`, and a note on the others. Raises InvalidInput if all are larger."""
    held, others = [b for b in batches if b <= largest], [b for b in batches if b > largest]
    why = f"max_num_seqs and the KV cache with the draft allow at most {largest:,} such requests"
    if not held:
        raise InvalidInput(
            f"no batch size is possible: {why}; use smaller --batches, or a smaller --context-tokens"
        )
    left_out = ", ".join(f"{batch:,}" for batch in others)
    return held, (f"batches of {left_out} are omitted: {why}",) if others else ()


def _speculation_row(
    speculation: Speculation, batch: int, context: int, k: int, engine_loop: str | None
) -> SpeculationRow:
    """Return the results of one batch size with `k` draft tokens. `engine_loop` None: without a simulation."""
    drafted = speculation.round_of(batch, context, k)
    best = speculation.best_round(batch, context, longest=max(k, LONGEST_DRAFT))
    rates = speculation.speculator.rates(k)
    uniform = sum(rates) / len(rates) if rates else 0.0
    cost = drafted.draft_s / max(k, 1) / drafted.plain_step_s
    return make_from(
        SpeculationRow,
        drafted,
        textbook_tokens=expected_tokens(uniform, k),
        textbook_speedup=textbook_speedup(uniform, k, cost),
        best_draft_tokens=best.draft_tokens,
        best_verified_tokens=best.verified_tokens,
        best_speedup=best.speedup,
        simulated_speedup=None
        if engine_loop is None
        else _simulate_speedup(speculation, batch, context, k, engine_loop),
    )


def _simulate_speedup(speculation: Speculation, batch: int, context: int, k: int, engine_loop: str) -> float:
    """Return the simulated speedup of drafts in a closed loop of `batch` requests with a mean context of `context`."""
    prompt = max(1, context - SIMULATED_OUTPUT // 2)
    workload = random_requests(
        num_requests=max(batch, min(4 * batch, MAX_SIMULATED_REQUESTS)),
        input_len=prompt,
        output_len=SIMULATED_OUTPUT,
        request_rate_per_s=float("inf"),
        concurrency=batch,
        seed=0,
    )
    run = simulate_speculation(speculation, workload, draft_tokens=k, engine_loop=engine_loop)
    return run.throughput_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorRow:
    """A draft method that ships with the package, with its published acceptance."""

    method: str
    kind: str
    draft_tokens: int
    tree_tokens: int | None
    tokens_per_round: float
    tokens_per_round_by_task: dict[str, float]  # where they were published
    engines: tuple[str, ...]  # the only ones that have it; none: most of those that draft at all
    acceptance_model: str
    source: str
    date: str
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculators(AnswerRecord):
    """List of the draft methods that ship with the package."""

    SCHEMA: ClassVar[str] = "capacity/speculators/v1"

    rows: tuple[SpeculatorRow, ...]


def speculation_methods() -> Speculators:
    """Return the draft methods that ship with the package, each with its published acceptance and source."""
    return Speculators(
        rows=tuple(
            make_from(
                SpeculatorRow,
                way,
                method=name,
                tokens_per_round=way.tokens_per_round(way.draft_tokens),
                tokens_per_round_by_task=way.accepted_lengths_by_task,
                engines=METHOD_ENGINES.get(name, ()),
            )
            for name, way in speculators().items()
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Textbook(AnswerRecord):
    """A published textbook table of speculative decoding, and the values of our formulas for the same rows."""

    SCHEMA: ClassVar[str] = "capacity/textbook/v1"

    rows: tuple[TextbookEntry, ...]


def textbook() -> Textbook:
    """Return a published textbook table of speculative decoding with the values of our formulas for the same rows."""
    return Textbook(rows=textbook_table())

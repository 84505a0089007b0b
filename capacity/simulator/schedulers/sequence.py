"""Data types that all schedulers share: a request, a step and its rows, the limits of a scheduler, drafts."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from capacity.base.errors import InvalidInput
from capacity.simulator.kv_cache.pool import Table
from capacity.simulator.schedulers.acceptance import rate_table
from capacity.simulator.schedulers.rules import NEUTRAL_SETTINGS, NEWEST_RULES, SchedulingRules

MASK_64 = (1 << 64) - 1
CLASS_DRAW = 1 << 40  # replaces the number of a verification, which stays below it
MAX_SPREAD = 4.0


class Status:
    """State of a request."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in an engine. `known` = prompt + outputs so far; `computed` = tokens whose KV exists.

    There is no prefill or decode phase: each step schedules tokens of the request until `computed` reaches `known`.
    """

    index: int
    _: KW_ONLY
    id: Any
    arrival: int
    prompt_tokens: int
    max_known: int  # prompt + outputs at the end, at most max_model_len
    table: Table
    priority: int = 0
    asked_known: int = 0  # prompt + max_tokens, the end that the engine knows; 0: `max_known`
    known: int = 0
    computed: int = 0
    status: int = Status.WAITING
    drafts: int = 0  # draft tokens to verify
    placeholders: int = 0  # asynchronous: tokens that steps in flight will append
    in_flight_tokens: int = 0
    in_flight_yields: int = 0
    next_call: int = 0  # staggered decodes of vLLM: the first call of `schedule` that may decode it again
    mid_prefill: bool = False  # its last row ended before its last known token
    deferred: bool = False  # it waits, and a step has skipped it
    placed: int = 0  # vLLM V0: tokens with a slot in its blocks
    accepted: int = 0  # verifications so far: the cursor of the acceptance model
    epoch: int = 0  # number of preemptions; rows of an older epoch are stale
    preemptions: int = 0
    lost: int = 0  # computed tokens that its last preemption discarded
    rank: int = 0  # its data-parallel rank
    adapter: int = 0  # its LoRA adapter; 0: none
    images: int = 0  # at the prompt's start
    image_tokens: int = 0  # of each image
    audio_tokens: int = 0  # of an audio clip, which is then the last image
    sample_of: int = -1  # prompt shared with other samples; -1: none
    chunk_keys: list[Any] = field(default_factory=list)  # keys of its computed chunks in tiers below the GPU
    stored_chunks: int = 0  # chunks of its KV that a tier below the GPU has
    loaded: int = 0  # tokens that its last load copied from a tier to the GPU
    # kept by the engine loop: instants, and whether its next row is the first since arrival or preemption
    first_token: int = -1
    last_token: int = -1
    preempted: int = -1
    stopped: bool = True

    def __post_init__(self) -> None:
        self.known = self.prompt_tokens
        self.asked_known = self.asked_known or self.max_known

    def start_again(self) -> None:
        """Reset a preempted request: it waits, and all its tokens have to be recomputed."""
        self.lost = self.computed
        self.computed = self.drafts = self.placeholders = 0
        self.deferred = False
        self.epoch += 1
        self.preemptions += 1
        self.status = Status.WAITING


class Row(NamedTuple):
    """Part of a step: `tokens` tokens of a request after its first `computed` ones; the last `drafts` of them are draft
    tokens."""

    sequence: Sequence
    tokens: int
    computed: int
    drafts: int
    yields: bool  # it computes the last known token, so it samples
    epoch: int
    cached: int = 0  # prefix-cache hit of this row's admission, in tokens


@dataclass(slots=True)
class Step:
    """Decision of a policy: rows in batch order, and preempted requests in running-list order.

    During the first `held_ps` of the step, KV is copied and nothing is computed. `parts` are the steps of
    data-parallel ranks that run together; `rows` are then the rows of all ranks.
    """

    rows: list[Row] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)  # V0: prompts dropped because they can never fit
    start: int = 0
    end: int = 0
    emitted: list[tuple[Sequence, int]] = field(default_factory=list)  # appended tokens per row
    held_ps: int = 0
    stores: list[Any] = field(default_factory=list)  # KV chunks to copy out of the GPU after the step
    parts: "tuple[Step, ...]" = ()
    encoded: list[tuple[Sequence, int]] = field(default_factory=list)  # images to encode before the step
    call: int = 0  # number of the call of `schedule` that returned this step
    slots: int = 1  # of the steps in flight: its own, and those of steps without rows behind it


class Speculation:
    """Speculative decoding with `k` drafts per step; `count_accepted` returns how many are accepted.

    `accept`: numbers of drafts accepted in successive steps of a request; after the last number, the list starts again.
    """

    def __init__(self, k: int, accept: tuple[int, ...], *, lookahead_slots: int) -> None:
        self.k = k
        self.accept = accept
        self.lookahead_slots = lookahead_slots

    def count_accepted(self, sequence: Sequence, drafts: int) -> int:
        entry = self.accept[sequence.accepted % len(self.accept)]
        sequence.accepted += 1
        return min(entry, drafts)


class DrawnSpeculation(Speculation):
    """Random acceptance: a draft is accepted at the rate of its position if all drafts before it are accepted.

    A draw depends only on the seed, the request and the index of its verification step, not on the rest of the batch.
    Equal `rates` give the i.i.d. model. For a tree, `k` is the number of nodes, which exceeds the depth; `rates` has
    one rate per depth. With a `spread`, each request belongs to a random class, and `rate_table` has the rates of each
    class (see `acceptance`).
    """

    def __init__(
        self,
        rates: tuple[float, ...],
        *,
        lookahead_slots: int,
        seed: int = 0,
        k: int | None = None,
        spread: float = 0.0,
    ) -> None:
        if not rates or not all(0 <= rate <= 1 for rate in rates):
            raise InvalidInput(f"acceptance rates must be one or more numbers from 0 to 1, not {rates}")
        if not 0 <= spread <= MAX_SPREAD:
            raise InvalidInput(
                "speculative decoding: the spread of acceptance rates between requests must be from 0 to "
                f"{MAX_SPREAD:g}, not {spread}"
            )
        super().__init__(len(rates) if k is None else k, (), lookahead_slots=lookahead_slots)
        self.rates = rates
        self.rate_table = rate_table(rates, spread)
        self.seed = seed

    def count_accepted(self, sequence: Sequence, drafts: int) -> int:
        state = mix_bits(self.seed, sequence.index, sequence.accepted)
        sequence.accepted += 1
        rates = self.request_rates(sequence.index)
        count, deepest = 0, min(drafts, len(rates))
        while count < deepest:
            state = mix_bits(state, count, 0)
            if (state >> 11) * 2.0**-53 >= rates[count]:
                break
            count += 1
        return count

    def request_rates(self, request: int) -> tuple[float, ...]:
        """Return the acceptance rate at each draft position for the request, which belongs to a random class."""
        table = self.rate_table
        return table[0] if len(table) == 1 else table[mix_bits(self.seed, request, CLASS_DRAW) >> 60]


def mix_bits(a: int, b: int, c: int) -> int:
    """Return a 64-bit hash of three numbers. Source: Steele et al., SplitMix64, OOPSLA 2014."""
    state = (
        a * 0x9E3779B97F4A7C15 + b * 0xD1B54A32D192ED03 + c * 0x8CB92BA72F3D8DD7 + 0x2545F4914F6CDD1D
    ) & MASK_64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK_64
    return state ^ (state >> 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits of an engine's scheduler, and the rules of its release. Defaults are those of vLLM 0.33.0.

    Settings that the release does not have get the value that has no effect.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 1 << 40
    priority: bool = False
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    reserve_full_isl: bool = True
    max_num_active_seqs: int | None = None
    prefill_schedule_interval: int = 1
    pipeline_stages: int = 1
    max_encoder_tokens: int = 0  # image tokens per step and in the cache; 0: no encoder
    rules: SchedulingRules = NEWEST_RULES

    def __post_init__(self) -> None:
        for rule, (setting, neutral) in NEUTRAL_SETTINGS.items():
            if not getattr(self.rules, rule):
                object.__setattr__(self, setting, neutral)

    def steps_in_flight(self, *, asynchronous: bool) -> int:
        """Return how many steps of vLLM V1 can be in flight: one per pipeline stage, one more if it is asynchronous."""
        return self.pipeline_stages + asynchronous

    def empty_steps(self, *, asynchronous: bool) -> int:
        """Return how many steps without rows vLLM V1's engine loop adds to the steps in flight before it waits."""
        return self.steps_in_flight(asynchronous=asynchronous) if self.rules.empty_steps_fill_queue else 1

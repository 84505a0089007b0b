"""Speculative decoding: what drafting and verifying cost through the step model, and at which batch it stops paying.

A round drafts k tokens, verifies them in one step of the target over batch x (k + 1) rows, and yields the accepted
ones plus one. The textbook formulas are here by name, each with where it is wrong; `Speculation` is what replaces
them: verification at its real price, the draft's own steps, weights and KV, and the graph sizes that rows pad to.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from capacity.base.errors import DoesNotFit, InvalidInput, MalformedFile, UnknownName
from capacity.base.spec import Spec
from capacity.model.quantization import scheme_for, weight_bytes
from capacity.model.spec import (
    DenseFeedForward,
    LayerGroup,
    LinearAttention,
    ModelSpec,
    MoEFeedForward,
)
from capacity.pool.draft_tree import MOST_NODES, REJECTION_EXPONENT, first_rate_of_length, tree_rates
from capacity.pool.resolve import ResolvedPool
from capacity.step import DecodePiece, StepShape, decode_shape, picoseconds
from capacity.step.closed_form import EngineLimits, prefill_steps
from capacity.step.model import StepModel

TABLE = Path(__file__).with_name("speculators.toml")
LARGEST_BATCH = 1 << 14
LONGEST_DRAFT = 64
VOCABULARY_SLACK = 0.01  # sizes of one tokenizer differ by padding: 151,936 and 152,064 in Qwen2.5
ROUNDING_TOKENS = 1e-6  # so that a draft without memory leaves the capacity as it is
LOOKUP_S = (
    50e-6  # n-gram search on the CPU for one round: assumed, 2026-11-21; prompts of a few thousand tokens
)

Kind = Literal["draft-model", "self-draft", "lookup", "heads", "layer"]


# the textbook


def expected_tokens(acceptance: float, draft_tokens: int) -> float:
    """Tokens of one round if every draft is accepted alike: (1 - a^(k+1)) / (1 - a), the bonus token included.

    Wrong where acceptance falls with the position (it does: 0.92, 0.72, 0.36 for DeepSeek-R1's first three) and
    where a request ends inside a round. Source: Leviathan et al., arXiv 2211.17192, equation 1.
    """
    _check_rate(acceptance)
    _check_drafts(draft_tokens)
    if acceptance == 1.0:
        return draft_tokens + 1.0
    return (1.0 - acceptance ** (draft_tokens + 1)) / (1.0 - acceptance)


def expected_tokens_by_position(acceptance: Sequence[float]) -> float:
    """Tokens of one round: 1 + a1 + a1·a2 + ..., `acceptance` being that of each draft given those before it."""
    total = reached = 1.0
    for rate in acceptance:
        _check_rate(rate)
        reached *= rate
        total += reached
    return total


def textbook_speedup(acceptance: float, draft_tokens: int, draft_cost: float) -> float:
    """E(a, k) / (k·c + 1) with c = draft step over target step: Leviathan et al., theorem 3.8.

    Wrong once verification is not free: at large batch the k + 1 rows of every request cost up to k + 1 times a
    plain step (compute bound), and a mixture of experts pays for the further experts that drafts touch. It also
    takes c from parameter counts, where a small draft is bound by launches: 68M is a hundredth of 7B, its step
    a twentieth of the time and more.
    """
    if not draft_cost >= 0:
        raise InvalidInput(f"draft cost {draft_cost}: must be at least 0 (draft step over target step)")
    return expected_tokens(acceptance, draft_tokens) / (draft_tokens * draft_cost + 1.0)


def speedup_with_verification(
    tokens_per_round: float, *, draft_tokens: int, draft_cost: float, verify_cost: float
) -> float:
    """Tokens per round over (k·c + v), v being the verification step over a plain one: 1 only when it is free."""
    if not verify_cost > 0:
        raise InvalidInput(
            f"verification cost {verify_cost}: must be above 0 (verification over a plain step)"
        )
    return tokens_per_round / (draft_tokens * draft_cost + verify_cost)


def acceptance_of_length(tokens_per_round: float, draft_tokens: int) -> float:
    """The uniform acceptance at which a round yields `tokens_per_round`: inverse of `expected_tokens`.

    Raises InvalidInput for a length below 1 or above k + 1.
    """
    _check_drafts(draft_tokens)
    if not 1 <= tokens_per_round <= draft_tokens + 1:
        raise InvalidInput(
            f"an accepted length of {tokens_per_round} with {draft_tokens} drafts: must be from 1 to {draft_tokens + 1}"
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if expected_tokens(middle, draft_tokens) < tokens_per_round else (low, middle)
        )
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookEntry:
    """One published figure beside the formula, and why they disagree: the variant of the formula that gives it."""

    quantity: str
    acceptance: float
    draft_tokens: int
    published: float
    formula: float
    agrees: bool
    explained_by: str


_PUBLISHED_TOKENS = {
    4: {0.5: 1.94, 0.7: 2.53, 0.8: 3.00, 0.9: 3.69, 0.95: 4.24},
    8: {0.5: 2.00, 0.7: 2.79, 0.8: 3.57, 0.9: 5.70, 0.95: 7.30},
}
_PUBLISHED_SPEEDUPS = {0.5: 1.5, 0.7: 2.0, 0.8: 2.4, 0.9: 2.9, 0.95: 3.4}  # K = 5, c = 0.05


def _variants(acceptance: float, drafts: int) -> dict[str, float]:
    return {
        "exponent K in place of K + 1 (the bonus token forgotten)": expected_tokens(acceptance, drafts - 1),
        "accepted drafts of K + 1, without the bonus token": acceptance * expected_tokens(acceptance, drafts),
        "accepted drafts of K, without the bonus token": expected_tokens(acceptance, drafts) - 1,
    }


def textbook_table() -> tuple[TextbookEntry, ...]:
    """A published table of tokens per round (K = 4, 8) and speed-up (K = 5, c = 0.05) beside the formulas.

    An entry agrees if the formula rounds to it. Where it does not, the variants that do are named, and where none
    does, the exponent in place of K + 1 at which the formula would give it: between K and K + 1 the bonus token is
    lost part of the time, below K some drafts add nothing. The speed-ups are all lower than E/(K·c + 1), by 5 to
    23 %, as if each verification cost 1.06 to 1.37 plain steps. Source of the published figures: the table quoted in
    this project's issue on techniques, 2026-11.
    """
    rows = [
        _entry("tokens per round", a, k, published, expected_tokens(a, k), _variants(a, k), digits=2)
        for k, by_rate in _PUBLISHED_TOKENS.items()
        for a, published in by_rate.items()
    ]
    for a, published in _PUBLISHED_SPEEDUPS.items():
        verify = expected_tokens(a, 5) / published - 5 * 0.05
        implied = {f"verification at {verify:.2f} plain steps": published}
        rows.append(_entry("speed-up", a, 5, published, textbook_speedup(a, 5, 0.05), implied, digits=1))
    return tuple(rows)


def _entry(
    quantity: str,
    acceptance: float,
    drafts: int,
    published: float,
    formula: float,
    variants: dict[str, float],
    *,
    digits: int,
) -> TextbookEntry:
    tolerance = 0.5 * 10.0**-digits + 1e-9
    agrees = abs(formula - published) <= tolerance
    found = [name for name, value in variants.items() if abs(value - published) <= tolerance]
    return TextbookEntry(
        quantity=quantity,
        acceptance=acceptance,
        draft_tokens=drafts,
        published=published,
        formula=formula,
        agrees=agrees,
        explained_by="" if agrees else "; ".join(found) or _effective(acceptance, drafts, published),
    )


def effective_exponent(acceptance: float, tokens_per_round: float) -> float:
    """The n at which (1 - a^n)/(1 - a) is so many tokens: K + 1 if the formula holds. Raises InvalidInput."""
    left = 1.0 - tokens_per_round * (1.0 - _check_rate(acceptance))
    if not 0 < acceptance < 1 or not 0 < left < 1:
        raise InvalidInput(
            f"{tokens_per_round} tokens a round at an acceptance of {acceptance}: from 0 to 1/(1 - acceptance)"
        )
    return math.log(left) / math.log(acceptance)


def _effective(acceptance: float, drafts: int, published: float) -> str:
    """What an entry that no variant gives would mean."""
    exponent = effective_exponent(acceptance, published)
    said = f"the formula at an exponent of {exponent:.1f} in place of {drafts + 1}"
    if exponent >= drafts:
        share = (published - expected_tokens(acceptance, drafts - 1)) / acceptance**drafts
        return f"{said}: the bonus token in {share:.0%} of the rounds that earn it"
    return f"{said}: as if {drafts + 1 - exponent:.1f} of {drafts} drafts were not made"


# acceptance and ways to draft


class Speculator(Spec):
    """A way to draft, as data: what a round costs, and how much of it is accepted.

    Exactly one of: `acceptance_rate` (each draft alike), `acceptance_by_position` (of each draft given those before
    it), `accepted_length` (tokens of a round of `draft_tokens`, the bonus token included), `accepted_lengths` (the
    same by number of drafts, from 0). With `tree_tokens`, rates are those of the first candidate of each place, and
    what its siblings add follows from `capacity.pool.draft_tree`; a length is that of the whole tree.
    """

    name: str
    kind: Kind
    draft_tokens: int = Field(ge=0, le=LONGEST_DRAFT)
    tree_tokens: int | None = Field(None, ge=1, le=MOST_NODES)
    rank_exponent: float = Field(REJECTION_EXPONENT, gt=0, le=16)  # of the candidates after a tree's first
    fused_inputs: int = Field(0, ge=0, le=8)  # hidden states that a `layer` projects to one
    draft_vocab_size: int | None = Field(None, ge=1)
    draft_quantization: str | None = None
    acceptance_rate: float | None = Field(None, ge=0, le=1)
    acceptance_by_position: tuple[float, ...] | None = None
    accepted_length: float | None = Field(None, ge=1)
    accepted_lengths: tuple[float, ...] | None = None
    acceptance_model: str = ""
    source: str = "given"
    date: str = ""
    basis: Literal["datasheet", "measured", "fitted", "assumed"] = "assumed"

    def accepting(self, acceptance: str) -> Speculator:
        """The same way to draft with another acceptance: "0.7", "0.92,0.72,0.36" by position, or "length:2.3".

        Raises InvalidInput.
        """
        fields = self.model_dump()
        for name in ("acceptance_rate", "acceptance_by_position", "accepted_length", "accepted_lengths"):
            fields[name] = None
        text, separator, length = acceptance.partition("length:")
        try:
            if separator and not text:
                fields["accepted_length"] = float(length)
                acceptance_of_length(float(length), self.draft_tokens)
            elif "," in acceptance:
                fields["acceptance_by_position"] = tuple(_check_rate(float(a)) for a in acceptance.split(","))
            else:
                fields["acceptance_rate"] = _check_rate(float(acceptance))
        except ValueError as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(
                f"acceptance {acceptance!r}: give a rate (0.7), rates by position (0.92,0.72,0.36), or length:2.3"
            ) from None
        return Speculator(
            **fields | {"source": "given", "date": "", "basis": "assumed", "acceptance_model": ""}
        )

    def as_chain(self) -> Speculator:
        """The same drafts without a tree: the first candidate of each place only."""
        if self.tree_tokens is None:
            return self
        fields = self.model_dump() | {"tree_tokens": None, "accepted_length": None}
        if self.accepted_length is not None:
            fields["acceptance_rate"] = self._first_rate
        return Speculator(**fields)

    def tokens_per_round(self, draft_tokens: int, tree_tokens: int | None = None) -> float:
        """Expected tokens of a round of `draft_tokens` drafts in depth (and `tree_tokens` in all).

        A measured length at one depth stands for a uniform rate at others; rates by position beyond those given
        repeat the last one.
        """
        _check_drafts(draft_tokens)
        return expected_tokens_by_position(self.rates(draft_tokens, tree_tokens))

    def rates(self, draft_tokens: int, tree_tokens: int | None = None) -> tuple[float, ...]:
        """Acceptance at each depth given the one before: what a simulator draws from.

        `tree_tokens`: nodes of the tree; None: `verified_tokens` of this depth.
        """
        nodes = self.verified_tokens(draft_tokens) if tree_tokens is None else tree_tokens
        first = self.first_rates(draft_tokens)
        if self.tree_tokens is None and nodes == draft_tokens:
            return first
        return tree_rates(first, nodes, exponent=self.rank_exponent)

    def first_rates(self, draft_tokens: int) -> tuple[float, ...]:
        """Acceptance of the first candidate at each depth, given that all before it were accepted."""
        if self.acceptance_by_position is not None:
            return _extended(self.acceptance_by_position, draft_tokens)
        if self.accepted_lengths is not None:
            return _extended(_rates_of_lengths(self.accepted_lengths), draft_tokens)
        if self.accepted_length is not None:
            return (self._first_rate,) * draft_tokens
        return (self.acceptance_rate or 0.0,) * draft_tokens

    @property
    def _first_rate(self) -> float:
        length, depth = self.accepted_length or 1.0, max(self.draft_tokens, 1)
        if self.tree_tokens is None:
            return acceptance_of_length(length, depth)
        return first_rate_of_length(length, depth, self.tree_tokens, exponent=self.rank_exponent)

    def verified_tokens(self, draft_tokens: int) -> int:
        """Rows beside the last token that a round verifies for each request: a tree's nodes, scaled by its depth."""
        if self.tree_tokens is None or not draft_tokens:
            return draft_tokens
        return max(draft_tokens, round(self.tree_tokens * draft_tokens / max(self.draft_tokens, 1)))

    def tree_sizes(self, draft_tokens: int) -> tuple[int, ...]:
        """Sizes of tree worth trying at a depth: a chain, then doubling up to the method's own."""
        most, sizes = self.verified_tokens(draft_tokens), [draft_tokens]
        while draft_tokens and sizes[-1] < most:
            sizes.append(min(2 * sizes[-1], most))
        return tuple(sizes)


def _rates_of_lengths(lengths: Sequence[float]) -> tuple[float, ...]:
    """From accepted lengths at 0, 1, 2, ... drafts: each gain over the gain before it.

    Published lengths come from separate runs, so a gain may exceed the one before: it is then taken as 1.
    """
    gains = [after - before for before, after in pairwise(lengths)]
    reached, rates = 1.0, []
    for gain in gains:
        rates.append(min(1.0, max(0.0, gain / reached)) if reached > 0 else 0.0)
        reached = max(gain, 0.0)
    return tuple(rates)


def _extended(rates: Sequence[float], count: int) -> tuple[float, ...]:
    return (*rates, *(rates[-1],) * max(0, count - len(rates)))[:count] if rates else (0.0,) * count


@lru_cache(maxsize=1)
def speculators() -> dict[str, Speculator]:
    """All ways to draft that come with the package. Raises MalformedFile."""
    try:
        tables = tomllib.loads(TABLE.read_text(encoding="utf-8"))
        return {name: Speculator(name=name, **fields) for name, fields in tables.items()}
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise MalformedFile(TABLE, f"cannot be read: {error}") from None


def find_speculator(name: str) -> Speculator:
    """The way to draft of this name. Raises UnknownName."""
    known = speculators()
    if name not in known:
        raise UnknownName(
            "speculation method", name, known, aliases={"eagle-3": "eagle3", "eagle-2": "eagle2"}
        )
    return known[name]


# what a round costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a batch, beside a plain decode step of it. Times in seconds; `speedup` is of tokens per second."""

    batch_size: int
    draft_tokens: int
    verified_tokens: int  # rows of the verification beside each request's last token
    tokens_per_round: float
    draft_s: float
    verify_s: float
    plain_step_s: float

    @property
    def round_s(self) -> float:
        return self.draft_s + self.verify_s

    @property
    def tpot_s(self) -> float:
        return self.round_s / self.tokens_per_round

    @property
    def output_tokens_per_s(self) -> float:
        return self.batch_size / self.tpot_s

    @property
    def speedup(self) -> float:
        return self.plain_step_s / self.tpot_s

    @property
    def verify_cost(self) -> float:
        """Verification over a plain step: what the textbook takes to be 1."""
        return self.verify_s / self.plain_step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMemory:
    """What drafting takes from the KV cache, per GPU of the target's group (bytes) and in tokens that it holds."""

    draft_weights_bytes: float
    draft_kv_bytes_per_token: float
    kv_capacity_tokens_before: int
    kv_capacity_tokens_after: int


class Speculation:
    """A target pool that drafts. Raises InvalidInput where the way to draft does not suit the model.

    `draft` is the resolved draft model, for `draft-model` only; its step times are those of its own pool (which may
    use fewer GPUs than the target). Leaves out the rejection sampler's kernels (some tens of microseconds) and that
    requests of a batch finish inside a round.
    """

    def __init__(
        self, target: ResolvedPool, speculator: Speculator, *, draft: ResolvedPool | None = None
    ) -> None:
        self.target = target
        self.speculator = speculator
        self.draft = draft
        self._drafter = _drafter(target, speculator, draft)

    def round(
        self,
        batch_size: int,
        context_tokens: int,
        draft_tokens: int | None = None,
        tree_tokens: int | None = None,
    ) -> Round:
        """A round of `batch_size` requests at `context_tokens` of context each.

        `tree_tokens`: nodes verified for each request; None: the method's, scaled by the depth.
        """
        k = self.speculator.draft_tokens if draft_tokens is None else draft_tokens
        _check_drafts(k)
        if batch_size < 1 or context_tokens < 1:
            raise InvalidInput(
                f"a batch of {batch_size} at {context_tokens} tokens of context: both must be at least 1"
            )
        steps, window = self.target.step_model, self.target.model.window_tokens
        plain = decode_shape(batch_size, context_tokens, window_tokens=window)
        verified = self.speculator.verified_tokens(k) if tree_tokens is None else tree_tokens
        if k and not k <= verified <= MOST_NODES:
            raise InvalidInput(
                f"a tree of {verified} drafts, {k} deep: must be from its depth to {MOST_NODES}"
            )
        tokens = self.speculator.tokens_per_round(k, verified)
        return Round(
            batch_size=batch_size,
            draft_tokens=k,
            verified_tokens=verified,
            tokens_per_round=tokens,
            draft_s=self._drafter.seconds(batch_size, context_tokens, k, tokens, verified) if k else 0.0,
            verify_s=steps.step_seconds(plain._replace(draft_tokens=batch_size * verified)),
            plain_step_s=steps.step_seconds(plain),
        )

    def draft_s(self, batch_size: int, context_tokens: int, draft_tokens: int) -> float:
        """The drafting of a round alone, in seconds."""
        verified = self.speculator.verified_tokens(draft_tokens)
        tokens = self.speculator.tokens_per_round(draft_tokens, verified)
        return self._drafter.seconds(batch_size, context_tokens, draft_tokens, tokens, verified)

    def best(self, batch_size: int, context_tokens: int, *, longest: int = 8) -> Round:
        """The round of 0 to `longest` drafts with the most tokens per second; 0 means: do not speculate.

        For a tree also over its size, from a chain to the method's own.
        """
        candidates = [
            self.round(batch_size, context_tokens, k, nodes)
            for k in range(longest + 1)
            for nodes in self.speculator.tree_sizes(k)
        ]
        return max(candidates, key=lambda found: found.speedup)

    def break_even_batch(self, context_tokens: int, draft_tokens: int | None = None) -> int | None:
        """The smallest batch at which a round is no faster than plain steps; None: none up to the largest tried.

        Batches are tried in powers of two and then by halving, so a short dip (a graph size) may be missed.
        """
        low, high = 0, 1
        while self.round(high, context_tokens, draft_tokens).speedup > 1:
            if high >= LARGEST_BATCH:
                return None
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.round(middle, context_tokens, draft_tokens).speedup > 1:
                low = middle
            else:
                high = middle
        return high

    def memory(self) -> DraftMemory:
        """Weights and KV of the draft, and the KV capacity that they leave. Raises DoesNotFit where none is left."""
        plan = self.target.memory
        ranks = self.target.pool.tensor_parallel_size
        weights, kv = self._drafter.weights_bytes, self._drafter.kv_bytes_per_token
        per_token = max(plan.kv_cache_bytes, 1) / max(
            plan.kv_capacity_tokens, 1
        )  # of one GPU, replication included
        left = plan.kv_cache_bytes - weights / ranks
        if left <= 0:
            raise DoesNotFit(
                f"the draft's weights of {weights / ranks / 2**30:.1f} GiB per GPU exceed the "
                f"{max(plan.kv_cache_bytes, 0) / 2**30:.1f} GiB that {ranks} x "
                f"{self.target.profile.name} leave for KV; {self.target.more_memory}",
                needed_bytes=weights / ranks,
                usable_bytes=max(plan.kv_cache_bytes, 0),
            )
        return DraftMemory(
            draft_weights_bytes=weights,
            draft_kv_bytes_per_token=kv,
            kv_capacity_tokens_before=plan.kv_capacity_tokens,
            kv_capacity_tokens_after=math.floor(left / (per_token + kv / ranks) + ROUNDING_TOKENS),
        )

    def ttft_s(self, input_len: int) -> tuple[float, float]:
        """Prefill of one prompt without and with the draft's own prefill of it, queueing left out."""
        target = _prefill_s(self.target.step_model, input_len, self.target.limits)
        return target, target + self._drafter.prefill_s(input_len)


class DraftedSteps:
    """Step times of a target that drafts: every step with drafts also pays for drafting them.

    A tree's nodes are rows like a chain's: `shape.draft_tokens` counts them, and `draft_tokens` is its depth.
    """

    def __init__(self, speculation: Speculation, draft_tokens: int) -> None:
        self._steps = speculation.target.step_model
        self._speculation = speculation
        self._draft_tokens = draft_tokens

    def step_ps(self, shape: StepShape) -> int:
        step = self._steps.step_ps(shape)
        if not shape.draft_tokens:
            return step
        context = max(1, shape.decode_context_tokens // shape.decode_sequences)
        return step + picoseconds(
            self._speculation.draft_s(shape.decode_sequences, context, self._draft_tokens)
        )

    def decode_piece(self, shape: StepShape) -> DecodePiece | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafter:
    """Cost of drafting: seconds(batch, context, depth, tokens of the last round, nodes), prefill, weights, KV."""

    seconds: Callable[[int, int, int, float, int], float]
    prefill_s: Callable[[int], float]
    weights_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0


def _drafter(target: ResolvedPool, speculator: Speculator, draft: ResolvedPool | None) -> _Drafter:
    if (draft is not None) != (speculator.kind == "draft-model"):
        wanted = "needs a draft model (--draft MODEL)" if draft is None else "takes no draft model"
        raise InvalidInput(f"speculation by {speculator.name} {wanted}")
    match speculator.kind:
        case "draft-model":
            assert draft is not None
            return _model_drafter(draft, target)
        case "self-draft":
            scheme = scheme_for(target.model, speculator.draft_quantization)
            return _model_drafter(replace(target, scheme=scheme), target)
        case "lookup":
            return _Drafter(seconds=lambda *_: LOOKUP_S, prefill_s=lambda _: 0.0)
        case "heads":
            return _heads_drafter(target, speculator)
        case "layer":
            return _layer_drafter(target, speculator)


def _model_drafter(draft: ResolvedPool, target: ResolvedPool) -> _Drafter:
    if abs(draft.model.vocab_size / target.model.vocab_size - 1) > VOCABULARY_SLACK:
        raise InvalidInput(
            f"{draft.model.name} has a vocabulary of {draft.model.vocab_size} tokens, {target.model.name} of "
            f"{target.model.vocab_size}: a draft must share the target's"
        )
    steps = draft.step_model
    return _Drafter(
        seconds=lambda batch, context, k, tokens, nodes: _drafting_s(
            steps, draft.model, batch, context, k, tokens, nodes
        ),
        prefill_s=lambda input_len: _prefill_s(steps, input_len, target.limits),
        weights_bytes=weight_bytes(draft.model, draft.scheme),
        kv_bytes_per_token=draft.model.kv_bytes_per_token(draft.kv_cache_dtype),
    )


def _drafting_s(
    steps: StepModel, model: ModelSpec, batch: int, context: int, k: int, tokens: float, nodes: int
) -> float:
    """k draft steps in sequence; the first one also takes in what the last round accepted beyond one token.

    The others draft from a tree's level each, nodes/k wide on average: 1 for a chain.
    """
    plain = decode_shape(batch, context, window_tokens=model.window_tokens)
    first = plain._replace(draft_tokens=round(batch * (tokens - 1)))
    level = plain._replace(draft_tokens=round(batch * (nodes / k - 1)))
    return steps.step_seconds(first) + (k - 1) * steps.step_seconds(level)


def _prefill_s(steps: StepModel, input_len: int, limits: EngineLimits) -> float:
    if input_len < 1:
        raise InvalidInput(f"a prompt of {input_len} tokens: must be at least 1")
    return sum(steps.step_seconds(shape) for shape in prefill_steps(1, input_len, limits))


def _layer_drafter(target: ResolvedPool, speculator: Speculator) -> _Drafter:
    """EAGLE and MTP: one decoder layer fed with the target's hidden states, sharing embedding and LM head."""
    model = layer_model(target.model, speculator)
    steps = StepModel(
        model,
        target.profile,
        engine=target.engine,
        scheme=target.scheme,
        kv_cache_dtype=target.kv_cache_dtype,
        tensor_parallel_size=target.pool.tensor_parallel_size,
        expert_parallel=target.pool.enable_expert_parallel,
        enforce_eager=target.pool.enforce_eager,
        max_num_seqs=target.max_num_seqs,
    )
    shared = {"embedding"} if speculator.draft_vocab_size else {"embedding", "lm_head"}
    parts = [part for part in model.parameter_parts() if part.kind not in shared]
    return _Drafter(
        seconds=lambda batch, context, k, tokens, nodes: _drafting_s(
            steps, model, batch, context, k, tokens, nodes
        ),
        prefill_s=lambda input_len: _prefill_s(steps, input_len, target.limits),
        weights_bytes=sum(target.scheme.part_bytes(part) for part in parts),
        kv_bytes_per_token=model.kv_bytes_per_token(target.kv_cache_dtype),
    )


def layer_model(model: ModelSpec, speculator: Speculator) -> ModelSpec:
    """The drafting layer as a model of its own: the checkpoint's MTP layer, or one dense decoder layer of its size.

    The projection of `fused_inputs` hidden states to one is counted as so much more feed-forward width: the same
    parameters, FLOPs and bytes. Raises InvalidInput where the model has no MTP layer, or no attention layer.
    """
    if speculator.name == "mtp":
        if model.mtp is None:
            raise InvalidInput(
                f"{model.name} has no multi-token-prediction layer; use --method eagle3 or ngram"
            )
        group = replace(model.mtp, layers=model.mtp.layers[:1])
    else:
        like = next((g for g in model.layer_groups if not isinstance(g.mixer, LinearAttention)), None)
        if like is None:
            raise InvalidInput(f"{model.name} has no softmax attention layer to draft with")
        group = LayerGroup(layers=(0,), mixer=like.mixer, feed_forward=_dense_width(model, like))
    extra = round(speculator.fused_inputs * model.hidden_size / 3)
    feed_forward = group.feed_forward
    widened: DenseFeedForward | MoEFeedForward
    if isinstance(feed_forward, MoEFeedForward):
        widened = replace(
            feed_forward, shared_intermediate_size=feed_forward.shared_intermediate_size + extra
        )
    else:
        widened = DenseFeedForward(intermediate_size=feed_forward.intermediate_size + extra)
    return replace(
        model,
        name=f"{model.name} {speculator.name} layer",
        layer_groups=(replace(group, layers=(0,), feed_forward=widened),),
        vocab_size=speculator.draft_vocab_size or model.vocab_size,
        tie_word_embeddings=False,
        mtp=None,
        vision_params=0,
    )


def _dense_width(model: ModelSpec, group: LayerGroup) -> DenseFeedForward:
    """The layer's own width; for a mixture, that of the experts which a token uses (assumed: drafts are dense)."""
    dense = (g.feed_forward for g in model.layer_groups if isinstance(g.feed_forward, DenseFeedForward))
    found = next(dense, None)
    if found is not None:
        return found
    assert isinstance(group.feed_forward, MoEFeedForward)
    part = group.feed_forward
    return DenseFeedForward(
        intermediate_size=part.experts_per_token * part.expert_intermediate_size
        + part.shared_intermediate_size
    )


def _heads_drafter(target: ResolvedPool, speculator: Speculator) -> _Drafter:
    """Medusa: k heads at once, each a square layer and an LM head of its own; priced by the target's LM head.

    Each head moves (1 + hidden/vocabulary) times the bytes of the LM head, at the rows of the batch.
    """
    model, steps = target.model, target.step_model
    ratio = 1.0 + model.hidden_size / model.vocab_size
    head_params = model.hidden_size * (model.hidden_size + model.vocab_size)

    def seconds(batch: int, context: int, k: int, tokens: float, nodes: int) -> float:  # noqa: ARG001
        operators = steps.step_cost(decode_shape(batch, context)).operators
        lm_head_s = sum(op.seconds for op in operators if op.name in ("lm_head", "sampling"))
        return k * ratio * lm_head_s

    return _Drafter(
        seconds=seconds,
        prefill_s=lambda _: 0.0,
        weights_bytes=2.0 * speculator.draft_tokens * head_params,  # heads stay at 16 bit
    )


def _check_rate(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise InvalidInput(f"acceptance {rate}: must be from 0 to 1")
    return rate


def _check_drafts(draft_tokens: int) -> None:
    if not 0 <= draft_tokens <= LONGEST_DRAFT or math.isnan(draft_tokens):
        raise InvalidInput(f"{draft_tokens} draft tokens: must be from 0 to {LONGEST_DRAFT}")

"""Drafting methods as data (`speculators.toml`), each with its published acceptance rate or length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.spec import Spec
from capacity.deployment import Pool
from capacity.deployment.drafts import TREE, drafting_name, find_draft_checkpoint
from capacity.deployment.engines import find_engine
from capacity.model.spec import ModelSpec
from capacity.pool.drafting.textbook import (
    LONGEST_DRAFT,
    acceptance_of_length,
    check_drafts,
    check_rate,
    expected_tokens_by_position,
)
from capacity.pool.drafting.tree import MAX_NODES, REJECTION_EXPONENT, first_rate_of_length, tree_rates

TABLE = Path(__file__).with_name("speculators.toml")

# standard deviation of log tokens per round between tasks: a chain's 2.88, 3.62 and 3.29 on
# MT-bench, HumanEval and GSM8K (model card nebius/EAGLE3-Llama-3.3-70B-Instruct, as read in 2026-11)
LENGTH_SPREAD = 0.115

NO_ACCEPTANCE: dict[str, object] = dict.fromkeys(
    ("acceptance_rate", "acceptance_by_position", "accepted_length", "accepted_lengths")
)

Kind = Literal["draft-model", "self-draft", "lookup", "lookahead", "layers", "heads", "layer"]


class Speculator(Spec):
    """One drafting method: the cost parameters of a drafting round and its acceptance.

    Exactly one kind of acceptance is set. `acceptance_rate`: equal for each draft. `acceptance_by_position`: rate of
    each draft if all earlier drafts were accepted. `accepted_length`: tokens per round with `draft_tokens` drafts,
    including the bonus token (the target's own next token). `accepted_lengths`: tokens per round with 0, 1, 2, ...
    drafts. For a tree (`tree_tokens`), a rate applies to the first candidate at each position, and a length to the
    whole tree.

    `lookahead` verifies `guesses` n-grams and a Jacobi window of `window_tokens` positions, each with as many rows as
    the draft depth. `layers` drafts with the first `layers_share` of the target's layers.
    """

    name: str
    kind: Kind
    draft_tokens: int = Field(ge=0, le=LONGEST_DRAFT)
    tree_tokens: int | None = Field(None, ge=1, le=MAX_NODES)
    rank_exponent: float = Field(REJECTION_EXPONENT, gt=0, le=16)  # for a tree's candidates after the first
    fused_inputs: int = Field(0, ge=0, le=8)  # hidden states that a `layer` projects to one
    window_tokens: int = Field(0, ge=0, le=LONGEST_DRAFT)
    guesses: int = Field(0, ge=0, le=LONGEST_DRAFT)
    layers_share: float = Field(0.0, ge=0, lt=1)
    draft_vocab_size: int | None = Field(None, ge=1)
    draft_quantization: str | None = None
    acceptance_rate: float | None = Field(None, ge=0, le=1)
    acceptance_by_position: tuple[float, ...] | None = None
    accepted_length: float | None = Field(None, ge=1)
    accepted_lengths: tuple[float, ...] | None = None
    accepted_lengths_by_task: dict[str, float] = Field(default={})
    acceptance_model: str = ""  # on which the acceptance was measured
    acceptance_setting: str = ""  # and with what: engine, GPU, batch, sampling
    source: str = "given"
    date: str = ""
    basis: Literal["datasheet", "measured", "fitted", "assumed"] = "assumed"

    def with_acceptance(self, acceptance: str) -> Speculator:
        """Return the method with the acceptance in a text: "0.7", "0.92,0.72" or "length:2.3". Raises InvalidInput."""
        fields = {**self.model_dump(), **NO_ACCEPTANCE, "source": "given", "date": "", "basis": "assumed"}
        text, separator, length = acceptance.partition("length:")
        try:
            if separator and not text:
                fields["accepted_length"] = float(length)
                acceptance_of_length(float(length), self.draft_tokens)
            elif "," in acceptance:
                fields["acceptance_by_position"] = tuple(check_rate(float(a)) for a in acceptance.split(","))
            else:
                fields["acceptance_rate"] = check_rate(float(acceptance))
        except ValueError as error:
            if isinstance(error, InvalidInput):
                raise
            tasks = ", ".join(self.accepted_lengths_by_task)
            raise InvalidInput(
                f"acceptance {acceptance!r}: give a rate (0.7), rates by position (0.92,0.72,0.36), or length:2.3"
                + (f"; published for {self.name} by task: {tasks}" if tasks else "")
            ) from None
        return Speculator(**fields | {"acceptance_model": "", "acceptance_setting": ""})

    def with_task_length(self, task: str) -> Speculator:
        """Return the method with the accepted length (tokens per round) that was published for texts of `task`."""
        own = {
            "accepted_length": self.accepted_lengths_by_task[task],
            "acceptance_model": f"{self.acceptance_model}, {task}",
        }
        return self.model_copy(update=NO_ACCEPTANCE | own)

    @property
    def provenance(self) -> str:
        """Return the origin of the acceptance: its basis, the measured model and settings, and the source."""
        measured = ", ".join(part for part in (self.acceptance_model, self.acceptance_setting) if part)
        on = f" on {measured}" if measured else ""
        return f"{self.basis}{on}" + ("" if self.source == "given" and not on else f": {self.source}")

    @property
    def length_spread(self) -> float:
        """Return the standard deviation of ln(tokens per round); 0 if the user gave the acceptance."""
        return LENGTH_SPREAD if self.source != "given" else 0.0

    def with_depth(self, draft_tokens: int | None) -> Speculator:
        """Return the method with this draft depth and a tree scaled to it; None: the method unchanged.

        A published accepted length does not apply to another depth.
        """
        if draft_tokens is None or draft_tokens == self.draft_tokens:
            return self
        nodes = None if self.tree_tokens is None else self.verified_tokens(draft_tokens)
        return self.model_copy(update={"draft_tokens": draft_tokens, "tree_tokens": nodes})

    def as_chain(self) -> Speculator:
        """Return the method without a tree, so that it drafts only the first candidate at each position."""
        if self.tree_tokens is None:
            return self
        changed: dict[str, object] = {"name": self.name.removesuffix(TREE), "tree_tokens": None}
        if self.accepted_length is not None:
            changed |= {"accepted_length": None, "acceptance_rate": self._first_rate, "basis": "assumed"}
            changed["source"] = f"computed for the first candidates of its tree, from: {self.source}"
        return Speculator(**self.model_dump() | changed)

    def depth(self, draft_tokens: int | None) -> int:
        """Return the draft depth of a round: `draft_tokens`, or the method's default if it is None."""
        return self.draft_tokens if draft_tokens is None else draft_tokens

    def tokens_per_round(self, draft_tokens: int, tree_tokens: int | None = None) -> float:
        """Return the expected tokens per request of a drafting round of depth `draft_tokens`.

        `tree_tokens`: number of draft tokens in the tree; None: the method's `verified_tokens`. An accepted length that
        was measured at one depth is converted to one rate for all positions. The last of `acceptance_by_position` also
        applies to later positions.
        """
        check_drafts(draft_tokens)
        return expected_tokens_by_position(self.rates(draft_tokens, tree_tokens))

    def rates(self, draft_tokens: int, tree_tokens: int | None = None) -> tuple[float, ...]:
        """Return, for each depth, the probability that a draft is accepted if one was accepted at the previous depth.

        `tree_tokens`: number of draft tokens in the tree; None: the method's `verified_tokens`.
        """
        nodes = self.verified_tokens(draft_tokens) if tree_tokens is None else tree_tokens
        first = self.first_rates(draft_tokens)
        if self.kind == "lookahead" or (self.tree_tokens is None and nodes == draft_tokens):
            return first
        return tree_rates(first, nodes, exponent=self.rank_exponent)

    def first_rates(self, draft_tokens: int) -> tuple[float, ...]:
        """Return, for each depth, the acceptance rate of the first candidate if all drafts before it were accepted."""
        if self.acceptance_by_position is not None:
            return _extend(self.acceptance_by_position, draft_tokens)
        if self.accepted_lengths is not None:
            return _extend(_rates_of_lengths(self.accepted_lengths), draft_tokens)
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
        """Return the number of drafts that a round of this depth verifies per request; a tree is scaled to it."""
        if self.kind == "lookahead" and draft_tokens:
            return draft_tokens * (self.window_tokens + self.guesses) - 1
        if self.tree_tokens is None or not draft_tokens:
            return draft_tokens
        return max(draft_tokens, round(self.tree_tokens * draft_tokens / max(self.draft_tokens, 1)))

    def describe_shape(self, draft_tokens: int) -> str:
        """Return a description of the drafts that a round verifies: a chain, a tree, or n-grams."""
        rows = self.verified_tokens(draft_tokens)
        if self.kind == "lookahead":
            return (
                f"n-grams of {draft_tokens + 1}, a window of {self.window_tokens} and {self.guesses} guesses: "
                f"{rows + 1} rows per step"
            )
        if rows == draft_tokens:
            return f"{draft_tokens} draft tokens"
        return f"a tree of {rows} drafts, depth {draft_tokens}"

    def tree_sizes(self, draft_tokens: int) -> tuple[int, ...]:
        """Return the tree sizes to try at this depth: from a chain, doubled each time, to the method's own tree."""
        if self.kind == "lookahead":  # its window is no set of candidates
            return (self.verified_tokens(draft_tokens),)
        most, sizes = self.verified_tokens(draft_tokens), [draft_tokens]
        while draft_tokens and sizes[-1] < most:
            sizes.append(min(2 * sizes[-1], most))
        return tuple(sizes)


def _rates_of_lengths(lengths: Sequence[float]) -> tuple[float, ...]:
    """Return one acceptance rate per draft, from the accepted `lengths` with 0, 1, 2, ... drafts.

    A rate is the length that this draft adds divided by the length that the previous draft adds. The lengths come from
    separate runs, so a quotient may exceed 1; the rate is then 1.
    """
    gains = [after - before for before, after in pairwise(lengths)]
    reached, rates = 1.0, []
    for gain in gains:
        rates.append(min(1.0, max(0.0, gain / reached)) if reached > 0 else 0.0)
        reached = max(gain, 0.0)
    return tuple(rates)


def _extend(rates: Sequence[float], count: int) -> tuple[float, ...]:
    return (*rates, *(rates[-1],) * max(0, count - len(rates)))[:count] if rates else (0.0,) * count


@lru_cache(maxsize=1)
def speculators() -> dict[str, Speculator]:
    """Return all drafting methods of the package. Raises MalformedFile."""
    ways = read_rows(TABLE, Speculator)
    chains = [way.as_chain() for way in ways.values() if way.tree_tokens is not None]
    return {chain.name: chain for chain in chains} | ways


def check_draft_settings(pool: Pool) -> None:
    """Raise InvalidInput if a pool without a drafting method has a draft setting."""
    if pool.speculator is None and pool.without_drafts != pool:
        raise InvalidInput(
            "draft settings need a drafting method: add --speculator (eagle3, ngram, mtp, ...) or --draft MODEL"
        )


def pool_speculator(pool: Pool, model: ModelSpec | None = None) -> Speculator:
    """Return the pool's drafting method, with its acceptance and draft depth. Raises UnknownName and InvalidInput."""
    return configure_speculator(pool, find_speculator(pool.speculator or "", model))


def configure_speculator(pool: Pool, speculator: Speculator) -> Speculator:
    """Return `speculator` with the acceptance and draft depth that the pool sets. Raises InvalidInput."""
    if (pool.draft is None) == (speculator.kind == "draft-model"):
        wanted = (
            "needs a draft model: add --draft MODEL" if pool.draft is None else "uses no --draft: remove it"
        )
        raise InvalidInput(f"speculation by {speculator.name} {wanted}")
    if pool.draft_layers is not None and speculator.kind != "layers":
        raise InvalidInput(
            f"--draft-layers has no effect with --speculator {speculator.name}: use layer-skip, or leave it out"
        )
    deep = speculator.with_depth(pool.num_speculative_tokens)
    if pool.acceptance in speculator.accepted_lengths_by_task:
        speculator = speculator.with_task_length(pool.acceptance)
    elif pool.acceptance is not None:
        speculator = deep.with_acceptance(pool.acceptance)
    return speculator if pool.num_speculative_tokens else _apply_engine_defaults(pool, speculator)


def _apply_engine_defaults(pool: Pool, speculator: Speculator) -> Speculator:
    """Return the method with the engine's default draft depth, as a tree if the engine drafts trees by default."""
    defaults = find_engine(pool.engine).default_drafts
    depth, nodes = defaults.get(speculator.name) or defaults.get(speculator.kind) or (0, 0)
    if not depth or speculator.tree_tokens is not None:
        return speculator
    fields: dict[str, object] = {"draft_tokens": depth, "tree_tokens": nodes if nodes > depth else None}
    if speculator.accepted_length is not None:  # applies only to the measured depth
        fields |= {"accepted_length": None, "acceptance_rate": speculator.first_rates(1)[0]}
    return speculator.model_copy(update=fields)


def find_speculator(name: str, model: ModelSpec | None = None) -> Speculator:
    """Return the drafting method `name`, with the acceptance measured on `model`, if any. Raises UnknownName."""
    known, kept = speculators(), drafting_name(name)
    if kept not in known:
        raise UnknownName("speculation method", name, known)
    measured = None if model is None else find_draft_checkpoint(model.hf_id, kept)
    if model is None or measured is None or measured.accepted_length is None:
        return known[kept]
    same = ("draft_tokens", "accepted_length", "accepted_lengths_by_task", "source", "date", "basis")
    return known[kept].model_copy(
        update={
            **NO_ACCEPTANCE,
            **{name: getattr(measured, name) for name in same},
            "acceptance_model": f"{(model.hf_id or model.name).rpartition('/')[2]} with {measured.checkpoint}",
            "acceptance_setting": measured.setting,
        }
    )

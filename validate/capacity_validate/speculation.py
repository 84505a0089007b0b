"""Speculative decoding for real: draft and target with controllable agreement, and rejection sampling between them.

The rule keeps the target's distribution whatever the draft proposes: accept x with min(1, p(x)/q(x)), else sample
from max(0, p - q), normalised. Source: Leviathan et al., arXiv 2211.17192.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from capacity.pool.drafting import expected_tokens
from capacity.step import StepShape
from capacity_validate.findings import Finding
from capacity_validate.step_inputs import Row
from capacity_validate.timing import RunClock

Probabilities = Any  # array over the vocabulary
SIGNIFICANCE = 1e-4  # a true sampler fails the chi-square test once in ten thousand


def acceptance_rate(target: Probabilities, draft: Probabilities) -> float:
    """Probability that a draft is accepted: the overlap of the two distributions."""
    return float(np.minimum(target, draft).sum())


def draft_of_agreement(target: Probabilities, agreement: float) -> Probabilities:
    """The target's distribution, with 1 - `agreement` of its mass moved to a reversed copy of it."""
    return agreement * target + (1.0 - agreement) * target[::-1]


def verify(
    drafts: list[int],
    draft_probabilities: list[Probabilities],
    target_probabilities: list[Probabilities],
    rng: Any,
) -> list[int]:
    """Rejection sampling: the accepted drafts, then one token of the target's own. One target row more than drafts."""
    accepted: list[int] = []
    for token, q, p in zip(drafts, draft_probabilities, target_probabilities, strict=False):
        if rng.random() < min(1.0, p[token] / q[token]):
            accepted.append(token)
            continue
        rest = np.maximum(p - q, 0.0)
        return [*accepted, int(rng.choice(len(p), p=rest / rest.sum()))]
    last = target_probabilities[len(drafts)]
    return [*accepted, int(rng.choice(len(last), p=last))]


def distribution_findings(
    *, agreement: float, draft_tokens: int, samples: int, vocabulary: int = 12, seed: int = 0
) -> list[Finding]:
    """On a small vocabulary: the output's distribution is the target's, and lengths are as the formula says."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(vocabulary, 0.7))
    target = (target + 0.01) / (target + 0.01).sum()
    draft = draft_of_agreement(target, agreement)
    counts, lengths = np.zeros(vocabulary), []
    while counts.sum() < samples:
        drafts = rng.choice(vocabulary, size=draft_tokens, p=draft).tolist()
        out = verify(drafts, [draft] * draft_tokens, [target] * (draft_tokens + 1), rng)
        lengths.append(len(out))
        np.add.at(counts, out, 1)
    rate = acceptance_rate(target, draft)
    expected_length = expected_tokens(min(rate, 1.0), draft_tokens)
    error = float(np.std(lengths) / np.sqrt(len(lengths)))
    return [
        Finding(
            name=f"speculation k={draft_tokens}: output distribution is the target's",
            value=1.0 - chi_square_p(counts, target),
            limit=1.0 - SIGNIFICANCE,
            detail=f"1 - p of a chi-square test, {int(counts.sum())} tokens, acceptance {rate:.2f}",
        ),
        Finding(
            name=f"speculation k={draft_tokens}: accepted length",
            value=abs(float(np.mean(lengths)) - expected_length),
            limit=5 * error,
            detail=f"mean {np.mean(lengths):.3f}, {expected_length:.3f} by (1-a^(k+1))/(1-a); limit 5 standard errors",
        ),
    ]


def chi_square_p(counts: Any, probabilities: Probabilities) -> float:
    """Probability of counts at least this far from `probabilities`, were they drawn from them."""
    from scipy.stats import chisquare

    return float(chisquare(counts, probabilities * counts.sum()).pvalue)


# with real models


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeRun:
    """A real speculative run against a plain one, and what was predicted of it."""

    draft_tokens: int
    agreement: float
    tokens: int
    equal_tokens: (
        int  # to the plain greedy run's: all of them, save where rounding decides between two tokens
    )
    verifications: int
    plain_s: float
    speculative_s: float
    predicted_speedup: float | None = None

    @property
    def accepted_length(self) -> float:
        return self.tokens / self.verifications

    @property
    def expected_length(self) -> float:
        return expected_tokens(self.agreement, self.draft_tokens)

    @property
    def speedup(self) -> float:
        return self.plain_s / self.speculative_s


def run_models(
    target: Any,
    draft: Any,
    *,
    agreement: float,
    draft_tokens: int,
    output_tokens: int,
    seed: int = 0,
    clock: RunClock | None = None,
) -> SpeculativeRun:
    """Generate with a small draft model and a large target, by verification and plainly.

    Both models really run. Random weights agree on nothing, so what the draft proposes is its own token with
    probability 1 - `agreement` and otherwise what the target will say, read off the plain run: the acceptance is
    then `agreement` on every position, and the greedy output should be the plain run's, token for token.
    """
    clock = clock or RunClock()
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, target.model.vocab_size, 16).tolist()
    blocks = list(range(-(-(len(prompt) + output_tokens + 2 * draft_tokens + 4) // target.block_size)))
    plain, plain_s = _plain(target, prompt, blocks, output_tokens + 2 * draft_tokens + 3, clock)
    generated, verifications, seconds = _speculative(
        target,
        draft,
        prompt=prompt,
        blocks=blocks,
        plain=plain,
        agreement=agreement,
        draft_tokens=draft_tokens,
        output_tokens=output_tokens,
        rng=rng,
        clock=clock,
    )
    equal = sum(1 for ours, theirs in zip(generated, plain[1:], strict=False) if ours == theirs)
    return SpeculativeRun(
        draft_tokens=draft_tokens,
        agreement=agreement,
        tokens=len(generated),
        equal_tokens=equal,
        verifications=verifications,
        plain_s=plain_s * len(generated) / len(plain),
        speculative_s=seconds,
    )


def _plain(
    model: Any, prompt: list[int], blocks: list[int], count: int, clock: RunClock
) -> tuple[list[int], float]:
    tokens = list(prompt)
    (token,) = model.next_tokens(model.inputs([Row(tokens=tokens, computed=0, blocks=blocks)]))
    tokens.append(token)
    start = clock.now_s()
    while len(tokens) - len(prompt) < count:
        step = model.inputs([Row(tokens=tokens[-1:], computed=len(tokens) - 1, blocks=blocks)])
        tokens += model.next_tokens(step)
    elapsed = clock.now_s() - start
    out = tokens[len(prompt) :]
    return out, elapsed * len(out) / (len(out) - 1)


def _speculative(
    target: Any,
    draft: Any,
    *,
    prompt: list[int],
    blocks: list[int],
    plain: list[int],
    agreement: float,
    draft_tokens: int,
    output_tokens: int,
    rng: np.random.Generator,
    clock: RunClock,
) -> tuple[list[int], int, float]:
    """Greedy speculation; the draft's cache may lag behind by the tokens that it did not see accepted."""
    known = [*prompt, plain[0]]
    for model in (target, draft):
        model.next_tokens(model.inputs([Row(tokens=prompt, computed=0, blocks=blocks)]))
    computed, drafted = len(prompt), len(prompt)
    verifications = 0
    start = clock.now_s()
    while len(known) - len(prompt) < output_tokens:
        # propose
        drafts: list[int] = []
        for i in range(draft_tokens):
            fed = (known + drafts)[drafted:]
            (own,) = draft.next_tokens(draft.inputs([Row(tokens=fed, computed=drafted, blocks=blocks)]))
            drafted += len(fed)
            truth = plain[len(known) - len(prompt) + i]
            wrong = own if own != truth else (truth + 1) % target.model.vocab_size
            drafts.append(truth if rng.random() < agreement else wrong)
        # verify
        row = Row(tokens=[known[-1], *drafts], computed=computed, blocks=blocks, samples=draft_tokens + 1)
        chosen = target.next_tokens(target.inputs([row]))
        accepted = next((i for i in range(draft_tokens) if chosen[i] != drafts[i]), draft_tokens)
        known += [*drafts[:accepted], chosen[accepted]]
        # account
        computed = len(known) - 1
        drafted = min(drafted, computed)
        verifications += 1
    elapsed = clock.now_s() - start
    return known[len(prompt) + 1 :], verifications, elapsed


def predicted_speedup(
    run: SpeculativeRun,
    *,
    target_s: Callable[[StepShape], float],
    draft_s: Callable[[StepShape], float],
    context: int,
) -> float:
    """Expected length times a plain step, over k draft steps and one verification."""
    plain = StepShape(decode_sequences=1, decode_context_tokens=context, decode_window_context_tokens=context)
    verification = plain._replace(draft_tokens=run.draft_tokens)
    spent = run.draft_tokens * draft_s(plain) + target_s(verification)
    return run.expected_length * target_s(plain) / spent

"""Speculative decoding with real models: a draft and a target model with controlled agreement, and rejection sampling.

Rejection sampling keeps the target's distribution for any draft: accept x with probability min(1, p(x)/q(x)),
otherwise sample from max(0, p - q), normalised. Source: Leviathan et al., arXiv 2211.17192.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from capacity.base.record import NOT_WRITTEN, WrittenRecord
from capacity.pool.drafting import expected_tokens
from capacity.step import StepShape
from capacity_validate.cases import Finding
from capacity_validate.step_inputs import InputRow
from capacity_validate.timing import RunClock

Probabilities = Any  # array over the vocabulary
PROMPT_TOKENS = 16
SIGNIFICANCE = 1e-4  # a correct sampler fails the chi-square test once in 10,000 runs


def acceptance_rate(target: Probabilities, draft: Probabilities) -> float:
    """Return the probability that a draft is accepted: the overlap of the two distributions."""
    return float(np.minimum(target, draft).sum())


def draft_distribution(target: Probabilities, agreement: float) -> Probabilities:
    """Return agreement · p + (1 - agreement) · reversed p, where p is the target's distribution."""
    return agreement * target + (1.0 - agreement) * target[::-1]


def verify(
    drafts: list[int],
    draft_probabilities: list[Probabilities],
    target_probabilities: list[Probabilities],
    rng: Any,
) -> list[int]:
    """Return the accepted drafts, then one target token. `target_probabilities` has one more entry than `drafts`."""
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
    """Check on a small vocabulary that output tokens follow the target's distribution, and that the mean accepted
    length matches the formula."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(vocabulary, 0.7))
    target = (target + 0.01) / (target + 0.01).sum()
    draft = draft_distribution(target, agreement)
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
            detail=f"1 - p-value of a chi-square test, {int(counts.sum())} tokens, acceptance {rate:.2f}",
        ),
        Finding(
            name=f"speculation k={draft_tokens}: accepted length",
            value=abs(float(np.mean(lengths)) - expected_length),
            limit=5 * error,
            detail=f"mean {np.mean(lengths):.3f}, {expected_length:.3f} by (1-a^(k+1))/(1-a); limit 5 standard errors",
        ),
    ]


def chi_square_p(counts: Any, probabilities: Probabilities) -> float:
    """Return the p-value of a chi-square test that `counts` were drawn from `probabilities`."""
    from scipy.stats import chisquare

    return float(chisquare(counts, probabilities * counts.sum()).pvalue)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeRun(WrittenRecord):
    """Speculative and plain decoding with two real models: accepted length and speed-up, measured and by formula."""

    LAST: ClassVar[tuple[str, ...]] = ("accepted_length", "expected_length", "measured_speedup")

    draft_tokens: int
    agreement: float
    tokens: int
    equal_tokens: int  # equal to those of plain greedy decoding; fewer than all only because of rounding
    verifications: int = field(metadata=NOT_WRITTEN)
    plain_s: float = field(metadata=NOT_WRITTEN)
    speculative_s: float = field(metadata=NOT_WRITTEN)
    doubt: float = field(default=0.0, metadata=NOT_WRITTEN)  # see greedy_doubt
    predicted_speedup: float = math.nan

    @property
    def accepted_length(self) -> float:
        return self.tokens / self.verifications

    @property
    def expected_length(self) -> float:
        return expected_tokens(self.agreement, self.draft_tokens)

    @property
    def measured_speedup(self) -> float:
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
    """Generate tokens with a target model and a small draft model, with and without speculation, and compare the two.

    Both models really run. Models with random weights never agree, so a draft token is replaced, with probability
    `agreement`, by the token that the target will choose; the acceptance is then `agreement` at every position. The
    target's choice is taken from the verification itself, because a plain decode step runs another kernel, whose
    16-bit rounding soon leads to a different choice.
    """
    clock = clock or RunClock()
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, target.model.vocab_size, PROMPT_TOKENS).tolist()
    blocks = list(range(-(-(len(prompt) + output_tokens + 2 * draft_tokens + 4) // target.block_size)))
    plain, plain_s = _plain_decode(target, prompt, blocks, output_tokens + 2 * draft_tokens + 3, clock)
    speculation = _Speculation(
        target=target, draft=draft, blocks=blocks, prompt=prompt, plain=plain, rng=rng, clock=clock
    )
    speculation.run(agreement=agreement, draft_tokens=draft_tokens, output_tokens=output_tokens)
    generated = speculation.known[len(prompt) + 1 :]
    equal = sum(1 for ours, theirs in zip(generated, plain[1:], strict=False) if ours == theirs)
    return SpeculativeRun(
        draft_tokens=draft_tokens,
        agreement=agreement,
        tokens=len(generated),
        equal_tokens=equal,
        verifications=speculation.verifications,
        plain_s=plain_s * len(generated) / len(plain),
        speculative_s=speculation.seconds,
        doubt=greedy_logit_gap(target, speculation.known, prompt_tokens=len(prompt), blocks=blocks),
    )


def greedy_logit_gap(target: Any, known: list[int], *, prompt_tokens: int, blocks: list[int]) -> float:
    """Return the largest distance of a generated token from the target's first choice: logit gap / largest logit.

    The target processes the whole sequence in one step. 0: every token is the first choice; a few percent: two tokens
    are too close for 16 bits; near 1: a token is not from the target.
    """
    generated = len(known) - prompt_tokens
    row = InputRow(tokens=known[:-1], computed=0, blocks=blocks, samples=generated)
    logits = target.logits(target.inputs([row])).float()
    chosen = logits.new_tensor(known[prompt_tokens:]).long()[:, None]
    gaps = logits.max(dim=-1).values - logits.gather(1, chosen)[:, 0]
    return float((gaps / logits.abs().amax(dim=-1)).max())


def _plain_decode(
    model: Any, prompt: list[int], blocks: list[int], count: int, clock: RunClock
) -> tuple[list[int], float]:
    tokens = list(prompt)
    (token,) = model.next_tokens(model.inputs([InputRow(tokens=tokens, computed=0, blocks=blocks)]))
    tokens.append(token)
    start = clock.now_s()
    while len(tokens) - len(prompt) < count:
        step = model.inputs([InputRow(tokens=tokens[-1:], computed=len(tokens) - 1, blocks=blocks)])
        tokens += model.next_tokens(step)
    elapsed = clock.now_s() - start
    out = tokens[len(prompt) :]
    return out, elapsed * len(out) / (len(out) - 1)


@dataclass(slots=True)
class _Speculation:
    """Greedy speculative decoding. The draft model's cache may lack the last accepted tokens until its next step."""

    target: Any
    draft: Any
    blocks: list[int]
    prompt: list[int]
    plain: list[int]
    rng: np.random.Generator
    clock: RunClock
    known: list[int] = field(default_factory=list)
    verifications: int = 0
    # drafting, and the last verification of each round; corrections of drafts are not counted
    seconds: float = 0.0

    def run(self, *, agreement: float, draft_tokens: int, output_tokens: int) -> None:
        self.known = [*self.prompt, self.plain[0]]
        for model in (self.target, self.draft):
            model.next_tokens(model.inputs([InputRow(tokens=self.prompt, computed=0, blocks=self.blocks)]))
        drafted = len(self.prompt)
        while len(self.known) - len(self.prompt) < output_tokens:
            own, drafted = self._propose(draft_tokens, drafted)
            agrees = [bool(self.rng.random() < agreement) for _ in range(draft_tokens)]
            accepted, chosen = self._verify(own, agrees)
            self.known += chosen[: accepted + 1]
            drafted = min(drafted, len(self.known) - 1)
            self.verifications += 1

    def _propose(self, draft_tokens: int, drafted: int) -> tuple[list[int], int]:
        """Generate draft tokens, one draft step each; return them and the token count of the draft model's cache."""
        own: list[int] = []
        start = self.clock.now_s()
        for _ in range(draft_tokens):
            fed = (self.known + own)[drafted:]
            step = self.draft.inputs([InputRow(tokens=fed, computed=drafted, blocks=self.blocks)])
            own += self.draft.next_tokens(step)
            drafted += len(fed)
        self.seconds += self.clock.now_s() - start
        return own, drafted

    def _verify(self, own: list[int], agrees: list[bool]) -> tuple[int, list[int]]:
        """Verify drafts that equal the target's choices only where `agrees`; return accepted count and choices.

        A choice depends on the drafts before it. Each draft that does not yet follow `agrees` is therefore corrected
        to the latest choice, and all are verified again. Only the last verification, without corrections, is timed.
        """
        generated = len(self.known) - len(self.prompt)
        guess = self.plain[generated : generated + len(own)]
        guess += own[len(guess) :]
        drafts = [self._draft(*part) for part in zip(own, guess, agrees, strict=True)]
        for _ in range(len(own) + 1):
            start = self.clock.now_s()
            tokens, computed = [self.known[-1], *drafts], len(self.known) - 1
            row = InputRow(tokens=tokens, computed=computed, blocks=self.blocks, samples=len(tokens))
            chosen: list[int] = self.target.next_tokens(self.target.inputs([row]))
            spent_s = self.clock.now_s() - start
            odd = next((i for i, agree in enumerate(agrees) if (drafts[i] == chosen[i]) != agree), len(own))
            stop = next((i for i, agree in enumerate(agrees) if not agree), len(own))
            if odd > stop or odd == len(own):
                break
            drafts[odd] = self._draft(own[odd], chosen[odd], agrees[odd])
        self.seconds += spent_s
        return next((i for i in range(len(own)) if chosen[i] != drafts[i]), len(own)), chosen

    def _draft(self, own: int, truth: int, agree: bool) -> int:
        if agree:
            return truth
        return own if own != truth else (truth + 1) % int(self.target.model.vocab_size)


def predicted_speedup(
    run: SpeculativeRun,
    *,
    target_s: Callable[[StepShape], float],
    draft_s: Callable[[StepShape], float],
    context: int,
) -> float:
    """Return the predicted speed-up: accepted length x plain step time / (k draft steps + one verification)."""
    plain = StepShape(decode_sequences=1, decode_context_tokens=context, decode_window_context_tokens=context)
    verification = plain._replace(draft_tokens=run.draft_tokens)
    spent = run.draft_tokens * draft_s(plain) + target_s(verification)
    return run.expected_length * target_s(plain) / spent

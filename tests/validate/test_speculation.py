"""Rejection sampling keeps the target's distribution, and real models their plain tokens."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from capacity_validate.small_models import cut_layers, small_model  # noqa: E402
from capacity_validate.speculative_decoding import (  # noqa: E402
    acceptance_rate,
    chi_square_p,
    distribution_findings,
    draft_distribution,
    run_models,
    verify,
)
from capacity_validate.stages.model_runs import _length_finding, _token_finding  # noqa: E402
from capacity_validate.timing import ThreadClock  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402

from capacity.model.quantization import find_format, uniform_scheme  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("agreement", [0.0, 0.6, 1.0])
def test_rejection_sampling_keeps_the_targets_distribution(agreement: float) -> None:
    findings = distribution_findings(agreement=agreement, draft_tokens=3, samples=6000, seed=5)
    assert all(f.passed for f in findings), findings


def test_the_chi_square_test_notices_a_sampler_that_skips_the_residual() -> None:
    """Resampling a rejected token from the target itself, a common slip, is found out."""
    rng = np.random.default_rng(0)
    target = np.array([0.7, 0.1, 0.1, 0.1])
    draft = draft_distribution(target, 0.3)
    counts = np.zeros(4)
    for _ in range(6000):
        token = int(rng.choice(4, p=draft))
        accepted = rng.random() < min(1.0, target[token] / draft[token])
        counts[token if accepted else int(rng.choice(4, p=target))] += 1
    assert chi_square_p(counts, target) < 1e-6


def test_verification_of_equal_distributions_accepts_all() -> None:
    rng = np.random.default_rng(0)
    p = np.array([0.25, 0.25, 0.5])
    assert acceptance_rate(p, p) == pytest.approx(1.0)
    out = verify([0, 2, 1], [p] * 3, [p] * 4, rng)
    assert out[:3] == [0, 2, 1]
    assert len(out) == 4


@pytest.mark.parametrize("agreement", [0.0, 1.0])
def test_speculation_with_real_models_gives_the_plain_tokens(tiny: Transformer, agreement: float) -> None:
    tiny.num_blocks = 64
    draft = Transformer(small_model("tiny-mqa"), device="cpu", num_blocks=64)
    run = run_models(tiny, draft, agreement=agreement, draft_tokens=3, output_tokens=24, clock=ThreadClock())
    assert run.equal_tokens == run.tokens
    assert run.accepted_length == pytest.approx(run.expected_length, abs=1.0 / run.verifications)


def test_in_16_bits_drafts_agree_with_what_verification_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding departs from verification once rounding decides otherwise; the accepted length does not.

    Where rounding does so is the CPU's, so one plain step is made to choose another token.
    """
    half = find_format("bf16")
    spec = replace(small_model("tiny"), dtype="bf16", checkpoint=uniform_scheme("bf16", half, base=half))
    target = Transformer(spec, device="cpu", num_blocks=32)
    draft = Transformer(cut_layers(spec, 1), device="cpu", num_blocks=32)
    choices, calls = target.next_tokens, count()

    def next_tokens(step: Any) -> list[int]:
        """The plain run is the first to ask: its ninth token is another."""
        changed = int(next(calls) == 8)
        return [(token + changed) % spec.vocab_size for token in choices(step)]

    with monkeypatch.context() as patched:
        patched.setattr(target, "next_tokens", next_tokens)
        run = run_models(target, draft, agreement=0.7, draft_tokens=3, output_tokens=100, clock=ThreadClock())
    assert run.equal_tokens < run.tokens
    assert not _token_finding(run, exact=True).passed
    finding = _length_finding(run)
    assert finding.passed, finding
    assert run.accepted_length == pytest.approx(run.expected_length, rel=0.25)
    assert _token_finding(run, exact=False).passed
    # and a target whose verification is wrong is found out
    monkeypatch.setattr(target, "next_tokens", lambda step: [(t + 1) % 4096 for t in choices(step)])
    wrong = run_models(target, draft, agreement=0.7, draft_tokens=3, output_tokens=20, clock=ThreadClock())
    assert not _token_finding(wrong, exact=False).passed

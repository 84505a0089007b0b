"""Rejection sampling keeps the target's distribution, and real models their plain tokens."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from capacity_validate.small_models import small_model  # noqa: E402
from capacity_validate.speculation import (  # noqa: E402
    acceptance_rate,
    chi_square_p,
    distribution_findings,
    draft_of_agreement,
    run_models,
    verify,
)
from capacity_validate.timing import ThreadClock  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("agreement", [0.0, 0.6, 1.0])
def test_rejection_sampling_keeps_the_targets_distribution(agreement: float) -> None:
    findings = distribution_findings(agreement=agreement, draft_tokens=3, samples=6000, seed=5)
    assert all(f.passed for f in findings), findings


def test_the_chi_square_test_notices_a_sampler_that_skips_the_residual() -> None:
    """Resampling a rejected token from the target itself, a common slip, is found out."""
    rng = np.random.default_rng(0)
    target = np.array([0.7, 0.1, 0.1, 0.1])
    draft = draft_of_agreement(target, 0.3)
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

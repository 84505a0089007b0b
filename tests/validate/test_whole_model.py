"""The transformer, the continuous-batching loop, speculation, quantizers: techniques that must give the same result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from capacity_validate import validate  # noqa: E402
from capacity_validate.engine_loop import match_schedule, poisson_workload, run_engine, simulate  # noqa: E402
from capacity_validate.graphs import GraphedTransformer  # noqa: E402
from capacity_validate.kernels.paged import paged_decode_attention  # noqa: E402
from capacity_validate.memory_check import (  # noqa: E402
    activation_findings,
    exact_findings,
    peak_activation_bytes,
)
from capacity_validate.mixers import causal_mask  # noqa: E402
from capacity_validate.quantizers import (  # noqa: E402
    absmax,
    fp8,
    grouped_int4,
    nf4,
    quantizer_findings,
    zero_point,
)
from capacity_validate.small_models import small_model, small_model_names  # noqa: E402
from capacity_validate.speculation import (  # noqa: E402
    acceptance_rate,
    chi_square_p,
    distribution_findings,
    draft_of_agreement,
    run_models,
    verify,
)
from capacity_validate.step_inputs import Row  # noqa: E402
from capacity_validate.techniques import (  # noqa: E402
    attention_sinks,
    cached_against_uncached,
    online_softmax,
    sliding_window,
)
from capacity_validate.timing import RunClock, ThreadClock  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402

from capacity.base.errors import UnsupportedModel  # noqa: E402
from capacity.model import load_model  # noqa: E402
from capacity.simulator.schedulers import SchedulerLimits  # noqa: E402
from capacity.step import AffineStepTimes  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Small products on a busy machine are slower with two threads, by far."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=small_model_names())
def model(request: pytest.FixtureRequest) -> Transformer:
    return Transformer(small_model(request.param), device="cpu", num_blocks=32)


def test_parameters_and_cache_are_the_specs_to_the_byte(model: Transformer) -> None:
    assert sum(t.numel() for t in model.weight_tensors) == model.model.total_params
    for finding in exact_findings(model):
        assert finding.passed, finding


def test_one_mixed_step_is_the_sum_of_its_rows(model: Transformer) -> None:
    """A prefill chunk and two decode rows in one step give each row the logits that it has alone."""
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(4096, (n,), generator=generator).tolist() for n in (33, 20, 48)]
    blocks = [[3, 17, 5, 9], [30, 2, 8], [11, 0, 21, 6]]
    whole = [
        model.logits(model.inputs([Row(tokens=p, computed=0, blocks=b)]))
        for p, b in zip(prompts, blocks, strict=True)
    ]
    for p, b, held_back in zip(prompts, blocks, (1, 1, 16), strict=True):
        model.logits(model.inputs([Row(tokens=p[:-held_back], computed=0, blocks=b)]))
    mixed = model.logits(
        model.inputs(
            [
                Row(tokens=p[-n:], computed=len(p) - n, blocks=b)
                for p, b, n in zip(prompts, blocks, (1, 1, 16), strict=True)
            ]
        )
    )
    for alone, row in zip(whole, mixed, strict=True):
        assert float((alone[0] - row).abs().max() / alone.abs().max()) < 1e-4


def test_a_model_without_a_kernel_is_refused() -> None:
    for name, lacks in (("qwen3-next-80b-a3b", "linear attention"), ("deepseek-v3.2", "sparse indexer")):
        with pytest.raises(UnsupportedModel, match=lacks) as refused:
            Transformer(load_model(name), device="cpu", num_blocks=1)
        assert "\n" not in str(refused.value)


@given(st.integers(1, 12), st.integers(0, 12), st.one_of(st.none(), st.integers(1, 16)))
def test_causal_masks_show_the_window_and_no_future(new: int, computed: int, window: int | None) -> None:
    mask = causal_mask(new, computed, window, "cpu")
    if mask is None:
        assert computed == 0
        return
    for query in range(new):
        position = computed + query
        first = 0 if window is None else max(0, position - window + 1)
        assert mask[query].nonzero().flatten().tolist() == list(range(first, position + 1))


# serving


@pytest.fixture(scope="module")
def tiny() -> Transformer:
    return Transformer(small_model("tiny"), device="cpu", num_blocks=64)


class CountingClock(RunClock):
    """5 ms pass with every look at it: which arrivals fall into which step does not hang on the machine."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        self._now_s += 5e-3
        return self._now_s

    def wait_until(self, instant_s: float) -> None:
        self._now_s = max(self._now_s, instant_s)


@pytest.mark.parametrize("num_blocks", [64, 18])
def test_the_simulator_takes_the_very_steps_of_the_real_loop(tiny: Transformer, num_blocks: int) -> None:
    """Also where the KV cache is too small, so that requests are preempted and start again."""
    tiny.num_blocks = num_blocks
    workload = poisson_workload(
        requests=10, rate_per_s=60.0, prompt_tokens=(20, 80), output_tokens=(4, 30), seed=1
    )
    limits = SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=64)
    run = run_engine(tiny, workload, limits, clock=CountingClock())
    match = match_schedule(run)
    assert match.complete, match
    assert match.steps > 10
    assert run.records.completed.all()
    assert run.records.output_tokens.tolist() == workload.output_tokens.tolist()
    simulated = simulate(run, AffineStepTimes(1e-3, 1e-5))
    assert simulated.summary.completed == 10
    if num_blocks == 18:
        assert run.preemptions > 0


def test_times_of_a_real_run_are_in_order(tiny: Transformer) -> None:
    tiny.num_blocks = 64
    workload = poisson_workload(
        requests=6, rate_per_s=20.0, prompt_tokens=(20, 40), output_tokens=(2, 6), seed=4
    )
    run = run_engine(
        tiny, workload, SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=32), clock=ThreadClock()
    )
    for record in run.records:
        assert record.first_scheduled_s is not None
        assert record.first_token_s is not None
        assert record.finish_s is not None
        assert record.arrival_s <= record.first_scheduled_s < record.first_token_s <= record.finish_s
    assert sum(step.seconds for step in run.steps) == pytest.approx(run.busy_s)


def test_scheduled_requests_get_the_tokens_that_they_get_alone(tiny: Transformer) -> None:
    """Greedy outputs in a batch are those of a batch of one: paging and batching change nothing."""
    tiny.num_blocks = 64
    workload = poisson_workload(
        requests=4, rate_per_s=1e6, prompt_tokens=(20, 40), output_tokens=(6, 6), seed=7
    )
    together = run_engine(
        tiny, workload, SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64), clock=ThreadClock()
    )
    alone = run_engine(
        tiny, workload, SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64), clock=ThreadClock()
    )
    assert len(alone.steps) > len(together.steps)
    assert together.tokens == alone.tokens


# speculation


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


# numerics


def test_every_quantizer_keeps_its_bound_and_its_bytes() -> None:
    findings = quantizer_findings()
    assert len(findings) >= 11
    assert all(f.passed for f in findings), [f for f in findings if not f.passed]


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.floats(-3, 3), st.floats(0.01, 100))
def test_quantizers_keep_their_bounds_on_any_matrix(seed: int, shift: float, scale: float) -> None:
    x = (
        torch.randn(8, 128, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
        + shift
    )
    for quantized in (absmax(x), absmax(x, bits=4, block=32), zero_point(x), grouped_int4(x), nf4(x), fp8(x)):
        assert bool(((quantized.values - x).abs() <= quantized.bound * (1 + 1e-6) + 1e-9).all())


def test_steps_are_as_wide_as_the_formats_say() -> None:
    """Δ = 2 max|x| / 254 for INT8 absmax, range / 255 with a zero point, range / 15 at 4 bit."""
    x = torch.linspace(-3.0, 5.0, 256, dtype=torch.float64)[None, :]
    assert float(absmax(x).bound.max()) == pytest.approx(5.0 / 127 / 2)
    assert float(zero_point(x).bound.min()) == pytest.approx(8.0 / 255 / 2)
    assert float(grouped_int4(x, group=256).bound.min()) == pytest.approx(
        8.0 / 15 / 2, rel=1e-3
    )  # FP16 scale


def test_the_bounds_are_not_slack() -> None:
    """Half a step is reached: errors come within 10 % of their bounds."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for quantized in (absmax(x), zero_point(x), grouped_int4(x), nf4(x)):
        assert float(((quantized.values - x).abs() / quantized.bound).max()) > 0.9


def test_attention_by_other_ways_is_the_same() -> None:
    for finding in (online_softmax(), sliding_window(), attention_sinks()):
        assert finding.passed, finding


# graphs, with a stand-in for torch.cuda


@pytest.fixture
def graphed(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphedTransformer]:
    """Capture runs the step at once, replay runs it again: static inputs and padding are what is tested."""
    nothing = contextlib.nullcontext

    class Stream:
        def __init__(self, *_: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...

    for name, fake in (
        ("Stream", Stream),
        ("current_stream", Stream),
        ("stream", lambda _: nothing()),
        ("graph", lambda _: nothing()),
        ("CUDAGraph", lambda: SimpleNamespace()),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    tiny.num_blocks = 63  # the last block is nobody's: padding rows write there
    model = GraphedTransformer(tiny, sizes=(2, 4), max_context=128)
    for graph in model._graphs:
        graph.graph.replay = lambda g=graph: g.chosen.copy_(tiny.logits(g.step).argmax(dim=-1))
    yield model
    tiny.num_blocks = 64


def test_graphs_padded_to_their_size_give_the_eager_tokens(
    tiny: Transformer, graphed: GraphedTransformer
) -> None:
    generator = torch.Generator().manual_seed(9)
    rows = []
    for index, context in enumerate((30, 90, 17)):
        tokens = torch.randint(4096, (context,), generator=generator).tolist()
        blocks = list(range(index * 8, index * 8 + 8))
        tiny.logits(tiny.inputs([Row(tokens=tokens[:-1], computed=0, blocks=blocks)]))
        rows.append(Row(tokens=tokens[-1:], computed=context - 1, blocks=blocks))
    before = [cache[:24].clone() for cache in tiny.cache_tensors]
    expected = tiny.next_tokens(tiny.inputs(rows))
    for _ in range(2):
        assert graphed.next_tokens(graphed.inputs(rows)) == expected
    assert graphed.next_tokens(graphed.inputs(rows[:2])) == expected[:2]
    for cache in tiny.cache_tensors:
        cache[8:24] = 0.0  # the other two rows are gone, and their blocks are somebody else's now
    assert graphed.next_tokens(graphed.inputs(rows[:1])) == expected[:1]
    assert not any(bool(cache[8:24].any()) for cache in tiny.cache_tensors)
    for cache, was in zip(tiny.cache_tensors, before, strict=True):
        changed = (cache[:8] != was[:8]).flatten(2).any(dim=-1)
        assert int(changed.sum()) <= 1  # the row's own slot, and nothing that padding wrote


def test_padded_latent_decode_is_the_gathered_one() -> None:
    """What a graph holds on a GPU, tables padded to one length, against sequence by sequence."""
    model = Transformer(small_model("tiny-mla"), device="cpu", num_blocks=32)
    model.fill_caches()
    rows = [
        Row(tokens=[5], computed=c - 1, blocks=list(range(i * 8, i * 8 + 8)))
        for i, c in enumerate((3, 100, 40))
    ]
    step = model.inputs(rows)
    mixer = model.layers[0].mixer
    spec = mixer.spec
    nope = torch.randn(3, spec.num_heads, spec.qk_nope_head_dim, generator=torch.Generator().manual_seed(1))
    rope = torch.randn(3, spec.num_heads, spec.qk_rope_head_dim, generator=torch.Generator().manual_seed(2))
    key_half, value_half = mixer._expansion()
    query = torch.cat([torch.einsum("bhn,hnl->bhl", nope, key_half), rope], dim=-1)
    padded = torch.einsum("bhl,hvl->bhv", mixer._padded_decode(query, step), value_half)
    assert torch.allclose(padded, mixer._decode(nope, rope, step), atol=1e-4)


def test_biased_and_normalised_attention_has_the_specs_parameters() -> None:
    """Qwen's variants: a bias on QKV, or a norm over each head."""
    base = small_model("tiny")
    for changes in ({"qkv_bias": True}, {"qk_norm": "per_head"}):
        group = base.layer_groups[0]
        spec = replace(base, layer_groups=(replace(group, mixer=replace(group.mixer, **changes)),))
        model = Transformer(spec, device="cpu", num_blocks=16)
        assert sum(t.numel() for t in model.weight_tensors) == spec.total_params
        assert cached_against_uncached(model) < 1e-4


def attention_by_definition(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Softmax over what is seen, with exp(sink) in its denominator; float64, [heads, tokens, d]."""
    groups = q.shape[0] // k.shape[0]
    k, v = (part.repeat_interleave(groups, dim=0).double() for part in (k, v))
    scores = q.double() @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    weights = torch.exp(scores).masked_fill(~seen, 0.0)
    total = weights.sum(dim=-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks.double())[:, None, None]
    return (weights / total) @ v


@pytest.mark.parametrize("name", ["tiny-sinks", "tiny-chunked", "tiny-window", "tiny"])
def test_windows_chunks_and_sinks_are_what_their_definition_says(name: str) -> None:
    """Of the mixer itself, prefill and decode, against plain exponentials."""
    spec = small_model(name)
    model = Transformer(spec, device="cpu", num_blocks=16)
    model.fill_caches()
    mixer, context = model.layers[0].mixer, 150
    blocks = torch.randperm(16, generator=torch.Generator().manual_seed(3)).tolist()
    window, chunked = mixer.spec.window_tokens or context, mixer.spec.chunked
    keys, values = (c[torch.tensor(blocks)].flatten(0, 1)[:context].transpose(0, 1) for c in mixer.caches)
    query = torch.arange(context)[:, None]
    first = query // window * window if chunked else query - window + 1
    position = torch.arange(context)[None, :]
    seen = (position <= query) & (position >= first)
    q = torch.randn(
        context, mixer.spec.num_heads, mixer.spec.head_dim, generator=torch.Generator().manual_seed(4)
    )
    expected = attention_by_definition(q.transpose(0, 1), keys, values, seen, mixer.sinks)
    for computed in (0, 70):
        found = mixer._prefill(q[computed:], computed, torch.tensor(blocks))
        assert torch.allclose(found.transpose(0, 1).double(), expected[:, computed:], atol=1e-5)
    for seen_tokens in (context, 120, 64, 1):  # 120 and 64 end a chunk, and fill a window
        last = paged_decode_attention(
            q[seen_tokens - 1 : seen_tokens], *mixer.caches, torch.tensor([blocks]), torch.tensor([seen_tokens]),
            max_context=seen_tokens, window_tokens=mixer.spec.window_tokens, chunked=chunked, sinks=mixer.sinks,
        )  # fmt: skip
        assert torch.allclose(last[0].double(), expected[:, seen_tokens - 1], atol=1e-5)


def test_the_activation_peak_of_a_prefill_is_the_memory_models_form(tiny: Transformer) -> None:
    """To the byte, but for masks and positions: two hidden states and the FFN's four, whatever the length."""
    for tokens in (64, 256):
        (finding,) = activation_findings(tiny, tokens, peak_activation_bytes(torch, tiny, tokens))
        assert finding.passed, finding
        assert finding.value < 0.02
    wrong = activation_findings(tiny, 64, 2 * peak_activation_bytes(torch, tiny, 64))
    assert not wrong[0].passed
    mixture = Transformer(small_model("tiny-moe"), device="cpu", num_blocks=8)
    assert activation_findings(mixture, 64, 1.0) == []


def test_models_cut_to_fit_are_extrapolated_from_two_depths(tmp_path: Path) -> None:
    campaign = tmp_path / "cut.toml"
    campaign.write_text(
        'name = "cut"\ndescription = "x"\nbudget_s = 30\n[cuda]\n[cpu]\npasses = 2\n'
        "techniques = false\nmemory = false\n"
        '[cpu.transformer]\nmodel = "tiny"\nmax_layers = 4\nprefill = [16, 64]\n'
        "decode = [{ batch = 1, context = 64 }, { batch = 2, context = 64 }]\n"
    )
    report = validate("cpu", str(campaign), out=tmp_path / "out")
    assert report.extrapolation is not None
    assert report.extrapolation.layers == 6
    four = next(r.measured_s for r in report.cases if "batch=2" in r.id and "layers=4" in r.id)
    two = next(r.measured_s for r in report.cases if "batch=2" in r.id and "layers=2" in r.id)
    assert report.extrapolation.measured_s == pytest.approx(four + (four - two))
    assert any("cut to 4 of 6 layers" in remark for remark in report.remarks)

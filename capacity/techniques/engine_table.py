"""Table of the engines as the simulator models them, and comparison of published speed claims with physical bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from capacity.base.checked import validate_arguments
from capacity.base.flags import with_flags
from capacity.base.record import AnswerRecord, make_from
from capacity.deployment import Pool
from capacity.deployment.engines import EngineSpec, engine_names, find_engine
from capacity.hardware import HardwareProfile, load_profile
from capacity.pool.resolve import resolve
from capacity.simulator.schedulers import SCHEDULERS, schedulers_with_ability
from capacity.step import OpCost, StepCost, decode_shape, prefill_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One engine release: its defaults on a GPU, the formats that it loads, and the evidence for its constants.

    `simulated`: the simulator implements its scheduling policy. `sourced_fraction`: fraction of its constants that are
    stated by a source, measured or fitted rather than assumed.
    """

    engine: str
    policy: str
    simulated: bool
    paged: bool
    block_size: int
    chunked_prefill: bool
    prefix_caching: bool
    mixes_prefill_with_decode: bool
    async_scheduling: bool
    cuda_graphs: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    memory_rule: str
    host_step_s: float  # of a batch of 1, at 32 layers
    request_latency_s: float
    weight_formats: tuple[str, ...]
    kv_cache_formats: tuple[str, ...]  # in addition to 16 bit
    drafts: bool  # its scheduler is one that the simulator drafts under
    sourced_fraction: float
    notes: tuple[str, ...]


def engine_rows(gpu: str = "h100") -> tuple[EngineRow, ...]:
    """Return the newest listed release of every engine, with its default limits on `gpu`. Raises UnknownName."""
    profile = load_profile(gpu)
    return tuple(_row(find_engine(name), profile) for name in engine_names())


def _row(engine: EngineSpec, profile: HardwareProfile) -> EngineRow:
    limits = engine.default_limits(profile.memory_engine_bytes, profile.architecture)
    origins = engine.origins.values()
    host_step_s = engine.host_base_s + 32 * engine.host_per_layer_s
    return make_from(
        EngineRow,
        engine,
        engine=engine.label,
        policy=engine.scheduler,
        simulated=engine.scheduler in SCHEDULERS,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        host_step_s=host_step_s + engine.host_per_sequence_s + engine.host_serial_s,
        drafts=engine.scheduler in schedulers_with_ability("drafts"),
        sourced_fraction=sum(origin.basis != "assumed" for origin in origins) / max(1, len(origins)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A published number, our prediction, the bound at the GPU's peak rates, and an explanation of the difference.

    `unit` is tokens/s (higher is faster; the bound is a maximum) or ms (the bound is a minimum).
    """

    name: str
    unit: str
    published: float
    ours: float | None
    bound: float | None
    possible: bool
    note: str


# A published single-stream comparison, Llama-2-7B on one A100 80 GB; as quoted in this project's issue on techniques.
_PUBLISHED_THROUGHPUTS = (
    ("HF transformers", "hf-transformers", None, 52.0),
    ("HF transformers + FlashAttention 2", "hf-transformers", None, 78.0),
    ("vLLM", "vllm", None, 120.0),
    ("vLLM + AWQ", "vllm", "awq", 165.0),
    ("TensorRT-LLM", "tensorrt-llm", None, 180.0),
)
AGREES_WITHIN = 0.15
# tokens/s, Llama-2-7B on one A100, one stream: pytorch-labs/gpt-fast README, 2023-11; measured
COMPILED_16_BIT = 104.9
COUNTED_INSIDE = "LM head and sampling kernels; our prediction also counts them as part of the decode step"
NETWORK_NOTE = "client to engine and back within one site; a wide-area network adds its own latency"
CLAIM_CONTEXT_TOKENS = 512  # tokens; the claim does not say: assumed


def throughput_claims() -> tuple[Claim, ...]:
    """Return published single-stream tokens/s of Llama-2-7B on an A100; the bound is HBM bandwidth / step bytes."""
    return tuple(_throughput_claim(*row) for row in _PUBLISHED_THROUGHPUTS)


def _throughput_claim(name: str, engine: str, quantization: str | None, published: float) -> Claim:
    resolved = resolve("llama-2-7b", Pool(gpu="a100", engine=engine, quantization=quantization))
    shape = decode_shape(1, CLAIM_CONTEXT_TOKENS)
    cost = resolved.step_model.step_cost(shape)
    most = resolved.profile.hbm_bytes_per_s / cost.bytes
    ours = 1 / cost.seconds
    share = published / most
    peak = resolved.profile.hbm_bytes_per_s
    if share > 1:
        note = (
            f"impossible at 16 bit: {published:g} tokens/s would read {published * cost.bytes / 1e12:.2f} TB/s "
            f"of weights and KV, but the GPU has {peak / 1e12:.2f} TB/s; the run must have used quantization or "
            "speculation"
        )
    elif name.endswith("FlashAttention 2"):
        attention = _share(cost, lambda op: op.name.startswith("attention decode"))
        note = (
            f"attention is {attention:.0%} of a step's GPU time here, so faster attention cannot make it 1.5 times "
            "as fast; the gain has another cause (a static cache, compiled launches)"
        )
    elif abs(published / ours - 1) < AGREES_WITHIN:
        note = f"our prediction agrees within {AGREES_WITHIN:.0%}; {share:.0%} of HBM peak"
    else:
        waiting = _share(cost, lambda op: op.bound in ("launch", "host"))
        note = (
            f"{share:.0%} of HBM peak; our prediction is {ours / most:.0%}, with {waiting:.0%} of the step in launches "
            "and host time"
        )
        if quantization is None and published > COMPILED_16_BIT:
            note += f"; faster than the {COMPILED_16_BIT} tokens/s measured with compiled graphs (gpt-fast)"
        elif waiting > 0.5:
            note += "; a host with faster kernel launches than the measured one would explain it"
    return Claim(
        name=name, unit="tokens/s", published=published, ours=ours, bound=most, possible=share <= 1, note=note
    )


def _share(cost: StepCost, counted: Callable[[OpCost], bool]) -> float:
    return sum(op.seconds for op in cost.operators if counted(op)) / cost.seconds


def breakdown_claims() -> tuple[Claim, ...]:
    """Return a published time breakdown of one request as claims, one for each phase. The request has 512 prompt and
    256 output tokens, on Llama-2-70B in INT4 on one A100."""
    resolved = resolve("llama-2-70b", Pool(gpu="a100", quantization="awq", max_model_len=1024))
    profile, steps = resolved.profile, resolved.step_model
    prefill, decode = steps.step_cost(prefill_shape(1, 512)), steps.step_cost(decode_shape(1, 512 + 128))
    least_prefill_ms = prefill.flops / profile.dense_flops_per_s[profile.compute_type_16_bit] * 1e3
    least_step_ms = decode.bytes / profile.hbm_bytes_per_s * 1e3
    decode_ms = decode.seconds * 1e3
    sampling = sum(op.seconds for op in decode.operators if op.name in ("lm_head", "sampling"))
    network_ms = resolved.engine.server_latency_s(512) * 1e3
    return (
        _phase_claim(
            "prefill of 512 tokens",
            150,
            prefill.seconds * 1e3,
            least_prefill_ms,
            f"{prefill.flops / 1e12:.0f} TFLOP in 150 ms are {prefill.flops / 0.15 / 1e12:.0f} TFLOP/s; INT4 "
            f"weights are multiplied in 16 bit, at most {profile.dense_flops_per_s['bf16'] / 1e12:.0f} TFLOP/s",
        ),
        _phase_claim(
            "decode, per token",
            4,
            decode_ms,
            least_step_ms,
            f"every token reads {decode.bytes / 1e9:.0f} GB: in 4 ms that is {decode.bytes / 0.004 / 1e12:.1f} "
            f"TB/s, but the GPU has {profile.hbm_bytes_per_s / 1e12:.2f} TB/s",
        ),
        _phase_claim(
            "decode of 256 tokens", 1000, 255 * decode_ms, 255 * least_step_ms, "255 decode steps as above"
        ),
        _phase_claim("sampling of 256 tokens", 50, 256 * sampling * 1e3, None, COUNTED_INSIDE),
        _phase_claim("network", 50, network_ms, None, NETWORK_NOTE),
    )


def _phase_claim(name: str, published_ms: float, ours_ms: float, least_ms: float | None, note: str) -> Claim:
    possible = least_ms is None or published_ms >= least_ms
    return Claim(
        name=name,
        unit="ms",
        published=published_ms,
        ours=ours_ms,
        bound=least_ms,
        possible=possible,
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines(AnswerRecord):
    """Comparison of engines; `claims`: published speeds with their physical bounds, empty unless requested."""

    SCHEMA: ClassVar[str] = "capacity/engines/v1"

    gpu: str
    rows: tuple[EngineRow, ...]
    claims: tuple[Claim, ...]


@validate_arguments
@with_flags
def engine_table(
    gpu: str = "h100",
    *,
    claims: bool = False,
) -> Engines:
    """Return each engine's defaults on `gpu`, and the formats that it loads. Raises UnknownName."""
    published = (*throughput_claims(), *breakdown_claims()) if claims else ()
    return Engines(gpu=gpu, rows=engine_rows(gpu), claims=published)

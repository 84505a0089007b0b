"""Our Triton kernels without a GPU: their arithmetic in Triton's interpreter, and that they compile for every GPU."""

import os
import subprocess
import sys

import pytest
from long_forms import mostly_ci

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
numpy = pytest.importorskip("numpy")

from capacity_validate.session import FIRST_CAPABILITY  # noqa: E402


def major_and_minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


interpreted = pytest.mark.skipif(
    major_and_minor(triton.__version__) < (3, 7) and major_and_minor(numpy.__version__) >= (2, 4),
    reason="before 3.7 Triton's interpreter takes arrays of one element for scalars, which NumPy 2.4 refuses",
)

_ARITHMETIC = """
import torch
import capacity_validate.kernels.paged as paged
from capacity_validate.kernels.attention import reference_attention

worst = 0.0
kinds = (
    (8, 2, 64, 0, False, False), (8, 2, 64, 20, False, True), (4, 4, 32, 0, False, False), (8, 1, 64, 37, False, False),
    (28, 4, 128, 0, False, False), (6, 6, 96, 0, False, False), (8, 2, 64, 37, True, False), (8, 2, 64, 0, False, True),
)
for splits, some in ((1, kinds[:2]), (4, kinds)):
    paged._split_count = lambda *_: splits
    for heads, kv_heads, d, window, chunked, sunk in some:
        generator = torch.Generator().manual_seed(1)
        keys, values = (torch.randn(32, 16, kv_heads, d, generator=generator) for _ in range(2))
        contexts = [1, 74, 100]
        table = torch.randperm(32, generator=generator)[:21].view(3, 7)
        query = torch.randn(3, heads, d, generator=generator)
        sinks = torch.randn(heads, generator=generator) * 2 if sunk else None
        out = paged._triton_decode(
            query, keys, values, table, torch.tensor(contexts), 100, window, chunked=chunked, sinks=sinks
        )
        for row, context in enumerate(contexts):
            first = paged.first_visible_token(context, window or None, chunked=chunked)
            k, v = (c[table[row]].flatten(0, 1)[first:context].transpose(0, 1)[None] for c in (keys, values))
            expected = reference_attention(torch, query[row][None, :, None], k, v)[0, :, 0]
            if sinks is not None:
                scores = query[row].double().view(kv_heads, -1, d) @ k[0].double().transpose(1, 2) * d**-0.5
                lse = torch.logsumexp(scores, dim=-1).flatten()
                expected = expected * torch.sigmoid(lse - sinks.double())[:, None]
            worst = max(worst, float((out[row].double() - expected).norm() / expected.norm()))
print(worst)
"""

_FUSED = """
import torch
from capacity_validate.kernels import fused

generator = torch.Generator().manual_seed(1)
random = lambda *shape: torch.randn(*shape, generator=generator)
worst = 0.0
for hidden in (512, 320):
    x, residual, weight = random(5, hidden), random(5, hidden), random(hidden)
    pairs = zip(fused.fused_add_norm(x, residual, weight, 1e-6), fused.plain_add_norm(x, residual, weight, 1e-6))
    for ours, theirs in pairs:
        worst = max(worst, float((ours - theirs).abs().max()))
for heads, kv_heads, d in ((8, 2, 64), (4, 4, 96), (3, 1, 32)):
    rows, widths = 7, (heads * d, kv_heads * d, kv_heads * d)
    q, k, v = (p.reshape(rows, -1, d) for p in random(rows, sum(widths)).split(widths, dim=-1))
    tables = fused.rope_tables(d, 50, base=1e4, device="cpu", dtype=torch.float32)
    positions, slots = torch.randint(50, (rows,), generator=generator), torch.randperm(32, generator=generator)[:rows]
    caches = [torch.zeros(2, 16, kv_heads, d) for _ in range(4)]
    ours = fused.fused_rope_and_cache(q, k, v, positions, tables, *caches[:2], slots)
    theirs = fused.rope_and_cache(
        q, k, v, positions=positions, tables=tables, keys=caches[2], values=caches[3], slots=slots
    )
    for a, b in ((ours, theirs), (caches[0], caches[2]), (caches[1], caches[3])):
        worst = max(worst, float((a - b).abs().max()))
for columns in (64, 1500):
    both = random(3, 2 * columns)
    worst = max(worst, float((fused.fused_gated(both) - fused.silu_and_mul(both)).abs().max()))
print(worst)
"""

_MODEL = """
import torch

torch.Tensor.is_cuda = True  # the paths of a GPU, on tensors that the interpreter can read
from dataclasses import replace
from capacity_validate.kernels import paged
from capacity_validate.small_models import cut_layers, small_model
from capacity_validate.technique_checks import cache_difference
from capacity_validate.transformer import Transformer

paged.supports_flash = lambda *_: False
paged._split_count = lambda *_: 2
spec = replace(cut_layers(small_model("tiny-mqa"), 1), vocab_size=64)
print(cache_difference(Transformer(spec, device="cpu", num_blocks=32)))
"""

_COMPILATION = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from capacity_validate.failures import error_line
from capacity_validate.kernels import triton_kernels

half, cache, capability = sys.argv[1], sys.argv[2], int(sys.argv[3])
wide, ints = "*fp32", "*i64"
kernels = [
    (triton_kernels.add_norm, dict(x=half, residual=half, weight=half, out=half, total=half, epsilon="fp32"),
     dict(HIDDEN=4096, WIDTH=4096)),
    (triton_kernels.rope_and_cache, dict(q=half, k=half, v=half, out=half, keys=half, values=half, cosines=half,
     sines=half, positions=ints, slots=ints), dict(HEADS=32, KV_HEADS=8, D=128, HALF=64, WIDTH=64)),
    (triton_kernels.silu_and_multiply, dict(gate_up=half, out=half), dict(COLUMNS=14336, BLOCK=1024)),
    (triton_kernels.combine_slices, dict(partial=wide, summary=wide, out=half, sinks=half),
     dict(D=128, WIDTH=128, SPLITS=4, SPLITS_PADDED=4, HEADS=32, SINKS=True)),
    (triton_kernels.paged_decode, dict(query=half, keys=cache, values=cache, block_table=ints, contexts=ints,
     scale="fp32", partial=wide, summary=wide), dict(GROUP=4, GROUP_PADDED=16, D=128, WIDTH=128, BLOCK=16, TILE=64,
     SPLITS=4, HEADS=32, CHUNKED=False)),
]
done = 0
for kernel, kinds, sizes in kernels if half == cache else kernels[-1:]:
    names = kernel.arg_names
    signature = {n: "constexpr" if n in sizes else kinds.get(n, "i32") for n in names}
    try:
        source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in sizes.items()})
    except TypeError:  # Triton 3.2, of torch 2.6, wants names
        source = ASTSource(kernel, signature, sizes)
    options = {"num_warps": 4, "num_stages": 2} if kernel is triton_kernels.paged_decode else None
    try:
        compiled = compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        sys.exit(error_line(error))
    done += "visible .entry" in compiled.asm["ptx"]
print(done, compiled.asm["ptx"].count("mma"), compiled.metadata.shared)
"""


def python(code: str, *arguments: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"},
    )


def run(code: str, *arguments: str, interpret: bool) -> list[float]:
    done = python(code, *arguments, interpret=interpret)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def interpreted_errors() -> list[float]:
    """Of fused kernels, of paged decode and of a model, in one process: to import torch takes longer than each."""
    return run(_FUSED + _ARITHMETIC + _MODEL, interpret=True)


@interpreted
def test_fused_kernels_are_their_plain_forms_in_the_interpreter(interpreted_errors: list[float]) -> None:
    assert interpreted_errors[0] < 1e-5


@interpreted
def test_paged_decode_is_attention_in_the_interpreter(interpreted_errors: list[float]) -> None:
    assert interpreted_errors[1] < 1e-5


@interpreted
def test_a_whole_model_on_a_gpus_path_says_the_same_with_and_without_its_cache(
    interpreted_errors: list[float],
) -> None:
    """Fused kernels, paged decode and chunked prefill together, in a model of one layer."""
    assert interpreted_errors[2] < 1e-4


CAPABILITIES = (75, 80, 86, 89, 90, 100, 103, 120, 121)
SHARED_BYTES = 48 * 1024  # what every GPU gives a block without asking


def first_with(kernel: str) -> int:
    """The first capability with the instructions of a kind of case, by the harness's own table."""
    major, minor = FIRST_CAPABILITY[kernel][0]
    return 10 * major + minor


def half_on(capability: int) -> str:
    return "*bf16" if capability >= first_with("bf16") else "*fp16"


@pytest.mark.parametrize("capability", mostly_ci(CAPABILITIES, [90]))
def test_kernels_compile_for_each_gpu_and_paged_decode_with_matrix_instructions(
    capability: int,
) -> None:
    """Each kernel to machine code, with the 16-bit type that models have there; paged decode is the last."""
    arguments = (half_on(capability), half_on(capability), str(capability))
    compiled, matrix_instructions, shared_bytes = run(_COMPILATION, *arguments, interpret=False)
    assert compiled == 5
    # Triton has none for Turing, so products run there on the ordinary units
    assert (matrix_instructions > 0) == (capability >= 80)
    assert shared_bytes < SHARED_BYTES


@pytest.mark.ci
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_decode_over_an_fp8_cache_compiles_where_the_harness_runs_it(capability: int) -> None:
    done = python(_COMPILATION, half_on(capability), "*fp8e4nv", str(capability), interpret=False)
    assert (done.returncode == 0) == (capability >= first_with("fp8"))
    if done.returncode:
        assert "type fp8e4nv not supported in this architecture" in done.stderr
        assert len(done.stderr.splitlines()) == 1

"""Sampling of output tokens: the small kernels of every sampler, the top-k and top-p filter, and token penalties.

All of them run after the LM head, once for each sampled row, on a row of as many logits as the vocabulary has tokens.
Greedy requests, as load generators send them, need only the small kernels. The time of a filter depends on its kernel,
and so on the engine release (`EngineSpec.sampler`): sorting all logits can take longer than the model's own kernels.
"""

from typing import Literal, NamedTuple

from capacity.step.layers.builder import Builder
from capacity.step.operators import Operator
from capacity.step.row_counts import sampled_tokens

Sampler = Literal["sort", "triton", "flashinfer"]


class SamplingKernels(NamedTuple):
    """Kernels of a sampling step: their number, and the memory traffic per logit that takes as long as they do."""

    kernels: float
    bytes_per_logit: float


# Cast, temperature, softmax, argmax, gather; 16-bit logits read once, 32-bit logits written and read three times.
# Assumed, 2026-11-21
GREEDY = SamplingKernels(8.0, 16.0)
# vLLM pull request 40376 (2026-04), top-p over 131,072 logits of 64, 128 and 512 rows: PyTorch's sort 1.0, 2.3 and
# 6.2 ms, Triton 0.46, 0.52 and 2.0 ms, FlashInfer 0.11, 0.14 and 0.37 ms; pull request 51507 has 1.1, 4.2 and 6.2 ms
# for the sort. As bytes at the 4.1 TB/s that an H200 sustains; the GPU of these tables is not named, so that is
# assumed. The number of kernels stands for the time that does not depend on the rows.
FILTERS: dict[Sampler, SamplingKernels] = {
    "sort": SamplingKernels(12.0, 400.0),
    "triton": SamplingKernels(20.0, 110.0),
    "flashinfer": SamplingKernels(12.0, 20.0),
}
# Counts of prompt and output tokens (64-bit, written and read), two masks, three penalties of 32-bit logits: counted
# in vLLM 0.11.1, model_executor/layers/utils.py (apply_penalties), 2026-11-28
PENALTIES = SamplingKernels(16.0, 100.0)


def sampling_operator(build: Builder) -> Operator:
    """Build the kernels that sample one token from each row of logits."""
    setting = build.setting
    used = [GREEDY]
    if setting.top_p < 1 or setting.top_k > 0:
        used.append(FILTERS["flashinfer" if setting.engine is None else setting.engine.sampler])
    if setting.repetition_penalty != 1:
        used.append(PENALTIES)
    return build.traffic(
        "sampling",
        kernels=sum(each.kernels for each in used),
        bytes_per_row=sum(each.bytes_per_logit for each in used) * build.model.vocab_size,
        rows=sampled_tokens,
    )

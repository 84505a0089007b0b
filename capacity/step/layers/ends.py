"""What stands outside of the layers: embedding, LM head and sampling, and the messages between ranks and stages."""

import math
from collections.abc import Iterator

from capacity.step.collectives import Transfer
from capacity.step.layers.builder import Builder
from capacity.step.operators import ACTIVATION_BYTES, Operator, sampled_tokens

SAMPLING_KERNELS = 8.0  # cast, penalties, temperature, softmax, argmax, gather: assumed, 2026-11-21
# 16-bit logits read, 32-bit ones written and read three times: assumed, 2026-11-21
SAMPLING_BYTES_PER_LOGIT = 16.0


def embedding(build: Builder) -> Iterator[Operator]:
    """One look-up for each row, and what its model multiplies every row with outside of the layers."""
    yield build.traffic(
        "embedding", kernels=1.0, bytes_per_row=2 * build.model.hidden_size * ACTIVATION_BYTES
    )
    for part in build.model.outside:  # whole on every GPU
        if part.kind == "dense_ffn":
            yield from build.gemm("projections of inputs", part.kind, k=part.columns, n=part.rows)


def head(build: Builder) -> Iterator[Operator]:
    """LM head and sampling: rows are the sampled ones alone; a model that ends with its prompt has neither."""
    model, ranks = build.model, build.setting.tensor_parallel_size
    if model.task == "embed":
        return
    vocabulary = math.ceil(model.vocab_size / ranks)
    yield from build.gemm(
        "lm_head",
        "embedding" if model.tie_word_embeddings else "lm_head",
        k=model.hidden_size,
        n=vocabulary,
        rows=sampled_tokens,
    )
    if ranks > 1:
        yield Transfer(
            name="logits all-gather",
            kind="all_gather",
            count=1,
            ranks=ranks,
            bytes_per_row=(ranks - 1) * vocabulary * ACTIVATION_BYTES,
            link=build.setting.link_of(ranks),
            constants=build.lookup.nccl("all_gather"),
            rows=sampled_tokens,
        )
    yield build.traffic(
        "sampling",
        kernels=SAMPLING_KERNELS,
        bytes_per_row=SAMPLING_BYTES_PER_LOGIT * model.vocab_size,
        rows=sampled_tokens,
    )


def communication(build: Builder) -> Iterator[Operator]:
    """All-reduces of tensor parallelism, and sends from stage to stage."""
    setting, model = build.setting, build.model
    if setting.tensor_parallel_size > 1:
        yield build.all_reduce(
            "all-reduce",
            count=sum(
                (1 if setting.joint and group.is_moe else 2) * group.num_layers
                for group in model.layer_groups
            )
            + 1,  # for the vocabulary-parallel embedding
            values_per_row=model.hidden_size,
            before_norm=True,
        )
    if setting.pipeline_parallel_size > 1:
        gpus = setting.tensor_parallel_size * setting.data_parallel_size * setting.pipeline_parallel_size
        yield Transfer(
            name="pipeline send",
            kind="send_recv",
            count=setting.pipeline_parallel_size - 1,
            ranks=2,
            bytes_per_row=2 * model.hidden_size * ACTIVATION_BYTES,  # hidden state and residual
            link=setting.link_of(gpus),
            constants=build.lookup.nccl("send_recv"),
        )

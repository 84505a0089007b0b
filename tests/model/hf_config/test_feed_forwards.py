"""Which layers are dense and which route to experts."""

from __future__ import annotations

from hf_configs import LATENT, MOE, feed_forwards, read

from capacity.model import DenseFeedForward, LatentAttention, MoEFeedForward


def test_deepseek_is_dense_first_and_may_lack_the_query_rank() -> None:
    model = read(model_type="deepseek_v2", first_k_dense_replace=2, n_shared_experts=2, **LATENT)
    assert feed_forwards(model) == [DenseFeedForward] * 2 + [MoEFeedForward] * 2
    mixer = model.layer_groups[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert mixer.q_lora_rank is None
    ffn = model.layer_groups[1].feed_forward
    assert isinstance(ffn, MoEFeedForward)
    assert ffn.shared_intermediate_size == 64


def test_qwen_moe_steps_and_dense_layers() -> None:
    moe = {"model_type": "qwen3_moe", **MOE}
    assert feed_forwards(read(**moe)) == [MoEFeedForward] * 4
    assert feed_forwards(read(mlp_only_layers=[0], **moe))[0] is DenseFeedForward
    assert feed_forwards(read(decoder_sparse_step=2, **moe)) == [DenseFeedForward, MoEFeedForward] * 2

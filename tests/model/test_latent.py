"""Latent attention: one head in the cache, what ranks hold whole, and the indexer of its sparse form."""

from __future__ import annotations

from hf_configs import LATENT, read

from capacity.model import load_model


def test_what_tensor_parallelism_replicates_in_latent_attention() -> None:
    replicated = {p.name for p in load_model("deepseek-v3").parameter_parts() if p.sharding == "replicated"}
    assert {"self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate", "layernorms"} <= replicated
    assert not {"self_attn.q_b_proj", "self_attn.kv_b_proj", "self_attn.o_proj"} & replicated


def test_latent_cache_is_one_head_whatever_the_heads() -> None:
    model = load_model("deepseek-v3")
    (group, *_) = model.kv_cache_groups()
    assert group.num_kv_heads == 1
    assert model.kv_bytes_per_token() == 61 * (512 + 64) * 2
    assert model.kv_bytes_per_token("fp8") == 61 * 576
    assert not any(g.index for g in model.kv_cache_groups())


def test_sparse_attention_adds_the_indexers_keys_and_packs_fp8_its_own_way() -> None:
    model = load_model("deepseek-v3.2")
    indexer = sum(g.bytes_per_token for g in model.kv_cache_groups() if g.index)
    assert indexer == 61 * 132  # vLLM: 128 FP8 keys and one FP32 scale
    assert model.kv_bytes_per_token("fp8") == 61 * (576 + 132)
    assert model.kv_bytes_per_token("fp8_ds_mla") == 61 * (656 + 132)  # 512 + 16 + 128
    assert (
        model.kv_bytes_per_token()
        == sum(g.bytes_per_token for g in model.kv_cache_groups())
        == 61 * (1152 + 132)
    )


def test_a_layer_that_takes_anothers_choice_has_no_indexer_of_its_own() -> None:
    indexed = LATENT | {"q_lora_rank": 16, "index_n_heads": 2, "index_head_dim": 128, "index_topk": 64}
    whole = read(model_type="glm_moe_dsa", **indexed)
    some = read(model_type="glm_moe_dsa", indexer_types=["full", "shared"] * 2, **indexed)
    keys = [sum(g.bytes_per_token for g in model.kv_cache_groups() if g.index) for model in (whole, some)]
    assert keys == [4 * 132, 2 * 132]
    # queries 16 x 2 x 128, keys 64 x 128 with a norm's scale and bias, weights of heads
    assert whole.total_params - some.total_params == 2 * (16 * 256 + 64 * 128 + 2 * 128 + 64 * 2)

"""DeepSeek-V4's layers: compressed attention, and several residual streams (hyper-connections)."""

from capacity.base.fields import Fields
from capacity.model.compressed import CompressedAttention
from capacity.model.hf_config.family import Family, LayerExtras
from capacity.model.hf_config.mixers import HEADS, HIDDEN, sparse_indexer
from capacity.model.parameter_part import ParameterPart
from capacity.model.parts import Product, vector


def _compress_rate(text: Fields, layer: int) -> int:
    """Return the number of tokens per compressed entry in this layer; 0: attention only to a window."""
    ratios = text.items("compress_ratios")
    if ratios:
        if not layer < len(ratios):
            raise text.problem("compress_ratios", f"{len(ratios)} entries, and none for layer {layer}")
        rate = Fields({"rate": ratios[layer]}, text.origin, prefix=f"{text.prefix}compress_ratios.")
        return rate.count("rate", minimum=0)
    kinds = text.items("layer_types")
    if not kinds or not layer < len(kinds):
        raise text.problem("compress_ratios", "missing; it must be a list with an entry for each layer")
    if kinds[layer] == "sliding_attention":
        return 0
    rates = text.section("compress_rates")
    default = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}.get(kinds[layer])
    if default is None:
        raise text.problem("layer_types", f"{kinds[layer]!r} is not a kind of attention of this model")
    return default if rates is None else rates.count(str(kinds[layer]), default=default)


MAX_INDEXED_ENTRY_TOKENS = 16  # tokens per entry up to which an indexer selects entries: 4 in V4; not 128


def v4_mixer(text: Fields, _family: Family, layer: int) -> CompressedAttention:
    rate = _compress_rate(text, layer)
    return CompressedAttention(
        num_heads=text.count(*HEADS),
        head_dim=text.count("head_dim"),
        q_lora_rank=text.count("q_lora_rank"),
        window_tokens=text.count("sliding_window"),
        compress_rate=rate,
        output_groups=text.count("o_groups"),
        output_lora_rank=text.count("o_lora_rank"),
        indexer=sparse_indexer(text) if 0 < rate <= MAX_INDEXED_ENTRY_TOKENS else None,
    )


def v4_extras(text: Fields, _layer: int) -> LayerExtras:
    """Return the parts of a layer that mix the `hc_mult` residual streams, before attention and before the experts."""
    copies, hidden = text.count("hc_mult", default=4), text.count(*HIDDEN)
    rows = copies * (copies + 2)
    products = tuple(
        Product(name=f"{name}_hc.fn", kind="router", rows=rows, columns=copies * hidden, quantizable=False)
        for name in ("attn", "ffn")
    )
    return LayerExtras(products=products, vector_values=2 * (rows + 3))


def v4_outside(text: Fields) -> tuple[ParameterPart, ...]:
    copies, hidden = text.count("hc_mult", default=4), text.count(*HIDDEN)
    return (vector("hc_head", "norm", copies * copies * hidden + copies + 1, ()),)

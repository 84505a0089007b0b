"""Facts of vLLM's releases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from release_source import (
    EngineFacts,
    ReleaseFact,
    Source,
    Value,
    class_default,
    function,
    literal,
    names,
    nodes,
    release_order,
)

from capacity.deployment.engines.engine_spec import EngineSpec

RELEASES = (
    *("0.8.5.post1", "0.9.0", "0.9.1", "0.9.2", "0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2"),
    *("0.12.0", "0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0"),
    *("0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0"),
    *("0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
    "0.33.0",
)
CONFIG = ("vllm/config.py", "vllm/config/__init__.py", "vllm/config/cache.py", "vllm/config/scheduler.py")
CONFIG += ("vllm/config/vllm.py", "vllm/config/model.py")
ARGUMENTS, ENVIRONMENT = "vllm/engine/arg_utils.py", "vllm/envs.py"
MODEL_RULES = "vllm/model_executor/models/config.py"
LATENT_ATTENTION = "vllm/model_executor/layers/attention/mla_attention.py"
QUANTIZATION = "vllm/model_executor/layers/quantization/__init__.py"
CUDA, SAMPLER = "vllm/platforms/cuda.py", "vllm/v1/sample/ops/topk_topp_sampler.py"
ROUTER = "vllm/model_executor/layers/fused_moe/router/gate_linear.py"
KV_GROUPS = "vllm/v1/core/kv_cache_coordinator.py"
FILES = (
    *(*CONFIG, ARGUMENTS, ENVIRONMENT, MODEL_RULES),
    *(LATENT_ATTENTION, QUANTIZATION, CUDA, SAMPLER, KV_GROUPS, ROUTER),
)
KV_FORMATS = {"fp8": "fp8", "nvfp4": "nvfp4", "int8_per_token_head": "int8", "int4_per_token_head": "int4"}
WEIGHT_FORMATS = {
    "gguf": "gguf",
    "bitsandbytes": "bitsandbytes",
    "modelopt_fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "modelopt_mxfp8": "mxfp8",
}
PLUGINS = {
    "gguf": "0.24",
    "bitsandbytes": "0.28",
}  # formats that a plugin loads since then (PR 39612, PR 43529)
DATACENTRE_BLACKWELL = ("blackwell", "blackwell-ultra")
ANY_MAX_NUM_SEQS = 512  # a factor from which max_num_seqs does not limit the graphs
ANY_HEADS = 4096


def config(source: Source) -> ast.Module:
    """Return the modules of `vllm/config` as one."""
    return ast.Module(body=[node for path in CONFIG for node in source.tree(path).body], type_ignores=[])


def _environment(source: Source, name: str) -> bool | None:
    """Return the default of an environment variable; None if there is none, or no such variable."""
    for table in nodes(source.tree(ENVIRONMENT), ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                constants = [node.value for node in nodes(value, ast.Constant)]
                if "0" in constants or False in constants:
                    return False
                return True if "1" in constants or True in constants else None
    return None


def gpu_memory_utilization(source: Source) -> Value:
    return class_default(config(source), "CacheConfig", "gpu_memory_utilization")


def graphs_in_budget(source: Source) -> Value:
    return bool(_environment(source, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"))


def reserve_full_isl(source: Source) -> Value:
    return _since(source, "SchedulerConfig", "scheduler_reserve_full_isl", before=False)


def stream_interval(source: Source) -> Value:
    return _since(source, "SchedulerConfig", "stream_interval", before=1)


def _since(source: Source, owner: str, field: str, *, before: Value) -> Value:
    try:
        return class_default(config(source), owner, field)
    except KeyError:
        return before


def async_scheduling(source: Source) -> Value:
    """None means automatic: VllmConfig then sets True, unless an option does not support it."""
    default = _since(source, "SchedulerConfig", "async_scheduling", before=False)
    return default if default is not None else _assigns(config(source), "async_scheduling", True)


def _assigns(tree: ast.AST, attribute: str, value: Value) -> bool:
    return any(
        isinstance(node.targets[0], ast.Attribute)
        and node.targets[0].attr == attribute
        and isinstance(node.value, ast.Constant)
        and node.value.value is value
        for node in nodes(tree, ast.Assign)
    )


def window_aware_kv(source: Source) -> Value:
    """Return whether layers of different kinds have their own KV groups by default."""
    disabled = _since(source, "SchedulerConfig", "disable_hybrid_kv_cache_manager", before=True)
    classes = {node.name for node in nodes(source.tree(KV_GROUPS), ast.ClassDef)}
    return disabled is not True and "HybridKVCacheCoordinator" in classes


def caches_hybrid_prefixes(source: Source) -> Value:
    """Return whether models with recurrent states and attention use the prefix cache by default."""
    if not names(default := _hybrid_default(source)):
        return False  # HybridAttentionMambaModelConfig or VllmConfig turns it off
    if "is_hybrid" in names(default):
        return False
    supported = function(source.tree("vllm/config/model.py"), "is_prefix_caching_supported")
    for rule in nodes(supported, ast.If):
        if ast.unparse(rule.test) == "attn_type == 'hybrid'":
            answer = next(line for line in rule.body if isinstance(line, ast.Return))
            return bool(answer.value and ast.literal_eval(answer.value))
    raise KeyError("hybrid")


def _hybrid_default(source: Source) -> ast.AST:
    for node in nodes(source.tree(ARGUMENTS), ast.Assign):
        if ast.unparse(node.targets[0]) == "default_prefix_caching":
            return node.value
    return ast.Module([], [])


def limits(source: Source) -> Value:
    """Return the default limits by device memory, the largest first."""
    first = next(
        node for node in nodes(source.tree(ARGUMENTS), ast.If) if "device_memory" in names(node.test)
    )
    return list(_limit_rules(first))


def _limit_rules(rule: ast.If) -> Iterator[dict[str, Value]]:
    conditions = ast.unparse(rule.test)
    memory = re.search(r"device_memory >= (\d+) \* GiB_bytes", conditions)
    if memory is None:
        raise KeyError(f"a limit of {conditions}")
    excepted = [("a100", "ampere"), ("is_gb10", "gb10")]
    architectures = [architecture for word, architecture in excepted if word in conditions]
    yield {"min_memory_gib": int(memory[1]), "except": architectures, **_limit_values(rule.body)}
    if len(rule.orelse) == 1 and isinstance(rule.orelse[0], ast.If):
        yield from _limit_rules(rule.orelse[0])
    else:
        yield {"min_memory_gib": 0, "except": [], **_limit_values(rule.orelse)}


def _limit_values(body: Sequence[ast.stmt]) -> dict[str, Value]:
    values: dict[str, dict[str, int]] = {}
    for line in body:
        if not isinstance(line, ast.Assign):
            continue
        name = ast.unparse(line.targets[0])
        if isinstance(line.value, ast.Dict):
            pairs = zip(line.value.keys, line.value.values, strict=True)
            values[name] = {
                ast.unparse(key).rpartition(".")[2]: ast.literal_eval(value) for key, value in pairs if key
            }
        else:
            values[name] = dict.fromkeys(("OPENAI_API_SERVER", "LLM_CLASS"), ast.literal_eval(line.value))
    tokens, sequences = values["default_max_num_batched_tokens"], values["default_max_num_seqs"]
    return {
        "max_num_seqs": sequences["OPENAI_API_SERVER"],
        "max_num_batched_tokens": tokens["OPENAI_API_SERVER"],
        "max_num_batched_tokens_offline": tokens["LLM_CLASS"],
    }


def _graph_code(source: Source) -> ast.Module:
    tree = config(source)
    owner = next((node for node in nodes(tree, ast.ClassDef) if node.name == "SchedulerConfig"), None)
    parts = [function(tree, "_set_cudagraph_sizes"), *([owner] if owner else [])]
    return ast.Module(body=parts, type_ignores=[])  # type: ignore[arg-type]


def _graph_limit(source: Source) -> tuple[ast.Call | None, list[int]]:
    """Return the `min(max_num_seqs * 2, ...)`, and the largest sizes: on data-centre Blackwell, then elsewhere."""
    code = _graph_code(source)
    for call in nodes(code, ast.Call):
        if ast.unparse(call.func) == "min" and "* 2" in ast.unparse(call) and "max_num_seqs" in names(call):
            most = call.args[1]
            if isinstance(most, ast.Constant):
                return call, [int(str(most.value))] * 2
            named = next(
                node for node in nodes(code, ast.Assign) if ast.unparse(node.targets[0]) == ast.unparse(most)
            )
            choice = named.value
            if not isinstance(choice, ast.IfExp) or "is_device_capability_family(100)" not in ast.unparse(
                choice
            ):
                raise KeyError(f"the largest graph of {ast.unparse(choice)}")
            return call, [ast.literal_eval(choice.body), ast.literal_eval(choice.orelse)]
    fixed = [node.value for node in nodes(code, ast.Constant) if node.value in (512, 513)]
    if not fixed:
        raise KeyError("the largest graph")
    return None, [512, 512]


def graph_max_batch(source: Source) -> Value:
    return _graph_limit(source)[1][1]


def graph_max_batch_blackwell(source: Source) -> Value:
    return _graph_limit(source)[1][0]


def graph_batch_factor(source: Source) -> Value:
    """Return the graphs' largest size relative to max_num_seqs; null: it does not depend on max_num_seqs."""
    return None if _graph_limit(source)[0] is None else 2


def graphs_count_drafts(source: Source) -> Value:
    call = _graph_limit(source)[0]
    return call is not None and "decode_query_len" in names(call)


def graphs_fit_decodes(source: Source) -> Value:
    """Return whether the sizes include those of uniform decode batches: never, drafting or always."""
    assigned = [
        ast.unparse(node.value)
        for node in nodes(_graph_code(source), ast.Assign)
        if ast.unparse(node.targets[0]) == "uniform_decode_sizes"
    ]
    return "never" if not assigned else "always" if "[max_num_seqs]" in assigned else "drafting"


def graph_steps(source: Source) -> Value:
    """Return the first size and the step of each range of graph sizes."""
    ranges = [call for call in nodes(_graph_code(source), ast.Call) if ast.unparse(call.func) == "range"]
    constant = [
        call.args for call in ranges if len(call.args) == 3 and isinstance(call.args[0], ast.Constant)
    ]
    return sorted({(ast.literal_eval(start), ast.literal_eval(step)) for start, _, step in constant})


def gpt_oss_graphs(source: Source) -> Value:
    """Return the largest graph of gpt-oss; null: as other models."""
    for rule in nodes(source.tree(MODEL_RULES), ast.ClassDef):
        if rule.name == "GptOssForCausalLMConfig":
            for node in nodes(rule, ast.Assign):
                if ast.unparse(node.targets[0]).endswith(".max_cudagraph_capture_size"):
                    return ast.literal_eval(node.value)
            ranges = [call for call in nodes(rule, ast.Call) if ast.unparse(call.func) == "range"]
            first, stop, step = (ast.literal_eval(part) for part in ranges[-1].args)
            return max(range(first, stop, step))
    return None


def kv_cache_formats(source: Source) -> Value:
    known = literal(config(source), "CacheDType")
    return [ours for theirs, ours in KV_FORMATS.items() if theirs in known]


def weight_formats(source: Source) -> Value:
    known = literal(source.tree(QUANTIZATION), "QuantizationMethods")
    return sorted({ours for theirs, ours in WEIGHT_FORMATS.items() if theirs in known})


def sparse_kv_cache_dtype(source: Source) -> Value:
    """Return the KV cache format that `auto` becomes for models with a sparse indexer, by class."""
    found = {}
    for rule in nodes(source.tree(MODEL_RULES), ast.ClassDef):
        for choice in nodes(rule, ast.If):
            test = ast.unparse(choice.test)
            for line in choice.body if "cache_config.cache_dtype == 'auto'" in test else ():
                if (
                    isinstance(line, ast.Assign)
                    and ast.unparse(line.targets[0]) == "cache_config.cache_dtype"
                ):
                    places = " on Blackwell" if "is_device_capability_family(100)" in test else ""
                    found[rule.name + places] = "fp8" if "fp8" in ast.unparse(line.value) else "other"
    return found


def sparse_short_prompts_dense(source: Source) -> Value:
    return "use_dense_mha" in names(source.tree(LATENT_ATTENTION)) | {
        node.value for node in nodes(source.tree(LATENT_ATTENTION), ast.Constant)
    }


def plain_sparse_fp8_heads(source: Source) -> Value:
    """Return the most heads for which an fp8 cache of sparse latents is FlashInfer's on data-centre Blackwell."""
    for choice in nodes(function(source.tree(CUDA), "_get_backend_priorities"), ast.If):
        chosen = ast.unparse(ast.Module(choice.body, [])).partition("SPARSE")[0]
        if not chosen.startswith("sparse_backends") or not chosen.endswith("FLASHINFER_MLA_"):
            continue
        heads = re.search(r"num_heads <= (\d+)", ast.unparse(choice.test))
        return int(heads[1]) if heads else ANY_HEADS
    return 0


def splits_fp32_router(source: Source) -> Value:
    """Return whether 32-bit routers are split into products of bf16 by default, on data-centre Blackwell."""
    for node in nodes(source.tree(ROUTER), ast.Assign):
        if ast.unparse(node.targets[0]) == "self.allow_bf16x3_router_gemm":
            return "is_blackwell" in names(node.value) and "enable_bf16x3_router_gemm" not in names(
                node.value
            )
    return False


def sampler(source: Source) -> Value:
    """Return the kernels of the top-k and top-p filter where FlashInfer is not asked for."""
    if _environment(source, "VLLM_USE_FLASHINFER_SAMPLER"):
        return "flashinfer"
    return "triton" if "apply_top_k_top_p_triton" in names(source.tree(SAMPLER)) else "sort"


def model_runner_v2(source: Source) -> Value:
    """Return whether Model Runner V2 is the default for all models."""
    code = function(config(source), "use_v2_model_runner")
    return bool(names(code)) and "_is_default_v2_model_runner_model" not in names(code)


def fused_all_reduce(source: Source) -> Value:
    """Return whether the all-reduce is fused with the next norm at the default optimization level."""
    for node in nodes(config(source), ast.Assign):
        if ast.unparse(node.targets[0]) != "OPTIMIZATION_LEVEL_02":
            continue
        for table in nodes(node.value, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "fuse_allreduce_rms":
                    return not isinstance(value, ast.Constant) or bool(value.value)
    return False


def _entry_limits(engine: EngineSpec) -> Value:
    return [
        {
            "min_memory_gib": int(rule.min_memory_gib),
            "except": list(rule.except_architectures),
            "max_num_seqs": rule.max_num_seqs,
            "max_num_batched_tokens": rule.max_num_batched_tokens,
            "max_num_batched_tokens_offline": rule.max_num_batched_tokens_offline,
        }
        for rule in engine.limits
    ]


def _entry_graph_steps(engine: EngineSpec) -> Value:
    fine, coarse = engine.graph_fine_step, engine.graph_coarse_step
    steps = [(fine, fine), (engine.graph_coarse_from, coarse)]
    return steps if coarse != fine else steps[:1]


def _entry_weight_formats(engine: EngineSpec) -> list[str]:
    return sorted(set(WEIGHT_FORMATS.values()) & set(engine.weight_formats))


def _entry_sparse_formats(engine: EngineSpec) -> Value:
    """Return the entry's rule by the class of vLLM that states it."""
    formats = engine.sparse_kv_cache_dtype
    glm = {formats.get(f"glm_moe_dsa:{name}") for name in DATACENTRE_BLACKWELL}
    general = {formats.get(name) for name in ("hopper", *DATACENTRE_BLACKWELL)}
    rules = {"DeepseekV32ForCausalLM": general, "GlmMoeDsaForCausalLM on Blackwell": glm}
    return {name: next(iter(kept)) for name, kept in rules.items() if kept != {None}}


def _entry_plain_heads(engine: EngineSpec) -> Value:
    return max(engine.plain_sparse_fp8_heads.get(name, 0) for name in DATACENTRE_BLACKWELL)


FACTS: dict[str, ReleaseFact] = {
    "gpu_memory_utilization": ReleaseFact(
        gpu_memory_utilization, lambda engine: engine.gpu_memory_utilization, "gpu_memory_utilization"
    ),
    "graphs_in_budget": ReleaseFact(
        graphs_in_budget,
        lambda engine: engine.graphs_in_budget,
        "estimate of CUDA graphs subtracted from the KV budget",
    ),
    "limits": ReleaseFact(
        limits, _entry_limits, "max_num_seqs, max_num_batched_tokens (server, library) by memory of the GPU"
    ),
    "graph_max_batch": ReleaseFact(graph_max_batch, lambda engine: engine.graph_max_batch, "largest graph"),
    "graph_max_batch_blackwell": ReleaseFact(
        graph_max_batch_blackwell,
        lambda engine: engine.graph_max_batch_blackwell,
        "largest graph on data-centre Blackwell",
    ),
    "gpt_oss_graphs": ReleaseFact(
        gpt_oss_graphs,
        lambda engine: engine.graph_max_batch_of_models.get("gpt_oss"),
        "own largest graph of gpt-oss",
    ),
    "graph_batch_factor": ReleaseFact(
        graph_batch_factor,
        lambda engine: None if engine.graph_batch_factor >= ANY_MAX_NUM_SEQS else engine.graph_batch_factor,
        "limit of graphs relative to max_num_seqs",
    ),
    "graph_steps": ReleaseFact(graph_steps, _entry_graph_steps, "steps of graph sizes"),
    "graphs_count_drafts": ReleaseFact(
        graphs_count_drafts, lambda engine: engine.graphs_count_drafts, "largest graph counts draft tokens"
    ),
    "graphs_fit_decodes": ReleaseFact(
        graphs_fit_decodes, lambda engine: engine.graphs_fit_decodes, "graphs of whole decode batches"
    ),
    "async_scheduling": ReleaseFact(
        async_scheduling, lambda engine: engine.async_scheduling, "asynchronous scheduling"
    ),
    "reserve_full_isl": ReleaseFact(
        reserve_full_isl, lambda engine: engine.reserve_full_isl, "admission needs KV for the whole prompt"
    ),
    "stream_interval": ReleaseFact(stream_interval, lambda engine: engine.stream_interval, "stream interval"),
    "window_aware_kv": ReleaseFact(
        window_aware_kv, lambda engine: engine.window_aware_kv, "layers with a window keep only the window"
    ),
    "caches_hybrid_prefixes": ReleaseFact(
        caches_hybrid_prefixes,
        lambda engine: engine.caches_hybrid_prefixes,
        "prefix cache of models with recurrent states",
    ),
    "kv_cache_formats": ReleaseFact(
        kv_cache_formats,
        lambda engine: list(engine.kv_cache_formats),
        "KV cache formats in addition to 16 bit",
    ),
    "weight_formats": ReleaseFact(
        weight_formats,
        _entry_weight_formats,
        "weight formats without a plugin, in addition to 16 bit, FP8, INT8, AWQ and GPTQ",
        "loads GGUF and bitsandbytes also in later releases, with vllm-gguf-plugin and vllm-bnb-plugin",
    ),
    "sparse_kv_cache_dtype": ReleaseFact(
        sparse_kv_cache_dtype, _entry_sparse_formats, "models whose sparse latents are in FP8 by default"
    ),
    "plain_sparse_fp8_heads": ReleaseFact(
        plain_sparse_fp8_heads,
        _entry_plain_heads,
        "sparse latents in plain FP8 on Blackwell, up to this many heads per GPU",
    ),
    "sparse_short_prompts_dense": ReleaseFact(
        sparse_short_prompts_dense,
        lambda engine: engine.sparse_short_prompts_dense,
        "dense prefill of prompts shorter than the indexer's top-k",
    ),
    "splits_fp32_router": ReleaseFact(
        splits_fp32_router,
        lambda engine: set(DATACENTRE_BLACKWELL) <= set(engine.splits_fp32_router_on),
        "32-bit routers as three products of bf16 on Blackwell",
    ),
    "sampler": ReleaseFact(sampler, lambda engine: engine.sampler, "kernels of top-k and top-p"),
    "model_runner_v2": ReleaseFact(
        model_runner_v2, lambda engine: engine.penalty_host_s == 0, "Model Runner V2 for all models"
    ),
    "fused_all_reduce": ReleaseFact(
        fused_all_reduce,
        None,
        "all-reduce fused with the next norm, on Hopper and Blackwell",
        "its times are used on Blackwell since 0.15, where launches enabled it by hand",
    ),
}


def _with_plugins(release: str, engine: EngineSpec, facts: dict[str, Value]) -> dict[str, Value]:
    """Return the facts of an entry without the formats that a plugin loads."""
    apart = {name for name, since in PLUGINS.items() if release_order(release) >= release_order(since)}
    return facts | {"weight_formats": [name for name in _entry_weight_formats(engine) if name not in apart]}


VLLM = EngineFacts("vllm", "vllm", "vLLM", RELEASES, FILES, FACTS, _with_plugins)

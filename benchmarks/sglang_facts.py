"""Facts of SGLang's releases. Its own functions, interpreted for several deployments, give the memory defaults."""

from __future__ import annotations

import ast
import copy
import logging
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from release_source import EngineFacts, ReleaseFact, Source, Value, default_value, names, nodes
from source_interpreter import Interpreter

from capacity.deployment import Pool
from capacity.deployment.engines.engine_spec import EngineSpec
from capacity.pool.memory import memory_fraction
from capacity.pool.resolve import resolve
from capacity.simulator.schedulers import sglang as policy

RELEASES = (
    *("0.5.4", "0.5.5", "0.5.6", "0.5.7", "0.5.8", "0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13"),
    *("0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
ROOT = "sglang/srt"
FIELD_GROUPS = ("schedule", "serving", "memory", "model", "exec_")
ARGUMENTS = (f"{ROOT}/server_args.py", *(f"{ROOT}/arg_groups/fields/{name}.py" for name in FIELD_GROUPS))
SETTINGS = (*ARGUMENTS, f"{ROOT}/arg_groups/memory_hook.py", f"{ROOT}/arg_groups/cuda_graph_hook.py")
ADDER, SCHEDULER = f"{ROOT}/managers/schedule_policy.py", f"{ROOT}/managers/scheduler.py"
BATCH, CACHES, ENVIRONMENT = (
    f"{ROOT}/managers/schedule_batch.py",
    f"{ROOT}/mem_cache/registry.py",
    f"{ROOT}/environ.py",
)
MODELS, BUDGET = f"{ROOT}/configs/model_config.py", f"{ROOT}/mem_cache/prefill_budget.py"
WINDOW_CACHES = (
    f"{ROOT}/mem_cache/swa_radix_cache.py",
    f"{ROOT}/mem_cache/unified_cache/components/swa.py",
)
INDEXERS = tuple(f"{ROOT}/layers/attention/{name}/{name}_indexer.py" for name in ("nsa", "dsa"))
FILES = (*INDEXERS, *SETTINGS, ADDER, SCHEDULER, BATCH, CACHES, ENVIRONMENT, MODELS, BUDGET, *WINDOW_CACHES)
MODEL_TYPES = {  # our model types of the architectures that a release may give a pool of windows
    "GptOssForCausalLM": "gpt_oss",
    "Llama4ForConditionalGeneration": "llama4_text",
    "MiMoV2FlashForCausalLM": "mimo_v2_flash",
    "Step3p5ForCausalLM": "step3p5",
    "Step3p7ForConditionalGeneration": "step3p7",
    "Gemma4ForConditionalGeneration": "gemma4_text",
    "DeepseekV4ForCausalLM": "deepseek_v4",
}
MIB = 2**20
DEPLOYMENTS: dict[str, dict[str, Any]] = {  # for which the static fraction is compared
    "Llama-3.1-8B on RTX 4090": {"model": "llama-3.1-8b", "gpu": "rtx-4090"},
    "Llama-3.1-8B on L40S": {"model": "llama-3.1-8b", "gpu": "l40s"},
    "Llama-3.1-8B on H100": {"model": "llama-3.1-8b", "gpu": "h100"},
    "Llama-3.1-8B on B200": {"model": "llama-3.1-8b", "gpu": "b200"},
    "Llama-3.3-70B on 4 H100": {"model": "llama-3.3-70b", "gpu": "h100", "tensor_parallel_size": 4},
    "Llama-3.1-8B with EAGLE on H100": {"model": "llama-3.1-8b", "gpu": "h100", "speculator": "eagle"},
    "Gemma-3-27B on H100": {"model": "gemma-3-27b", "gpu": "h100"},
    "DeepSeek-R1 on 8 H200": {"model": "deepseek-r1", "gpu": "h200", "tensor_parallel_size": 8},
    "DeepSeek-R1 on 8 H200 with DP attention": {
        "model": "deepseek-r1",
        "gpu": "h200",
        "data_parallel_size": 8,
    },
}
SIZES_MIB = (16_000, 24_000, 46_000, 80_000, 140_000, 180_000)  # one in each range of memory
RANGES_GIB = (0, 20, 35, 60, 90, 160)


class Settings(SimpleNamespace):
    """Arguments of a server, with the methods that their resolution calls."""

    def _resolved(self) -> Settings:
        return self

    def get_model_config(self) -> SimpleNamespace:
        return self.model_config

    def use_mla_backend(self) -> bool:
        return self.latents

    def post_capture_kv_sizing_planned(self) -> bool:
        return False  # SGLANG_ENABLE_POST_CAPTURE_KV_SIZING is off by default

    @property
    def cuda_graph_max(self) -> int:
        """Return the largest decode batch with a graph; the field's name depends on the release."""
        return self.cuda_graph_max_bs or self.cuda_graph_config.decode.max_bs

    @property
    def cuda_graph_sizes(self) -> list[int]:
        return list(self.cuda_graph_bs or self.cuda_graph_config.decode.bs)


def resolve_settings(source: Source, memory_mib: float, **given: Any) -> Settings:
    """Return the settings after the release's `handle_gpu_memory_settings` for a GPU with `memory_mib`.

    Raises KeyError if the source has another form.
    """
    settings = _unresolved(given)
    for name in ("piecewise_cuda_graph_max_tokens", "speculative_num_draft_tokens"):
        if _argument(source, name) is not None:
            setattr(settings, name, _argument(source, name))
    wanted = (
        "memory_settings",
        "mem_fraction_for_vlm",
        "reserve_for",
        "batch_sizes",
        "piecewise_cuda_graph_tokens",
    )
    found = [
        node
        for path in SETTINGS
        for node in nodes(source.tree(path), ast.FunctionDef)
        if any(part in node.name for part in wanted)
    ]
    resolver = next((node for node in found if node.name.lstrip("_") == "handle_gpu_memory_settings"), None)
    if resolver is None:
        raise KeyError("handle_gpu_memory_settings")
    takes_memory = any(parameter.arg == "gpu_mem" for parameter in resolver.args.args)
    interpreter = Interpreter(found, _stand_ins(memory_mib))
    interpreter.call(resolver.name, settings, *([memory_mib] if takes_memory else []))
    return settings


def _unresolved(given: dict[str, Any]) -> Settings:
    captures = given.pop("prefill_graphs", True)
    tower = given.pop("tower", None)
    phases = {
        phase: SimpleNamespace(max_bs=None, bs=None, backend=backend)
        for phase, backend in (("decode", "full"), ("prefill", "full" if captures else "disabled"))
    }
    drafts = given.get("speculative_algorithm")
    config = SimpleNamespace(is_multimodal=tower is not None, hf_config=SimpleNamespace(vision_config=tower))
    absent = (
        *(
            "chunked_prefill_size",
            "cuda_graph_max_bs",
            "cuda_graph_bs",
            "mem_fraction_static",
            "max_running_requests",
        ),
        *(
            "max_total_tokens",
            "context_length",
            "piecewise_cuda_graph_max_tokens",
            "piecewise_cuda_graph_tokens",
        ),
        *("torch_compile_max_bs", "speculative_num_draft_tokens", "speculative_algorithm"),
    )
    off = ("enable_symm_mem", "language_only", "language_model_only", "disable_cuda_graph_padding")
    off += ("enable_piecewise_cuda_graph", "enable_dp_attention", "latents")
    values: dict[str, Any] = dict.fromkeys(absent) | dict.fromkeys(off, False)
    values |= {"device": "cuda", "tp_size": 1, "pp_size": 1, "dp_size": 1, "attn_dp_size": 1}
    values |= {"disaggregation_mode": "null", "model_path": "", "moe_a2a_backend": "none"}
    values |= {
        "max_prefill_tokens": 16384,
        "disable_piecewise_cuda_graph": not captures or drafts is not None,
    }
    values |= {"cuda_graph_config": SimpleNamespace(**phases), "model_config": config}
    return Settings(**values | given)


def _stand_ins(memory_mib: float) -> dict[str, Any]:
    """Return what the functions import: accessors of the settings, and flags of the platform (an NVIDIA GPU)."""

    def declare(settings: Settings, _place: str, **changes: Any) -> None:
        vars(settings).update(changes)

    def same(settings: Settings) -> Settings:
        return settings

    platforms = ("is_npu", "is_hip", "is_cpu", "is_xpu", "is_mps")
    return {
        **dict.fromkeys(platforms, lambda: False),
        "copy": copy,
        "logger": logging.getLogger("release_facts"),
        "declare_resolution": declare,
        "resolving_view": same,
        "resolved_view": same,
        "model_config_of": lambda settings: settings.model_config,
        "use_mla_backend": lambda settings: settings.latents,
        "post_capture_kv_sizing_planned": lambda _settings: False,
        "attn_dp_enabled_of": lambda settings: settings.enable_dp_attention,
        "get_device_memory_capacity": lambda _device: memory_mib,
        "get_platform": lambda: SimpleNamespace(is_xpu=False),
        "expand_multimodal_decode_graph_to_running_limit": lambda *_settings: None,
        "ModelConfig": SimpleNamespace(from_server_args=lambda settings: settings.model_config),
        "Backend": SimpleNamespace(DISABLED="disabled", BREAKABLE="breakable"),
        "Phase": SimpleNamespace(PREFILL="prefill", DECODE="decode"),
    }


def limits(source: Source) -> Value:
    """Return chunk and largest graph by memory, the largest first; equal neighbours are one rule."""
    rules: list[dict[str, Value]] = []
    for gib, mib in sorted(zip(RANGES_GIB, SIZES_MIB, strict=True), reverse=True):
        narrow, wide = resolve_settings(source, mib), resolve_settings(source, mib, tp_size=4)
        values: dict[str, Value] = {
            "max_num_batched_tokens": narrow.chunked_prefill_size,
            "max_graph_batch": narrow.cuda_graph_max,
            "max_graph_batch_tp4": wide.cuda_graph_max,
        }
        if rules and {**rules[-1], "min_memory_gib": 0} == {"min_memory_gib": 0, **values}:
            rules.pop()
        rules.append({"min_memory_gib": gib, **values})
    return rules


def _entry_limits(engine: EngineSpec) -> Value:
    return [
        {
            "min_memory_gib": int(rule.min_memory_gib),
            "max_num_batched_tokens": rule.max_num_batched_tokens,
            "max_graph_batch": rule.max_graph_batch,
            "max_graph_batch_tp4": rule.max_graph_batch_tp4,
        }
        for rule in engine.limits
    ]


def static_fractions(source: Source) -> Value:
    return {name: _static_fraction(source, **fields) for name, fields in DEPLOYMENTS.items()}


def _static_fraction(source: Source, model: str, gpu: str, **fields: Any) -> float:
    resolved = resolve(model, Pool(gpu=gpu, **fields))
    tower, ranks = resolved.model.vision, fields.get("data_parallel_size", 1)
    seen = (
        None
        if tower is None
        else SimpleNamespace(num_hidden_layers=tower.num_layers, hidden_size=tower.hidden_size)
    )
    settings = resolve_settings(
        source,
        resolved.profile.memory_engine_bytes / MIB,
        tp_size=fields.get("tensor_parallel_size", 1) * ranks,
        dp_size=ranks,
        attn_dp_size=ranks,
        enable_dp_attention=ranks > 1,
        latents=resolved.model.caches_latents,
        tower=seen,
        speculative_algorithm="EAGLE" if "speculator" in fields else None,
        prefill_graphs=tower is None and ranks == 1,
    )
    return round(float(settings.mem_fraction_static), 4)


def _entry_fractions(engine: EngineSpec) -> Value:
    found = {}
    for name, deployment in DEPLOYMENTS.items():
        fields = dict(deployment)
        resolved = resolve(fields.pop("model"), Pool(engine=engine.label, **fields))
        found[name] = round(memory_fraction(resolved), 4)
    return found


def graph_sizes(source: Source) -> Value:
    """Return the batch sizes up to 512 with a graph, without drafts, as ranges (first size, step)."""
    return _ranges(resolve_settings(source, 180_000).cuda_graph_sizes)


def _entry_graph_sizes(engine: EngineSpec) -> Value:
    return _ranges(list(engine.graph_batch_sizes(2048, "blackwell", most=512)))


def _ranges(sizes: list[int]) -> list[tuple[int, int]]:
    steps = [(low, high - low) for low, high in pairwise(sizes)]
    return [step for place, step in enumerate(steps) if not place or step[1] != steps[place - 1][1]]


def argument(name: str) -> Callable[[Source], Value]:
    """Return a reader of a server argument's default."""

    def read(source: Source) -> Value:
        found = _argument(source, name, missing=KeyError)
        if found is KeyError:
            raise KeyError(name)
        return found

    return read


def _argument(source: Source, name: str, missing: Value = None) -> Value:
    """Return the default of a server argument, whose class depends on the release; `missing` if there is none."""
    for path in ARGUMENTS:
        for line in nodes(source.tree(path), ast.AnnAssign):
            if isinstance(line.target, ast.Name) and line.target.id == name:
                return default_value(line.value)
    return missing


def environment(name: str) -> Callable[[Source], Value]:
    """Return a reader of an environment variable's default."""

    def read(source: Source) -> Value:
        for node in nodes(source.tree(ENVIRONMENT), ast.Assign):
            if ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Call):
                return ast.literal_eval(node.value.args[0])
        raise KeyError(name)

    return read


def prefix_cache(source: Source) -> Value:
    """Return the class of the prefix cache of models without windows and recurrent states."""
    last = _function(source, CACHES, "default_radix_cache_factory")
    if last is None:  # the scheduler creates the cache itself
        return "RadixCache"
    answer = last.body[-1]
    if not isinstance(answer, ast.Return) or not isinstance(answer.value, ast.Call):
        raise KeyError("default_radix_cache_factory")
    called = ast.unparse(answer.value.func)
    return "UnifiedRadixCache" if "unified" in called else called


def _function(source: Source, path: str, name: str) -> ast.FunctionDef | None:
    return next((node for node in nodes(source.tree(path), ast.FunctionDef) if node.name == name), None)


def _text(source: Source, path: str, *functions: str) -> str:
    found = [_function(source, path, name) for name in functions]
    if not any(found):
        raise KeyError(functions[0])
    return "\n".join(ast.unparse(node) for node in found if node is not None)


def reserves_page(source: Source) -> Value:
    text = _text(source, ADDER, "_update_prefill_budget")
    return "page_overhead" in text or "per_req_token_overhead" in text


def admits_with_page(source: Source) -> Value:
    first = next(
        line for line in _text(source, ADDER, "add_one_req").splitlines() if "total_tokens =" in line
    )
    return "self.page_size" in first or "per_req_token_overhead" in first


def chunks_past_prefill_limit(source: Source) -> Value:
    text = _text(source, ADDER, "add_one_req", "_select_prefill_admission")
    tests = [line for line in text.splitlines() if ">= self.rem_input_tokens" in line]
    if not tests:
        raise KeyError("rem_input_tokens")
    return all("self.rem_chunk_tokens is None" in line for line in tests)


def reserves_ignored_eos(source: Source) -> Value:
    return "ignore_eos" in _text(source, ADDER, "_get_running_request_total_token_offset")


def spent_step_ends(source: Source) -> Value:
    text = _text(source, SCHEDULER, "_get_new_batch_prefill_raw", "get_new_batch_prefill")
    return "adder.budget_state()" in text


def retries_windowed_prompts(source: Source) -> Value:
    text = _text(source, SCHEDULER, "_get_new_batch_prefill_raw", "get_new_batch_prefill")
    return (
        "self.is_hybrid_swa:\n" in text
        and "batch_is_full = False" in text.partition("is_hybrid_swa:")[2][:80]
    )


def retraction_order(source: Source) -> Value:
    text = _text(source, BATCH, "retract_decode", "_get_decode_retraction_order")
    if "len(" not in text or "output_ids" not in text or "origin_input_ids" not in text:
        raise KeyError("retract_decode")
    return "fewest outputs, then longest prompt"


def excludes_finishing(source: Source) -> Value:
    """Return whether a decode step leaves out requests that end with the step in flight."""
    return "finishing_reqs" in names(
        _function(source, SCHEDULER, "update_running_batch") or ast.Module([], [])
    )


def window_pool_models(source: Source) -> Value:
    """Return our model types whose layers with a window have a pool of their own.

    The first test of the older function names the models without a further condition. Before 0.5.8, the other models
    with windows disabled the pool (`disable_hybrid_swa_memory`).
    """
    found: ast.AST | None = _function(source, MODELS, "is_hybrid_swa_model")
    if found is None:
        older = _function(source, MODELS, "is_hybrid_model")
        first = None if older is None else older.body[0]
        if not isinstance(first, ast.If):
            raise KeyError("is_hybrid_swa_model")
        found = first.test
    used = names(found)
    constants = [
        line.value
        for line in source.tree(MODELS).body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) in used
    ]
    strings = {node.value for tree in (found, *constants) for node in nodes(tree, ast.Constant)}
    return sorted(own for name, own in MODEL_TYPES.items() if name in strings)


def _entry_window_pool_models(engine: EngineSpec) -> Value:
    return sorted(name for name, share in engine.window_pools.items() if share and ":" not in name)


def budgets_windows_apart(source: Source) -> Value:
    return "min(" not in _text(source, ADDER, "rem_total_tokens")


def locks_windows_only(source: Source) -> Value:
    return any(_function(source, path, "_maybe_split_leaf_for_swa_lock") for path in WINDOW_CACHES)


def frees_windows_by_128(source: Source) -> Value:
    try:
        return environment("SGLANG_SWA_EVICTION_INTERVAL")(source) == 128
    except KeyError:
        return False


def budgets_window_outputs(source: Source) -> Value:
    if _function(source, BUDGET, "estimate_swa_kv_tokens"):
        return True
    budget = _function(source, ADDER, "_swa_budget_for_req")
    return budget is not None and "max_new_tokens" in names(budget)


def separate_indexer(source: Source) -> Value:
    """Return where the keys and the head gates of the sparse indexer are two matrix multiplications.

    One needs CUDA and an interleaved rotary embedding, which DeepSeek-V3.2 does not have.
    """
    tests = [
        names(line.value)
        for path in INDEXERS
        for line in nodes(source.tree(path), ast.Assign)
        if ast.unparse(line.targets[0]) == "self.use_dsa_indexer_fusion"
    ]
    if not tests:
        return ["any"]
    if not {"_is_cuda", "is_neox_style"} <= tests[0]:
        raise KeyError("use_dsa_indexer_fusion")
    return ["deepseek_v32", "rocm"]


def parallel_indexer_rows(source: Source) -> Value:
    """Return the most rows of a decode graph on CUDA in which the indexer's keys have a stream of their own."""
    for path in INDEXERS:
        for line in nodes(source.tree(path), ast.Assign):
            if ast.unparse(line.targets[0]) == "DUAL_STREAM_TOKEN_THRESHOLD" and isinstance(
                line.value, ast.IfExp
            ):
                return ast.literal_eval(line.value.body)
    raise KeyError("DUAL_STREAM_TOKEN_THRESHOLD")


def _rule(name: str, read: Callable[[Source], Value], label: str) -> ReleaseFact:
    return ReleaseFact(read, lambda engine: name not in engine.missing_scheduling_rules, label)


FACTS: dict[str, ReleaseFact] = {
    "limits": ReleaseFact(
        limits, _entry_limits, "chunked_prefill_size, largest graph (at TP 4 and more) by memory of the GPU"
    ),
    "static_fractions": ReleaseFact(static_fractions, _entry_fractions, "default mem_fraction_static"),
    "graph_sizes": ReleaseFact(graph_sizes, _entry_graph_sizes, "steps of graph sizes without drafts"),
    "page_size": ReleaseFact(
        argument("page_size"),
        lambda engine: None if engine.block_size == 1 else engine.block_size,
        "page_size (none: 1, or what the attention backend needs)",
    ),
    "max_running_requests": ReleaseFact(
        argument("max_running_requests"),
        None,
        "max_running_requests",
        "2,048, the smallest default (to 4,096 by KV size)",
    ),
    "max_prefill_tokens": ReleaseFact(
        argument("max_prefill_tokens"), lambda _: policy.MAX_PREFILL_TOKENS, "max_prefill_tokens"
    ),
    "schedule_policy": ReleaseFact(argument("schedule_policy"), lambda _: "fcfs", "schedule_policy"),
    "schedule_conservativeness": ReleaseFact(
        argument("schedule_conservativeness"), lambda _: 1.0, "schedule_conservativeness"
    ),
    "initial_ratio": ReleaseFact(
        environment("SGLANG_INIT_NEW_TOKEN_RATIO"),
        lambda _: policy.INITIAL_RATIO,
        "new_token_ratio at the start",
    ),
    "least_ratio": ReleaseFact(
        environment("SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR"),
        lambda _: policy.MIN_RATIO,
        "least new_token_ratio, relative to it",
    ),
    "decay_steps": ReleaseFact(
        environment("SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS"),
        lambda _: policy.DECAY_STEPS,
        "decode steps between the two",
    ),
    "retract_steps": ReleaseFact(
        environment("SGLANG_RETRACT_DECODE_STEPS"),
        lambda _: policy.RETRACT_DECODE_STEPS,
        "expected further tokens of a request after a retraction",
    ),
    "retraction_order": ReleaseFact(
        retraction_order, lambda _: "fewest outputs, then longest prompt", "retracted first"
    ),
    "enable_mixed_chunk": ReleaseFact(
        argument("enable_mixed_chunk"),
        lambda engine: engine.mixes_prefill_with_decode,
        "prefill and decode in one step",
    ),
    "disable_overlap_schedule": ReleaseFact(
        argument("disable_overlap_schedule"),
        lambda engine: not engine.async_scheduling,
        "overlap scheduler off",
    ),
    "disable_radix_cache": ReleaseFact(
        argument("disable_radix_cache"), lambda engine: not engine.prefix_caching, "prefix cache off"
    ),
    "prefix_cache": ReleaseFact(
        prefix_cache, None, "class of the prefix cache", "evicts whole pages, the least recently freed first"
    ),
    "stream_interval": ReleaseFact(
        argument("stream_interval"), lambda engine: engine.stream_interval, "stream interval"
    ),
    "swa_full_tokens_ratio": ReleaseFact(
        argument("swa_full_tokens_ratio"),
        lambda engine: max(engine.window_pools.values(), default=0.8),
        "KV of layers with a window, relative to full ones, in a pool of their own (none: 0.8 or the model's)",
    ),
    "window_pool_models": ReleaseFact(
        window_pool_models,
        _entry_window_pool_models,
        "models with such a pool; others keep all tokens in all layers",
        "equal, but also with drafts, hierarchical cache, or a pool sized by max_running_requests",
    ),
    "budgets_windows_apart": _rule(
        "budgets_windows_apart", budgets_windows_apart, "this pool has a budget of its own"
    ),
    "locks_windows_only": _rule(
        "locks_windows_only",
        locks_windows_only,
        "a running request keeps only the window of its prompt there",
    ),
    "frees_windows_by_128": _rule(
        "frees_windows_by_128", frees_windows_by_128, "tokens behind the window are freed every 128 tokens"
    ),
    "budgets_window_outputs": _rule(
        "budgets_window_outputs", budgets_window_outputs, "its budget counts outputs, up to the window"
    ),
    "mamba_full_memory_ratio": ReleaseFact(
        argument("mamba_full_memory_ratio"),
        lambda engine: engine.state_memory_ratio,
        "memory of recurrent states, relative to KV (none: 0.9 or the model's)",
    ),
    "separate_indexer": ReleaseFact(
        separate_indexer,
        lambda engine: list(engine.separate_products.get("indexer k", ())),
        "keys and gates of the sparse indexer are two matrix multiplications",
    ),
    "parallel_indexer_rows": ReleaseFact(
        parallel_indexer_rows,
        lambda engine: engine.parallel_indexer_rows,
        "its keys are computed in parallel with its queries on CUDA, up to this many rows",
    ),
    "reserves_page": _rule("reserves_page", reserves_page, "a request that starts reserves one more page"),
    "admits_with_page": _rule(
        "admits_with_page", admits_with_page, "a request starts only if one more page fits"
    ),
    "chunks_past_prefill_limit": _rule(
        "chunks_past_prefill_limit", chunks_past_prefill_limit, "chunked prefill ignores max_prefill_tokens"
    ),
    "reserves_ignored_eos": _rule(
        "reserves_ignored_eos", reserves_ignored_eos, "ignore_eos reserves the whole output"
    ),
    "spent_step_ends": _rule(
        "spent_step_ends", spent_step_ends, "a step whose budget one last chunk spends tries no other request"
    ),
    "retries_windowed_prompts": _rule(
        "retries_windowed_prompts",
        retries_windowed_prompts,
        "models with windows try to start a request in every step",
    ),
    "excludes_finishing": ReleaseFact(
        excludes_finishing,
        None,
        "decode steps leave out requests that end in the step in flight",
        "always left out",
    ),
}


def _adapt(release: str, engine: EngineSpec, facts: dict[str, Value]) -> dict[str, Value]:  # noqa: ARG001
    """Return the facts of an entry; a default that later releases choose per model is none there."""
    if tuple(int(part) for part in release.split(".")) >= (0, 5, 20):
        facts = facts | {"mamba_full_memory_ratio": None, "swa_full_tokens_ratio": None}
    return facts


SGLANG = EngineFacts("sglang", "sglang", "SGLang", RELEASES, FILES, FACTS, _adapt)

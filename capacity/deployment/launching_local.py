"""The commands that launch the other engines, from a pool: TGI, llama.cpp, Ollama, transformers, DeepSpeed-MII.

Flags are those of TGI 3 (docs/source/reference/launcher.md), llama.cpp (tools/server/README.md), Ollama 0.12
(envconfig, Modelfile), transformers 5 and DeepSpeed-MII (mii.serve), 2026-11. Where an engine's own default is not
what was simulated, the limit is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from capacity.deployment.engines import LimitRule, find_engine
from capacity.deployment.launch import PORT, Launch, above, checkpoint_notes, flag_words
from capacity.deployment.pool import Pool
from capacity.deployment.releases import release_of

DTYPES = {"half": "float16", "float": "float32"}
TGI_FORMATS = {  # made while loading
    "fp8": "fp8",
    "llm-int8": "bitsandbytes",
    "nf4": "bitsandbytes-nf4",
    "int8-weight-only": "eetq",
}
TGI_CHECKPOINTS = {
    "awq": "awq",
    "gptq": "gptq",
    "int4": "awq",
    "w4a16": "gptq",
}  # of checkpoints in that format
WAITING = 100_000  # requests that may wait: by default TGI turns away all beyond 128, Ollama all beyond 512
GGML_CACHES = {"int8": "q8_0", "int4": "q4_0"}
GGML_16_BIT = "f16"
GGML_ALL_LAYERS = 999


_GGUF_KIND = re.compile(r"(?:^|[-._/])(i?q\d_\w+?|mxfp4)(?=$|[-.])", re.IGNORECASE)


def gguf_file(pool: Pool) -> str:
    """A GGUF file's name in the usual form, which says its format."""
    kind = "F16" if pool.quantization is None else pool.quantization.removeprefix("gguf-").upper()
    return f"MODEL-{kind}.gguf"


def format_of_gguf(name: str) -> str | None:
    """The weight format that a GGUF file's name, or an Ollama tag, says; None: 16 bit, or nothing."""
    found = _GGUF_KIND.search(name)
    kind = None if found is None else found[1].lower()
    return kind if kind in (None, "mxfp4") else f"gguf-{kind}"


def _defaults(pool: Pool) -> LimitRule:
    return find_engine(pool.engine).limits[0]


def _length(pool: Pool) -> int | None:
    """Tokens of the longest request; None where the engine is to find them."""
    return pool.max_model_len if isinstance(pool.max_model_len, int) else None


def _dtype(pool: Pool) -> str | None:
    return None if pool.dtype == "auto" else DTYPES.get(pool.dtype, pool.dtype)


def _tgi(model_id: str, pool: Pool) -> Launch:
    length = _length(pool)
    cache = {"fp8": "fp8_e4m3fn"}.get(pool.kv_cache_dtype, pool.kv_cache_dtype)
    flags = [
        ("--model-id", model_id),
        ("--num-shard", pool.tensor_parallel_size),
        (
            "--quantize",
            TGI_FORMATS.get(pool.quantization or "", TGI_CHECKPOINTS.get(pool.quantization or "")),
        ),
        ("--dtype", _dtype(pool)),
        ("--kv-cache-dtype", None if cache == "auto" else cache),
        ("--max-input-tokens", None if length is None else length - 1),
        ("--max-total-tokens", length),
        ("--max-batch-prefill-tokens", pool.max_num_batched_tokens),
        ("--max-batch-size", pool.max_num_seqs),
        ("--max-concurrent-requests", WAITING),
        ("--cuda-memory-fraction", pool.gpu_memory_utilization),
        ("--cuda-graphs", "0" if pool.enforce_eager else None),
        ("--speculate", pool.num_speculative_tokens if pool.speculator in ("ngram", "medusa") else None),
        ("--port", PORT),
    ]
    switches = (
        ("USE_PREFIX_CACHING", pool.enable_prefix_caching),
        ("PREFILL_CHUNKING", pool.enable_chunked_prefill),
    )
    settings = [f"{name}={int(value)}" for name, value in switches if value is not None]
    words = (*(("env", *settings) if settings else ()), "text-generation-launcher", *flag_words(flags))
    image = release_of(pool.engine).image
    docker = f"in a container: docker run --gpus all --shm-size 1g -p {PORT}:{PORT} {image}, then the flags"
    return Launch(words=words, notes=(*checkpoint_notes(pool, TGI_FORMATS), docker))


def _llama_cpp(model_id: str, pool: Pool) -> Launch:
    """`--ctx-size` is of all slots together."""
    slots, length = pool.max_num_seqs or _defaults(pool).max_num_seqs, _length(pool)
    split = "row" if pool.tensor_parallel_size > 1 else "layer" if pool.pipeline_parallel_size > 1 else "none"
    cache = GGML_CACHES.get(pool.kv_cache_dtype)
    flags = [
        ("--model", gguf_file(pool)),
        ("--alias", model_id),
        ("--n-gpu-layers", GGML_ALL_LAYERS if pool.n_gpu_layers is None else pool.n_gpu_layers),
        ("--split-mode", split),
        ("--tensor-split", None if split == "none" else ",".join("1" * pool.num_gpus)),
        ("--parallel", slots),
        ("--ctx-size", None if length is None else length * slots),
        ("--batch-size", pool.max_num_batched_tokens or _defaults(pool).max_num_batched_tokens),
        ("--cache-type-k", cache or GGML_16_BIT),
        ("--cache-type-v", cache or GGML_16_BIT),
        ("--flash-attn", None if cache is None else "on"),
        ("--no-cache-prompt", pool.enable_prefix_caching is False),
        ("--host", "0.0.0.0"),
        ("--port", PORT),
    ]
    return Launch(words=("llama-server", *flag_words(flags)), notes=(_gguf_note(pool),))


def _gguf_note(pool: Pool) -> str:
    return f"{gguf_file(pool)}: put the model's GGUF file in that format in its place"


def _ollama(model_id: str, pool: Pool) -> Launch:
    """The server is told by its environment, and of the model by a Modelfile."""
    cache = GGML_CACHES.get(pool.kv_cache_dtype)
    settings = [
        ("OLLAMA_HOST", f"0.0.0.0:{PORT}"),
        ("OLLAMA_NUM_PARALLEL", pool.max_num_seqs or _defaults(pool).max_num_seqs),
        ("OLLAMA_KEEP_ALIVE", -1),
        ("OLLAMA_MAX_QUEUE", WAITING),
        ("OLLAMA_SCHED_SPREAD", 1 if pool.num_gpus > 1 else None),
        ("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(pool.num_gpus))) if pool.num_gpus > 1 else None),
        ("OLLAMA_KV_CACHE_TYPE", cache or GGML_16_BIT),
        ("OLLAMA_FLASH_ATTENTION", None if cache is None else 1),
    ]
    budget = pool.max_num_batched_tokens or _defaults(pool).max_num_batched_tokens
    model = [f"# model {model_id}", f"FROM ./{gguf_file(pool)}", f"PARAMETER num_batch {budget}"]
    if (length := _length(pool)) is not None:
        model.append(f"PARAMETER num_ctx {length}")
    if pool.n_gpu_layers is not None:
        model.append(f"PARAMETER num_gpu {pool.n_gpu_layers}")
    name = shlex.quote(model_id.rpartition("/")[2].lower())
    script = [
        "#!/bin/sh",
        *(f"export {key}={value}" for key, value in settings if value is not None),
        "ollama serve &",
        "until ollama list > /dev/null 2>&1; do sleep 1; done",
        f'ollama create {name} -f "$(dirname "$0")/Modelfile"',
        "wait",
    ]
    return Launch(
        words=("sh", "serve-ollama.sh"),
        notes=(f"{_gguf_note(pool)}, beside the Modelfile",),
        files=(("Modelfile", _text(model)), ("serve-ollama.sh", _text(script))),
    )


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


GENERATE = """import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL, BATCH, NEW_TOKENS = {model!r}, {batch}, 256

tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype="{dtype}", {where})
prompts = sys.stdin.read().splitlines()
for first in range(0, len(prompts), BATCH):
    batch = tokenizer(prompts[first : first + BATCH], padding=True, return_tensors="pt").to(model.device)
    with torch.inference_mode():
        answers = model.generate(**batch, max_new_tokens=NEW_TOKENS)
    for answer in tokenizer.batch_decode(answers[:, batch["input_ids"].shape[1] :], skip_special_tokens=True):
        print(repr(answer), flush=True)
"""


def _transformers(model_id: str, pool: Pool) -> Launch:
    """No server: a program that answers the lines of its input in batches."""
    tensor = pool.tensor_parallel_size
    text = GENERATE.format(
        model=model_id,
        batch=pool.max_num_seqs or _defaults(pool).max_num_seqs,
        dtype=_dtype(pool) or "auto",
        where='tp_plan="auto"' if tensor > 1 else 'device_map="auto"',
    )
    program = ("torchrun", "--nproc-per-node", str(tensor)) if tensor > 1 else ("python",)
    note = "transformers is a library: generate.py answers the lines of its standard input, a batch at a time"
    notes = (note, *checkpoint_notes(pool, ()))
    return Launch(words=(*program, "generate.py"), notes=notes, files=(("generate.py", text),))


def _mii(model_id: str, pool: Pool) -> Launch:
    settings = {
        "tensor_parallel": above(pool.tensor_parallel_size, 1),
        "max_length": _length(pool),
        "enable_restful_api": True,
        "restful_api_port": PORT,
    }
    given = [f"    {name}={value!r}," for name, value in settings.items() if value is not None]
    text = _text(
        ["import mii", "", "mii.serve(", f"    {model_id!r},", "    deployment_name='model',", *given, ")"]
    )
    note = f"answers at http://localhost:{PORT}/mii/model; mii.client('model').terminate_server() ends it"
    notes = (note, *checkpoint_notes(pool, ()))
    return Launch(words=("python", "serve_mii.py"), notes=notes, files=(("serve_mii.py", text),))


LOCAL_MAKERS: dict[str, Callable[[str, Pool], Launch]] = {
    "tgi": _tgi,
    "llama.cpp": _llama_cpp,
    "ollama": _ollama,
    "hf-transformers": _transformers,
    "deepspeed-mii": _mii,
}

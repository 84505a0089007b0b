"""Write the launch command of a pool from the engine's flag table; settings without a flag become notes.

Only settings that differ from the pool's defaults are written. For llama.cpp and Ollama, limits that differ from the
engine's defaults are written too. transformers 5 and DeepSpeed-MII (mii.serve), 2026-11, are launched as Python
programs.
"""

import shlex
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

from capacity.base.errors import InvalidInput
from capacity.deployment.command_words import PORT, Launch, flag_words
from capacity.deployment.drafts import find_draft_checkpoint, supports_drafting
from capacity.deployment.engines import find_engine
from capacity.deployment.flag_table import FLOATS, find_published_release, flag_table
from capacity.deployment.launch_dialects import (
    DIALECTS,
    DRAFT,
    METHODS_WITH_CHECKPOINT,
    drafting_method,
    engine_method_names,
    gguf_file,
    launch_values,
)
from capacity.deployment.pool import Pool

GENERATE = Path(__file__).with_name("generate_answers.txt")  # a transformers program
# no OpenAI API, so there is no router or benchmark for them
WITHOUT_API = ("hf-transformers", "deepspeed-mii")
# engines for clusters: a plan for one of them can be launched by any of them
ENGINES = ("vllm", "sglang", "tensorrt-llm")


def is_launched(engine: str) -> bool:
    """Return whether the engine can be launched; baselines can only be simulated. Raises UnknownName."""
    return find_engine(engine).name in LAUNCH_WRITERS


def launch_command(engine: str, model_id: str, pool: Pool) -> Launch:
    """Return the launch command of one replica: an engine in the pool's role (prefill, decode or both).

    Raises UnknownName, and InvalidInput for a baseline.
    """
    name = engine_name(engine)
    known = find_draft_checkpoint(model_id, drafting_method(pool))
    if pool.draft is None and known is not None and known.checkpoint is not None:
        pool = pool.model_copy(update={"draft": known.checkpoint})
    launch = LAUNCH_WRITERS[name](model_id, pool)
    notes = launch.notes
    if pool.kv_eviction is not None:
        notes += (f"{name} has no flag for --kv-eviction {pool.kv_eviction}: this command keeps all KV",)
    if not supports_drafting(name, drafting_method(pool)):
        notes += (
            f"{name} has no flag for --speculator {pool.speculator}: this command uses no speculative decoding",
        )
    return launch if notes == launch.notes else replace(launch, notes=notes)


def engine_name(engine: str) -> str:
    """Return the name of a launchable engine without its version.

    Raises UnknownName, and InvalidInput for a baseline.
    """
    if not is_launched(engine):
        raise InvalidInput(
            f"{engine!r} is a baseline and cannot be launched; use one of {', '.join(LAUNCH_WRITERS)}"
        )
    return find_engine(engine).name


def _launch_server(engine: str, model_id: str, pool: Pool) -> Launch:
    """Return the launch of a server that is configured by its command line or an options file."""
    table, values = flag_table(engine), launch_values(engine, model_id, pool)
    options = _yaml(table.write_options("file", values))
    file = "trtllm.yaml" if pool.role == "both" else f"trtllm-{pool.role}.yaml"
    values["options_file"] = file if options else None
    settings = [f"{name}={value}" for name, value in table.write_options("environment", values)]
    words = (
        *(("env", *settings) if settings else ()),
        *table.program,
        *((model_id,) if table.positional_model else ()),
        *flag_words(table.write_options("line", values)),
    )
    notes = (*_notes(engine, pool), *table.notes(values))
    return Launch(words=words, notes=notes, files=((file, options),) if options else ())


def _notes(engine: str, pool: Pool) -> tuple[str, ...]:
    """Return notes on files that the user must prepare, and on differences between the command and the pool."""
    if engine == "llama.cpp":
        return (_gguf_note(pool),)
    if engine == "tgi":
        image = find_published_release(pool.engine).image
        docker = f"to run in a container: docker run --gpus all --shm-size 1g -p {PORT}:{PORT} {image}, then the flags"
        return (*_checkpoint_notes(pool, flag_table(engine).made_while_loading), docker)
    notes = _draft_notes(pool)
    if engine != "tensorrt-llm":
        return (*_checkpoint_notes(pool, flag_table(engine).made_while_loading), *notes)
    if pool.quantization:
        notes += (
            f"{pool.quantization} weights: use a checkpoint in that format, because trtllm-serve does not quantize",
        )
    if pool.speculator is not None and drafting_method(pool) not in engine_method_names(engine):
        notes += (f"trtllm-serve does not support the drafting method {pool.speculator}",)
    return notes


def _checkpoint_notes(pool: Pool, made_while_loading: Collection[str]) -> tuple[str, ...]:
    """Return a note if the user must provide a checkpoint that is already in the pool's weight format."""
    if pool.quantization is None or pool.quantization in made_while_loading:
        return ()
    return (f"{pool.quantization} weights: replace the model's name by a checkpoint in that format",)


def _draft_notes(pool: Pool) -> tuple[str, ...]:
    way = drafting_method(pool)
    notes: tuple[str, ...] = ()
    if way in METHODS_WITH_CHECKPOINT and pool.draft is None:
        notes = (
            f"{DRAFT}: replace it by the {way.partition('-')[0]} checkpoint that was trained for this model",
        )
    if way != (pool.speculator or ""):
        notes += (f"{pool.speculator} drafts a tree, but this command drafts a chain",)
    return notes


def _yaml(options: list[tuple[str, str | bool]]) -> str:
    """Return the options as YAML text; a dotted key becomes a nested mapping at the position of its first key."""
    lines: list[str] = []
    for name, value in options:
        group, dot, key = name.rpartition(".")
        if dot and f"{group}:" not in lines:
            lines.append(f"{group}:")
        lines.append(f"  {key}: {value}" if dot else f"{key}: {value}")
    return _join_lines(lines) if lines else ""


def _gguf_note(pool: Pool) -> str:
    return f"{gguf_file(pool)}: replace it by the model's GGUF file in that format"


def _launch_ollama(model_id: str, pool: Pool) -> Launch:
    """Return the launch of an Ollama server, configured by environment variables and a Modelfile for its model."""
    table, values = flag_table("ollama"), launch_values("ollama", model_id, pool)
    parameters = [f"PARAMETER {name} {value}" for name, value in table.write_options("file", values)]
    model = [f"# model {model_id}", f"FROM ./{gguf_file(pool)}", *parameters]
    name = shlex.quote(model_id.rpartition("/")[2].lower())
    script = [
        "#!/bin/sh",
        *(f"export {key}={value}" for key, value in table.write_options("environment", values)),
        f"{' '.join(table.program)} &",
        "until ollama list > /dev/null 2>&1; do sleep 1; done",
        f'ollama create {name} -f "$(dirname "$0")/Modelfile"',
        "wait",
    ]
    return Launch(
        words=("sh", "serve-ollama.sh"),
        notes=(f"{_gguf_note(pool)}, next to the Modelfile",),
        files=(("Modelfile", _join_lines(model)), ("serve-ollama.sh", _join_lines(script))),
    )


def _join_lines(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _launch_transformers(model_id: str, pool: Pool) -> Launch:
    """Return the launch of a transformers program, which answers its input lines in batches without a server."""
    tensor = pool.tensor_parallel_size
    text = GENERATE.read_text(encoding="utf-8").format(
        model=model_id,
        batch=pool.max_num_seqs or find_engine(pool.engine).limits[0].max_num_seqs,
        dtype=FLOATS.get(pool.dtype, pool.dtype),
        where='tp_plan="auto"' if tensor > 1 else 'device_map="auto"',
    )
    program = ("torchrun", "--nproc-per-node", str(tensor)) if tensor > 1 else ("python",)
    note = "transformers has no server: generate.py answers the lines of its standard input in batches"
    notes = (note, *_checkpoint_notes(pool, ()))
    return Launch(words=(*program, "generate.py"), notes=notes, files=(("generate.py", text),))


def _launch_mii(model_id: str, pool: Pool) -> Launch:
    settings = {
        "tensor_parallel": tensor if (tensor := pool.tensor_parallel_size) > 1 else None,
        "max_length": pool.max_model_len if isinstance(pool.max_model_len, int) else None,
        "enable_restful_api": True,
        "restful_api_port": PORT,
    }
    given = [f"    {name}={value!r}," for name, value in settings.items() if value is not None]
    text = _join_lines(
        ["import mii", "", "mii.serve(", f"    {model_id!r},", "    deployment_name='model',", *given, ")"]
    )
    note = (
        f"the server is at http://localhost:{PORT}/mii/model; mii.client('model').terminate_server() stops it"
    )
    notes = (note, *_checkpoint_notes(pool, ()))
    return Launch(words=("python", "serve_mii.py"), notes=notes, files=(("serve_mii.py", text),))


LAUNCH_WRITERS: dict[str, Callable[[str, Pool], Launch]] = {
    **{engine: partial(_launch_server, engine) for engine in DIALECTS if engine != "ollama"},
    "ollama": _launch_ollama,
    "hf-transformers": _launch_transformers,
    "deepspeed-mii": _launch_mii,
}

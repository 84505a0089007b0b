"""Flag tables: refused where a key is wrong, no flag twice, and each row reads back what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from launch_files import written

from capacity.base.errors import MalformedFile
from capacity.deployment import Pool, flag_table
from capacity.deployment.command_words import flag_name
from capacity.deployment.flag_table import LaunchFlag
from capacity.deployment.launch_command import read_launch
from capacity.deployment.launch_dialects import DIALECTS
from capacity.deployment.launch_writers import launch_command

ENGINES = sorted(DIALECTS)
SAMPLES: dict[str, list[Any]] = {  # of fields whose type does not say what may stand there
    "quantization": ["fp8"],
    "kv_cache_dtype": ["fp8", "int8"],
    "max_model_len": ["auto", 4096],
    "n_gpu_layers": [0, 20],
    "scheduler_recv_interval": [30],
    "gpu_memory_utilization": [0.5],
    "speculator": ["eagle", "eagle3", "mtp", "ngram", "medusa", "lookahead"],
    "draft": ["llama-3.2-1b"],
}
NEEDED: dict[str, dict[str, Any]] = {  # without which a field is not written
    "max_lora_rank": {"max_loras": 3},
    "max_cpu_loras": {"max_loras": 3},
    "kv_offloading_backend": {"kv_offloading_size": 4.0},
    "swap_space": {"preemption_mode": "swap"},
    "num_speculative_tokens": {"speculator": "ngram"},
    "draft_tensor_parallel_size": {"draft": "llama-3.2-1b"},
    "data_parallel_size": {"max_num_seqs": 64, "max_num_batched_tokens": 4096},
    "enable_expert_parallel": {"tensor_parallel_size": 2, "data_parallel_size": 2, "max_num_seqs": 64},
}
BY_ENGINE: dict[tuple[str, str], list[Any]] = {
    ("llama.cpp", "quantization"): ["gguf-q4_k_m", "mxfp4"],
    ("ollama", "quantization"): ["gguf-q8_0"],
    ("llama.cpp", "kv_cache_dtype"): ["int8", "int4"],
    ("ollama", "kv_cache_dtype"): ["int8", "int4"],
    ("tgi", "quantization"): ["fp8", "llm-int8", "nf4", "int8-weight-only", "awq", "gptq"],
    ("tgi", "dtype"): ["float16", "bfloat16", "float32"],  # half is its float16
    ("tensorrt-llm", "data_parallel_size"): [2],
}
NOT_BOTH_WAYS = {  # written so that something else reads back
    ("llama.cpp", "data_parallel_size"): "a split of layers or rows over all GPUs",
    ("tensorrt-llm", "enable_expert_parallel"): "attention ranks are one GPU each: 2 x 2 GPUs are four ranks",
    ("tgi", "speculator"): "--speculate alone does not say by what",
    ("ollama", "tensor_parallel_size"): "Ollama splits layers",
    ("ollama", "data_parallel_size"): "Ollama splits layers",
}
UNKNOWN_SWITCHES = {  # which are said to be unknown, and take no value all the same
    "embedding", "enable_multimodal", "disable_chunked_prefix_cache", "enable_p2p_check",
}  # fmt: skip


def samples(engine: str, name: str) -> list[Any]:
    """Values of a field that differ from its default."""
    field = Pool.model_fields[name]
    if (engine, name) in BY_ENGINE or name in SAMPLES:
        return BY_ENGINE.get((engine, name)) or SAMPLES[name]
    kinds = (field.annotation, *get_args(field.annotation))
    if bool in kinds:
        return [value for value in (True, False) if value != field.default]
    if int in kinds or float in kinds:
        return [3 if int in kinds else 0.3]
    return [
        value for value in get_args(field.annotation) if isinstance(value, str) and value != field.default
    ]


CASES = [
    (engine, name, value)
    for engine in ENGINES
    for name in Pool.model_fields
    if name not in ("gpu", "engine", "model")
    for value in samples(engine, name)
]


def is_written(launch: Any, plain: Any) -> bool:
    return (launch.words, launch.files) != (plain.words, plain.files)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_field_writes_reads_back(engine: str, tmp_path: Path) -> None:
    table = flag_table.flag_table(engine)
    found = set()
    for _, name, value in (case for case in CASES if case[0] == engine):
        needed = NEEDED.get(name, {})
        plain, pool = (
            Pool(gpu="h100", engine=engine, **{**needed, **fields}) for fields in ({}, {name: value})
        )
        launch = launch_command(engine, "org/name", pool)
        if not is_written(launch, launch_command(engine, "org/name", plain)):
            continue
        found.add(name)
        if (engine, name) not in NOT_BOTH_WAYS:
            read = read_launch(written(launch, tmp_path))
            back = {field: getattr(read.pool("h100"), field) for field in (name, *needed)}
            assert back == {field: getattr(pool, field) for field in back}, launch.words
            assert (read.model, read.unknown) == ("org/name", ())
            assert not [text for text in read.not_modelled if "rejects longer prompts" not in text]
    rows = {row.field for row in table.flags if row.written and row.field in Pool.model_fields}
    assert rows - {"model", "enable_lora", "speculative_config", "kv_transfer_config"} <= found


@pytest.mark.parametrize("engine", ENGINES)
def test_no_flag_stands_in_two_places(engine: str) -> None:
    table = flag_table.flag_table(engine)
    read = [row for row in table.rows if row.place == "line"]
    names = [name for row in read for name in {flag_name(each) for each in (row.name, *row.aliases)}]
    left = {flag_name(row.name) for row in read if row.others == "left"}  # words that have no meaning here
    assert len(names) == len(set(names))
    assert len(table.harmless) == len(set(table.harmless))
    assert not {*names} & {*table.harmless}
    assert not {*names} & {*table.not_modelled} - left
    assert not {*table.harmless} & {*table.not_modelled}
    assert {*table.harmless, *table.not_modelled} >= {*table.switches} - UNKNOWN_SWITCHES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('program = ["x"]\nflags = []\nflagz = []\n', "unknown field 'flagz'; did you mean 'flags'"),
        ('program = ["x"]\nflags = [{ name = "--a", aliasses = ["-b"] }]\n', "did you mean 'aliases'"),
        ('program = ["x"]\nflags = [{ name = "--a", field = "max_num_seq" }]\n', "'max_num_seq' is neither"),
        ('program = ["x"]\nflags = [{ name = "--a", requires = "rol" }]\n', "'rol' is neither"),
        (
            'program = ["x"]\nflags = [{ name = "--a", conversion = "halve" }]\n',
            "conversion 'halve' is not one",
        ),
        ('program = ["x"]\nflags = [\n', "cannot be read"),
    ],
)
def test_a_table_with_a_wrong_key_is_refused(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flag_table, "FOLDER", tmp_path)
    (tmp_path / "broken.toml").write_text(text, encoding="utf-8")
    with pytest.raises(MalformedFile, match=problem) as caught:
        flag_table.flag_table("broken")
    assert "broken.toml" in str(caught.value)


def test_a_value_at_the_default_is_written_beside_another() -> None:
    row = LaunchFlag(name="--rank", field="max_lora_rank", requires="max_loras")
    assert row.write({"max_lora_rank": 16, "max_loras": None}, ()) is None
    assert row.write({"max_lora_rank": 16, "max_loras": 2}, ()) == 16

"""What a verb is asked: flags over a pasted command over a deployment file."""

from __future__ import annotations

from pathlib import Path

import pytest

from capacity.base.errors import InvalidInput
from capacity.cli.question import Question, request_of

FILE = """model = "llama-3.1-8b"
[[pools]]
gpu = "h100"
max_num_seqs = 8
speculative_config = '{"method": "eagle3", "num_speculative_tokens": 2}'
[traffic]
input_len = 100
"""


def test_flags_stand_over_a_pasted_command_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(FILE)
    pasted = "vllm serve qwen3-8b --max-num-seqs 16 -tp 2"
    request = request_of(
        Question(
            flags={"tensor_parallel_size": "4", "output_len": "5"}, deployment=str(file), from_vllm=pasted
        )
    )
    pool = request.pools[0]
    assert (request.model, pool.gpu, pool.max_num_seqs, pool.tensor_parallel_size) == (
        "qwen3-8b",
        "h100",
        16,
        4,
    )
    assert (request.traffic.input_len, request.traffic.output_len) == (100, 5)


def test_a_flag_wins_over_what_a_files_json_says(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(FILE)
    pool = request_of(Question(flags={"speculator": "ngram"}, deployment=str(file))).pools[0]
    assert (pool.speculator, pool.num_speculative_tokens) == ("ngram", 2)


def test_errors_name_flags_or_fields() -> None:
    zero = {"gpu": "h100", "max_num_seqs": "0"}
    for as_flags, name in ((True, "--max-num-seqs is 0"), (False, "max_num_seqs is '0'")):
        with pytest.raises(InvalidInput, match=f"^{name}"):
            request_of(Question(model="llama-3.1-8b", flags=zero), as_flags=as_flags)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidInput, match="no GPU"):
        request_of(Question(model="llama-3.1-8b", flags={}))
    with pytest.raises(InvalidInput, match="no model"):
        request_of(Question(flags={"gpu": "h100"}))

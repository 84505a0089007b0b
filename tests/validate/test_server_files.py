"""What the files of a server contain: their kinds, the settings with their origin, and reasons for unread files."""

from __future__ import annotations

from pathlib import Path

from benchmark_files import vllm_result, write
from capacity_validate.server_files import MISSING, read_server_files

LOG = """INFO vLLM API server version 0.30.0
INFO non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'tensor_parallel_size': 2}
INFO GPU KV cache size: 844,000 tokens
"""


def files(tmp_path: Path, *texts: object) -> tuple[str, ...]:
    return tuple(str(write(tmp_path / f"{number}.txt", text)) for number, text in enumerate(texts))


def test_settings_name_the_file_that_states_them(tmp_path: Path) -> None:
    result, log = files(tmp_path, vllm_result(), LOG)
    found = read_server_files((result, log))
    assert found.readable == (result, log)
    settings = {each.name: (each.value, each.path) for each in found.settings}
    assert settings["engine"] == ("vllm@0.30", log)
    assert settings["tensor parallel size"] == ("2", log)
    assert settings["KV tokens"] == ("844,000", log)
    assert settings["KV cache dtype"] == ("", MISSING)
    assert found.model == "llama-3.1-8b"
    assert found.fields["tensor_parallel_size"] in (2, "2")
    assert [run.path for run in found.runs] == [result]


def test_unreadable_files_have_a_reason_and_the_others_are_read(tmp_path: Path) -> None:
    result, words, copy, log, other = files(
        tmp_path, vllm_result(), "hello", vllm_result(), LOG, LOG.replace("844,000", "5,000")
    )
    found = read_server_files((result, words, copy, log, other, str(tmp_path / "absent")))
    assert found.readable == (result, log)
    errors = [each.error for each in found.files]
    assert errors[1].startswith("is neither")
    assert "has the same content as" in errors[2]
    assert "different servers" in errors[4]
    assert "absent" not in errors[5]
    assert errors[5]


def test_files_without_any_readable_one_have_no_settings(tmp_path: Path) -> None:
    found = read_server_files(files(tmp_path, "hello", "{}"))
    assert (found.readable, found.runs, found.model, found.fields) == ((), (), None, {})
    assert {each.path for each in found.settings} == {MISSING}


def test_files_of_different_models_name_none(tmp_path: Path) -> None:
    other = vllm_result(model_id="meta-llama/Llama-3.1-70B-Instruct")
    found = read_server_files(files(tmp_path, vllm_result(), other))
    assert found.model is None
    assert len(found.readable) == 2

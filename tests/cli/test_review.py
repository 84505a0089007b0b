"""What a newcomer's session found: questions that were answered silently, wrongly, or with noise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import capacity
from capacity.base.errors import InvalidInput
from capacity.cli.main import main
from capacity.deployment import Pool

TWO_POOLS = 'model = "llama-3.1-8b"\n[[pools]]\ngpu = "h100"\n[[pools]]\ngpu = "a100"\n'
LENGTHS = ("--input-len", "100", "--output-len", "10", "--batch-size", "1")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """(exit code, stdout, stderr) of the command, run in this process."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["capacity", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return call


@pytest.mark.parametrize("arguments", [("fit",), ("estimate", *LENGTHS), ("explain", *LENGTHS)])
def test_several_pools_are_not_answered_by_the_first(
    run: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    file = tmp_path / "two.toml"
    file.write_text(TWO_POOLS)
    code, out, err = run(*arguments, "--deployment", str(file))
    assert (code, out) == (2, "")
    assert "2 pools" in err


def test_the_bare_command_prints_its_help_and_nothing_else(run: Any) -> None:
    code, out, err = run()
    assert (code, err) == (2, "")
    assert "simulate" in out


def test_a_request_longer_than_the_model_is_refused_as_estimate_refuses_it(run: Any) -> None:
    long = ("--input-len", "131070", "--output-len", "10", "--num-prompts", "5", "--request-rate", "5")
    code, out, err = run("simulate", "llama-3.1-8b", "--gpu", "h100", *long)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "131080 tokens exceeds max_model_len 131072" in err


@pytest.mark.parametrize(
    ("text", "tokens"), [("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1M", 1 << 20), ("4096", 4096)]
)
def test_counts_may_be_written_as_vllm_reads_them(text: str, tokens: int) -> None:
    """vLLM 0.33 `human_readable_int`: small letters are powers of ten, capitals of two."""
    assert Pool(gpu="h100", max_model_len=text).max_model_len == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["k", "8kk", "1e3k", "-8k", "8 k", "0k", "9999999999999K", "nank"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="max_model_len"):
        capacity.fit("llama-3.1-8b", gpu="h100", max_model_len=text)


def test_a_word_that_is_neither_term_nor_model_is_taken_for_a_term(run: Any) -> None:
    code, out, err = run("explain", "tttf")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no term 'tttf'. Did you mean 'TTFT'" in err
    assert "no GPU" in run("explain", "llama-3.1-8b")[2]


def test_an_empty_name_of_a_deployment_file_is_not_passed_over(run: Any) -> None:
    code, out, err = run("fit", "llama-3.1-8b", "--gpu", "h100", "--deployment", "")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_comparison_without_traffic_says_where_traffic_goes(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('model = "llama-3.1-8b"\n[[pools]]\ngpu = "h100"\n')
    code, out, err = run("diff", str(file), str(file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "add [traffic]" in err


def test_replicas_that_are_lost_or_started_later_are_counted_apart(run: Any) -> None:
    load = ("--input-len", "100", "--output-len", "20", "--num-prompts", "60", "--request-rate", "10")
    spot = ("--replicas", "3", "--mtbf", "4", "--recovery", "1")
    _, out, _ = run("simulate", "llama-3.1-8b", "--gpu", "h100", *load, *spot)
    assert "on 3 replicas of 1 x h100-sxm-80gb" in out
    (row,) = [line for line in out.splitlines() if line.startswith(" replicas")]
    assert row.split()[1] == "3"
    assert " lost; " in row
    assert " started later; " in row


def test_fit_says_what_host_memory_holds(run: Any) -> None:
    _, out, _ = run("fit", "llama-3.1-8b", "--gpu", "h100", "--kv-offloading-size", "1")
    assert f"1 GiB of host memory hold {2**30 // (128 * 1024):,} tokens" in " ".join(out.split())


def test_a_run_with_drafts_says_how_many_are_accepted(run: Any) -> None:
    load = ("--input-len", "100", "--output-len", "20", "--num-prompts", "5", "--request-rate", "5")
    drafts = ("--speculator", "ngram", "--num-speculative-tokens", "2", "--acceptance", "0.5")
    _, out, _ = run("simulate", "llama-3.1-8b", "--gpu", "h100", *load, *drafts)
    assert f"2 deep: {1 + 0.5 + 0.25:.2f} tokens a step" in " ".join(out.split())

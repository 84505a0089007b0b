"""The readers on what a real engine wrote: start-up log and scrapes recorded from vLLM 0.32 on a CPU, 2026-11-29."""

import json
import os
from pathlib import Path

import pytest
from capacity_validate import calibrate
from capacity_validate.benchmark_results.metrics_scrape import read_scrape, run_of_metrics
from capacity_validate.comparison import MetricRow, error_text, metric_rows
from capacity_validate.server_log import decode_steps, read_server_log

from capacity.base.errors import InvalidInput

RECORDED = Path(__file__).parents[1] / "data" / "vllm_cpu"
SCRAPED_S = {"before.prom": 1795979566.0, "after.prom": 1795980246.0}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 704,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 8000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def copy_recorded(folder: Path, *, timed: bool = True) -> list[Path]:
    """Copy the log and the scrapes to `folder`; with `timed`, the scrapes keep the times at which they were taken."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    paths = []
    for name in ("server.log", *SCRAPED_S):
        path = folder / name
        path.write_bytes((RECORDED / name).read_bytes())
        if timed and name in SCRAPED_S:
            os.utime(path, (SCRAPED_S[name], SCRAPED_S[name]))
        paths.append(path)
    return paths


def test_log_of_vllm_on_a_cpu_gives_settings_kv_cache_and_decode_steps() -> None:
    log = read_server_log(RECORDED / "server.log")
    assert log.kv_tokens == 65_536
    assert log.launch.models == ("/models/tiny", "tiny")
    expected = {"engine": "vllm@0.32", "max_num_seqs": 16, "max_model_len": 2048, "enforce_eager": True}
    assert expected.items() <= log.settings.items()
    assert log.settings["quantization"] is None
    (steps,) = decode_steps((RECORDED / "server.log").read_text())
    assert (steps.sequences, steps.windows) == (4, 4)
    assert steps.seconds == pytest.approx((4 / 2.8 + 4 / 2.4) / 2)
    assert steps.kv_fraction == pytest.approx(0.016)


def test_scrapes_of_vllm_on_a_cpu_give_the_load_between_them() -> None:
    before, after = (
        read_scrape(name, (RECORDED / name).read_text(), scraped_s=at) for name, at in SCRAPED_S.items()
    )
    window = after.minus(before)
    run = run_of_metrics(window)
    assert (run.completed, run.model) == (4000, "tiny")
    assert run.mean_output_tokens == pytest.approx(16.0)
    assert run.request_rate == pytest.approx(4000 / 680)
    assert window.counters["prompt_tokens_total"] / 4000 == pytest.approx(run.mean_prompt_tokens)
    assert {"ttft", "tpot", "itl", "e2el"} <= run.latencies_ms.keys()
    assert run.server is not None
    assert (run.server.kv_tokens, run.server.block_size) == (524_288, 128)


def test_calibration_on_a_cpu_does_not_fit_the_kv_cache_size(tmp_path: Path) -> None:
    """On a CPU the size is a setting (VLLM_CPU_KVCACHE_SPACE), so it says nothing about memory overhead."""
    log, *scrapes = copy_recorded(tmp_path)
    names = [log, *scrapes]
    found = calibrate(
        names, gpu="epyc-9755", model=str(tmp_path / "config.json"), name="t", out=tmp_path / "profiles"
    )
    assert found.figures
    assert "KV tokens" not in {figure.name for figure in found.figures}


def test_copied_scrapes_without_their_times_are_refused_with_the_remedy(tmp_path: Path) -> None:
    _, *scrapes = copy_recorded(tmp_path, timed=False)
    for path in scrapes:
        os.utime(path, (SCRAPED_S["before.prom"],) * 2)
    with pytest.raises(InvalidInput, match="cp -p"):
        calibrate(scrapes, gpu="epyc-9755", model=str(tmp_path / "config.json"), out=tmp_path / "profiles")


def test_large_figures_are_printed_without_exponents() -> None:
    (row,) = metric_rows([MetricRow(name="mean_ttft_ms", measured=10_798.6, predicted=230.2)])
    assert row["measured"] == "10,799"
    assert error_text(89.989) == "+8,998.9 %"

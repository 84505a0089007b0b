"""Results of GuideLLM."""

import math
from pathlib import Path

import pytest
from capacity_validate.benchmark_results import read_results


def test_guidellm_report_is_read_run_by_run(shared_dir: Path) -> None:
    runs = read_results(shared_dir / "traces" / "guidellm_report_v2.json")
    assert len(runs) == 2
    first = runs[0]
    assert (first.tool, first.request_rate, first.burstiness) == ("guidellm", 2.0, math.inf)
    # its time_per_output_token_ms (2.44) includes the first token; TPOT is its inter_token_latency_ms
    assert first.latencies_ms["tpot"]["mean"] == pytest.approx(1.1508, abs=1e-4)
    assert first.latencies_ms["e2el"]["mean"] == pytest.approx(19.789, abs=1e-3)  # given in seconds

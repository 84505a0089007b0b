"""Azure's traces: exact calendar times, and the real ones against the figures published with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slowness import cpu_limit
from trace_texts import AZURE, read

from capacity.workload import read_trace


def test_azure_times_are_exact(tmp_path: Path) -> None:
    rows = (
        "2023-11-16 23:59:59.9999999,374,44\n2023-11-17 00:00:00.0000001,396,109\n2023-11-17 00:01:00,5,6\n"
    )
    workload = read(tmp_path, AZURE + rows)
    assert workload.arrival_s.tolist() == [0.0, 2e-7, 60.0000001]


def test_azure_2024_has_zones(tmp_path: Path) -> None:
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10T02:00:01.009930+02:00,2399,6\n"
    assert read(tmp_path, AZURE + rows).arrival_s.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "rate", "gaps_cv", "prompts", "outputs"),
    [
        ("conv", 19_366, 3_502, 5.5, 1.09, (1155, 1020, 4142), (211, 129, 601)),
        ("code", 8_819, 3_436, 2.6, 13, (2048, 1469, 7436), (28, 13, 251)),
    ],
)
def test_azure_2023(
    shared_dir: Path,
    name: str,
    rows: int,
    span_s: float,
    rate: float,
    gaps_cv: float,
    prompts: tuple[int, int, int],
    outputs: tuple[int, int, int],
) -> None:
    """Against the figures published with the traces, to the digits given."""
    workload = read_trace(shared_dir / "traces" / f"AzureLLMInferenceTrace_{name}.csv.gz")
    assert len(workload) == rows
    assert workload.span_s == pytest.approx(span_s, abs=0.5)
    assert workload.request_rate_per_s == pytest.approx(rate, abs=0.05)
    assert workload.arrival_cv == pytest.approx(gaps_cv, abs=0.5 if gaps_cv > 10 else 0.005)
    for column, (mean, p50, p99) in ((workload.prompt_tokens, prompts), (workload.output_tokens, outputs)):
        assert column.mean() == pytest.approx(mean, abs=0.5)
        np.testing.assert_allclose(np.percentile(column, [50, 99]), [p50, p99], atol=0.5)
    assert workload.notices == ()


def test_azure_is_read_in_time(shared_dir: Path) -> None:
    path = shared_dir / "traces" / "AzureLLMInferenceTrace_conv.csv.gz"
    read_trace(path)  # loads the modules
    with cpu_limit(0.3):
        read_trace(path)

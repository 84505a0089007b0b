"""The support matrix as a table: a letter for each format, engines that differ in nothing as one column."""

from __future__ import annotations

import capacity
from capacity.report.tables import render


def test_a_matrix_has_a_line_for_each_gpu_and_a_letter_for_each_format() -> None:
    answer = capacity.gpu_support(gpus=["h100", "t4", "m4-max"])
    lines = render(answer, "table").splitlines()
    (t4,) = (line.split() for line in lines if "t4-16gb" in line)
    assert len(t4) == 1 + len(answer.engines) - 1  # Ollama is as llama.cpp
    assert all(len(letters) == len(answer.weight_formats) for letters in t4[1:])
    assert max(map(len, lines)) <= 110
    assert "M measured" in render(answer, "table")


def test_one_gpu_is_shown_with_reasons() -> None:
    text = render(capacity.gpu_support(gpus=["t4"]), "table")
    assert "compute capability 7.5" in text
    assert text.count("vllm@") == 1

"""Answers in Python: one line, tables, HTML and charts of every kind of answer, all from its view."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import capacity
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.record import AnswerRecord
from capacity.report.tables import render

MODEL = "llama-3.1-8b"
ASKED: dict[str, Callable[[], AnswerRecord]] = {
    "fit": lambda: capacity.fit(MODEL, gpu="h100"),
    "estimate": lambda: capacity.estimate(MODEL, gpu="h100", input_len=512, output_len=64, batch_size=8),
    "simulate": lambda: capacity.simulate(
        MODEL, gpu="h100", input_len=512, output_len=64, request_rate=4, num_prompts=100
    ),
    "cost": lambda: capacity.cost(
        MODEL, gpu="h100", input_len=512, output_len=64, request_rate=4, price="2.50"
    ),
    "plan": lambda: capacity.plan(
        MODEL, input_len=512, output_len=64, request_rate=4, slo=["ttft:p95:1s"], gpus=["h100"], price="2.50"
    ),
    "explain": lambda: capacity.explain(MODEL, gpu="h100", input_len=512, output_len=64, batch_size=8),
}
FIGURES = {
    "fit": ("KV cache", "KV capacity", "Longest request"),
    "estimate": ("TTFT", "TPOT", "E2E latency"),
    "simulate": ("Mean TTFT", "p95 TTFT", "Mean TPOT"),
    "cost": ("Per month", "$ per 1M output", "Utilization"),
    "plan": ("deployment", "$/h", "% of limit"),
    "explain": ("prefill step", "decode step"),
}


@pytest.mark.parametrize("verb", ASKED)
def test_an_answer_is_one_line_in_repr_and_its_tables_in_str_and_html(verb: str) -> None:
    answer = ASKED[verb]()
    line, text = repr(answer), str(answer)
    assert "\n" not in line
    assert len(line) < 250
    assert re.match(rf"<{verb}: {MODEL}[ ,]", line)
    assert "h100-sxm-80gb" in line
    for figure in FIGURES[verb]:
        assert re.search(rf"{re.escape(figure)} \$?\d", line), (figure, line)
    assert text.splitlines()[0].startswith(MODEL)
    assert "--detail" not in text  # a flag of the command
    assert set(text.splitlines()) <= {*render(answer, "table", detail=False).splitlines()}
    fragment = answer._repr_html_()
    assert "<html" not in fragment
    assert fragment.count("<table>") == fragment.count("</table>") > 0
    number = re.search(r"\d+\.\d+", text)
    assert number is not None
    assert number[0] in fragment


def test_the_line_has_the_values_of_the_answer() -> None:
    answer = capacity.estimate(MODEL, gpu="h100", input_len=512, output_len=64, batch_size=8)
    shown = re.search(r"TPOT ([\d.]+) ms", repr(answer))
    assert shown is not None
    assert answer.tpot_s is not None
    assert float(shown[1]) == pytest.approx(answer.tpot_s.value * 1e3, rel=0.02)


def test_plot_is_a_chart_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ASKED["estimate"]()
    first = answer.plot()
    assert first._repr_svg_().startswith("<svg ")
    assert answer.plot(first.name).rows == first.rows
    with pytest.raises(UnknownName, match=f"no chart 'nonesuch'.* Known: .*{first.name}"):
        answer.plot("nonesuch")
    with pytest.raises(InvalidInput, match=r"gpu-support has no chart: use to_frame\(\)"):
        capacity.gpu_support(gpus=["h100"]).plot()
    monkeypatch.setattr("capacity.report.figures.picture.find_spec", lambda _: None)
    with pytest.raises(
        InvalidInput, match=r"^pictures need matplotlib: pip install 'llm-capacity\[charts\]'$"
    ):
        answer.plot()


def test_text_from_outside_cannot_end_the_line_or_the_html() -> None:
    from dataclasses import replace

    answer = capacity.simulate(MODEL, gpu="h100", input_len=9, output_len=9, request_rate=4, num_prompts=9)
    hostile = replace(answer, workload="a\nb<script>[bold]")
    assert "\n" not in repr(hostile)
    assert "<script>" not in hostile._repr_html_()

"""An answer on one HTML page: question, answer, charts, assumptions, sources, and the command that repeats it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from typing import Any

from capacity.base.html import list_html, page_html
from capacity.base.money import convert_amounts
from capacity.base.record import AnswerRecord
from capacity.base.registry import ANSWERS, VERBS
from capacity.base.untrusted_text import printable
from capacity.report.display import basis_text, phrase
from capacity.report.figures.answer_charts import answer_charts
from capacity.report.figures.chart import Chart, version_and_date
from capacity.report.figures.picture import MATPLOTLIB_NEEDED, can_draw
from capacity.report.subject import describe_answer, gpu_names
from capacity.report.tables_html import parts_html, split_notes

INTERVALS = "Ranges are 90 % intervals; they cover the effect of unknown settings."
SOURCES_NAMED = 3  # values listed for one source
STYLE = """
header { border-bottom: 2px solid #1c2733; margin-bottom: 1rem; } header p { margin: .2rem 0 .6rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; } section p { margin: .35rem 0; }
footer { margin-top: 2rem; font-size: .85rem; color: #55606e; border-top: 1px solid #dde3ea; padding-top: .4rem; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Content of a page, in display order. `answer` and the texts of `more` are HTML, all others plain text."""

    question: str
    subject: str
    answer: str
    charts: Sequence[Chart] = ()
    more: Sequence[tuple[str, str]] = ()  # title, HTML
    assumptions: Sequence[str] = ()
    sources: Sequence[str] = ()
    asked: Sequence[tuple[str, str]] = ()  # title, text to copy

    def html(self, made: date | None = None) -> str:
        """Return the page as HTML; `made` is its date (None: today)."""
        parts = [
            f"<header><h1>{_escape_text(self.question)}</h1><p>{_escape_text(self.subject)}</p></header>",
            f"<section><h2>Answer</h2>{self.answer}</section>",
            *(chart.figure_html(made) for chart in self.charts),
            f"<p>{_escape_text(MATPLOTLIB_NEEDED)}</p>" if self.charts and not can_draw() else "",
            *(_section_html(title, content) for title, content in self.more),
            _section_html("Assumptions", list_html(self.assumptions)),
            _section_html("Sources", list_html(self.sources)),
            *(_section_html(title, f"<pre>{_escape_text(text)}</pre>") for title, text in self.asked),
            f"<footer>{_escape_text(version_and_date(made))}</footer>",
        ]
        return page_html(f"{self.subject}: {self.question}", "".join(parts), style=STYLE)


def _section_html(title: str, content: str) -> str:
    return f"<section><h2>{_escape_text(title)}</h2>{content}</section>" if content else ""


def _escape_text(words: str) -> str:
    return escape(printable(words))


def answer_html(
    answer: AnswerRecord,
    parts: Iterable[Any],
    *,
    charts: Sequence[Chart] | None = None,
    files: Sequence[tuple[str, str]] = (),
    command: str | None = None,
    python: str | None = None,
    made: date | None = None,
) -> str:
    """Return an answer as one self-contained HTML file with a print style.

    `parts` are the answer's tables as shown on a terminal. `charts` default to the charts of the answer's view.
    `files` are pairs of title and text to copy. `command` and `python` repeat the computation.
    """
    shown, remarks = split_notes(parts)
    asked = [*files, ("Command", command), ("In Python", python)]
    basis, gpu = getattr(answer, "basis", None), getattr(answer, "gpu", "")
    basis = phrase("Basis: {}. {}", basis and basis_text(basis, getattr(gpu, "name", gpu)), INTERVALS)
    return Sheet(
        question=page_heading(answer.schema_name()),
        subject=describe_answer(answer),
        answer=parts_html(shown),
        charts=answer_charts(answer) if charts is None else charts,
        assumptions=[convert_amounts(text) for text in (basis, *remarks) if text],
        sources=[convert_amounts(text) for text in number_sources(answer)],
        asked=[(title, text) for title, text in asked if text],
    ).html(made)


def page_heading(schema: str) -> str:
    """Return the heading of an answer's page: the question it answers, or the first sentence of the command's help."""
    helps = {answer.name: verb.help for verb in VERBS for answer in verb.answers}
    question = ANSWERS[schema].question if schema in ANSWERS else ""
    return question or helps.get(schema, schema).partition("\n")[0].removesuffix(".")


def number_sources(answer: AnswerRecord) -> list[str]:
    """Return the sources and dates of the numbers that an answer uses for its GPUs, model and price."""
    found = [line for gpu in gpu_names(answer) for line in _profile_sources(gpu)]
    model = getattr(answer, "model", None)
    found += _model_source(getattr(model, "name", model))
    cost = getattr(answer, "cost", None)
    if cost is not None and hasattr(cost, "source"):
        found.append(f"price, {cost.tier}: {cost.source}")
    if hasattr(answer, "tier"):  # `cost`
        found.append(f"price, {getattr(answer, 'tier', '')}: {getattr(answer, 'source', '')}")
    return found


def _profile_sources(gpu: str) -> list[str]:
    """Return each source of a built-in profile with the values that come from it."""
    from capacity.hardware import has_profile, load_profile

    if not has_profile(gpu):
        return [f"{gpu}: custom profile"]
    origins = load_profile(gpu).provenance
    kept: dict[tuple[str, str], list[str]] = {}
    for name, origin in origins.items():
        if origin.basis != "assumed":
            kept.setdefault((f"{origin.basis}, {origin.date}", origin.source), []).append(name)
    return [f"{gpu}: {_first_few(names)} ({basis}): {source}" for (basis, source), names in kept.items()]


def _first_few(names: Sequence[str]) -> str:
    """Return the first `SOURCES_NAMED` names as text, and the number of names left out."""
    left = len(names) - SOURCES_NAMED
    return ", ".join(names[:SOURCES_NAMED]) + f" and {left} more" * (left > 0)


def _model_source(name: object) -> list[str]:
    from capacity.model import load_model, model_names

    if name is None:
        return []
    known = name in model_names()  # never open a path because a file contains it as a name
    return [f"{name}: {load_model(str(name)).source}" if known else f"{name}: custom configuration"]

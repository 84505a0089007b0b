"""`capacity engines`: what each does by default, or all of them side by side on one load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

import capacity
from capacity.base.errors import InvalidInput
from capacity.cli.options import dashed, show_answer
from capacity.cli.question import Question, changed_gpu, request_of
from capacity.cli.question_flags import listed


def engines(
    question: Question,
    *,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare", metavar="MODEL", help="Serve it under each engine, at one load on one GPU."
        ),
    ] = None,
    engines: Annotated[
        str | None, typer.Option("--engines", help="With --compare: these, by commas, as vllm@0.15,sglang.")
    ] = None,
    claims: Annotated[
        bool, typer.Option("--claims", help="Also published speed claims, held against physics.")
    ] = False,
) -> None:
    """The serving engines, with the defaults, limits and overheads that the simulator takes.

    --compare MODEL serves one load under each: throughput, latency and memory with intervals, and what each lacks.
    """
    if compare is None and question.deployment is None and question.from_launch is None:
        idle = [*(name for name in question.flags if name != "gpu"), *(["engines"] if engines else [])]
        if idle:
            raise InvalidInput(
                f"--{dashed(idle[0])} changes nothing without --compare MODEL: add it, or leave --{dashed(idle[0])} out"
            )
        gpu = question.flags.get("gpu", "h100")
        gpu = changed_gpu(gpu, question.change) if question.change else gpu
        table = capacity.engine_table(gpu, claims=claims)
        show_answer(table, question.format)
        return
    if claims:
        raise InvalidInput("--claims and --compare are two questions: ask one at a time")
    request = request_of(replace(question, model=compare, verb="estimate"))
    which: Mapping[str, Any] = {} if engines is None else {"engines": listed(engines)}
    show_answer(capacity.compare_engines(request, profiles=question.profiles, **which), question.format)

"""KV cache page: bytes per request by context and attention type, GPU capacity, and the effect of KV eviction."""

from collections.abc import Mapping
from typing import Any

from capacity.base.mappings import select
from capacity.report.layout import token_count_text
from capacity.report.views.kv import kv_facts, kv_view
from capacity.service.jobs import Task
from capacity.techniques.long_context import CONTEXTS
from capacity_app import parts, sides, state, views
from capacity_app.pages import KV_POOL
from capacity_app.router import current_inputs
from capacity_app.widgets import draw_fields, widget_row

inputs = current_inputs()
named = {token_count_text(context): context for context in CONTEXTS}


def kv_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Select from `options` the keyword arguments that `capacity.kv` accepts, and return them."""
    taken = select(options, (*KV_POOL, *asked))
    return {"gpus": (taken.pop("gpu"),), **taken}


def side_task(side: sides.Side) -> Task:
    """Return the task that computes the KV cache of one side of the comparison."""
    model = sides.side_model(side, inputs)
    return Task(function="capacity:kv", arguments={"models": model, **kv_keywords(side.options)})


with widget_row():
    context = named[state.segments("Tokens per request", "kv_context", tuple(named), "32K")]
    asked = draw_fields("kv_batch", "kv_budget")
batch, budget = asked["batch_size"], asked["budget_tokens"]
asked["eviction"] = "all"
pool = select(inputs.pool, KV_POOL)
current = sides.Side(page="kv", model=inputs.model_name, options={**pool, **asked}, cost={})
python = kv_keywords(current.options)
found = parts.run_in_background("kv", side_task(current), doing="Computing KV cache")
typed = {**pool, "batch_size": batch, "eviction": "all", "kv_budget": budget}
parts.draw_code_snippets("kv", inputs.model_name, python, found.value, typed=typed)
answer = found.ready_value
sides.draw_figures(current, answer, ask=side_task, row=views.figures_function(kv_facts, context, batch))
views.draw_view(kv_view(answer, context), answer)

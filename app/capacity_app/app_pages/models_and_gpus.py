"""Models and GPUs page: presets and profiles, with the source of each number."""

import streamlit as st

import capacity
from capacity.hardware import load_profile
from capacity.model import load_model
from capacity.report.figures.listings import GPUS, MODELS, price_rows, source_rows
from capacity.report.views.layout import table_records
from capacity.report.views.view import Column, Table
from capacity_app import parts
from capacity_app.error_display import escape_markdown
from capacity_app.router import current_inputs

HUB = Column("Hugging Face id", "hf_id")
inputs = current_inputs()
st.caption("Click a column header to sort. Click the magnifier at the upper right of a table to search it.")
models, gpus, chosen_model, chosen_gpu, prices = st.tabs(
    ["Models", "GPUs", "This model", "This GPU", "Prices"], on_change="rerun"
)
if models.open:
    with models:
        parts.draw_table(
            "models",
            table_records(Table("", capacity.models(), [MODELS[0], HUB, *MODELS[1:]]), inputs.units),
            alt="Model presets with parameters and KV bytes per token.",
        )
if gpus.open:
    with gpus:
        parts.draw_table(
            "gpus",
            table_records(Table("", capacity.gpus(), GPUS), inputs.units),
            alt="GPU profiles with memory, rates and power.",
        )
if chosen_model.open:
    with chosen_model:
        spec = load_model(inputs.model) if isinstance(inputs.model, str) else inputs.model
        st.markdown(
            escape_markdown(
                f"{spec.name}, {spec.hf_id or 'no Hugging Face id'}; source: {spec.source or 'preset'}"
            )
        )
        rows = [{"part": p.name, "kind": p.kind, "parameters": p.params} for p in spec.parameter_parts()]
        parts.draw_table("parameters", rows, alt=f"Parameters of {spec.name} by part.")
        parts.draw_notes(spec.notes)
if chosen_gpu.open:
    with chosen_gpu:
        profile = load_profile(inputs.pool["gpu"])
        parts.draw_table(
            "sources", source_rows(profile), alt=f"Every value of {profile.name} with source, date and basis."
        )
if prices.open:
    with prices:
        parts.draw_table(
            "prices", price_rows(inputs.pool["gpu"]), alt="Dated prices of this GPU by provider and tier."
        )

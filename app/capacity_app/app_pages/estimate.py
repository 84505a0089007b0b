"""Fit: does it fit, and what is left for the KV cache."""

from __future__ import annotations

from capacity import api
from capacity_app import parts
from capacity_app.router import current_inputs

inputs = current_inputs()
answer = api.fit(inputs.model, **inputs.pool)
parts.kpis([parts.Kpi(label="KV cache", value=inputs.units.memory_text(answer.memory.kv_cache_bytes))])
parts.copies("fit", inputs.model_name, inputs.pool, answer)
parts.notes(answer.warnings)

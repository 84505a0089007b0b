"""What is known as rows: models, GPUs, the source of every value, prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from capacity.base.rows import flattened
from capacity.hardware.pricing import price_table
from capacity.report.display import STANDARD, Units
from capacity.report.tables import COLUMNS

if TYPE_CHECKING:
    from capacity.answers.listings import GpuListing, ModelListing
    from capacity.hardware import HardwareProfile


def model_rows(records: Iterable[ModelListing]) -> list[dict[str, object]]:
    """`capacity models` as numbers, with the Hugging Face id."""
    return [
        {"name": record["name"], "Hugging Face id": record["hf_id"], **_scaled("Models", record)}
        for record in records
    ]


def gpu_rows(records: Iterable[GpuListing], units: Units = STANDARD) -> list[dict[str, object]]:
    """`capacity gpus` as numbers, memory in the unit asked for."""
    rows = []
    for record in records:
        values = _scaled("GPUs", record)
        del values["GiB"]
        rows.append({"name": record["name"], units.memory: units.of_bytes(record["memory_bytes"]), **values})
    return rows


def _scaled(table: str, record: Mapping[str, object]) -> dict[str, object]:
    flat = flattened(record)
    values = ((heading, flat.get(key), scale) for heading, key, scale in COLUMNS[table])
    return {heading: None if value is None else value / scale for heading, value, scale in values}


def source_rows(profile: HardwareProfile) -> list[dict[str, object]]:
    """Every value of a profile with where it comes from; SI units, as its name says."""
    values = flattened(profile.model_dump(exclude={"provenance", "step_time"}))
    return [
        {
            "value of": name,
            "is": f"{values.get(name)}",
            "basis": origin.basis,
            "date": origin.date,
            "source": origin.source,
        }
        for name, origin in profile.provenance.items()
    ]


def price_rows(gpu: str) -> list[dict[str, object]]:
    """The dated prices of one GPU, cheapest first."""
    prices = sorted((p for p in price_table() if p.gpu == gpu), key=lambda price: price.usd_per_gpu_hour)
    shown = ("tier", "usd_per_gpu_hour", "provider", "product", "gpus_per_instance", "date", "source")
    return [{name: getattr(price, name) for name in shown} for price in prices]

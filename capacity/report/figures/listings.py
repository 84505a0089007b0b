"""Table rows of the reference data: models, GPUs, the source of every value, and prices."""

from capacity.base.rows import flatten
from capacity.hardware import HardwareProfile
from capacity.hardware.pricing import price_table
from capacity.report.views.units import Unit
from capacity.report.views.view import Column


def five_digits(scale: float = 1.0, follows: str = "") -> Unit:
    """Return a display format with five significant digits, for columns whose numbers differ in magnitude."""
    return Unit(scale=scale, follows=follows, significant=5)


MODELS = (
    Column("name", "name"),
    Column("params, B", "total_params", five_digits(1e-9)),
    Column("active, B", "active_params", five_digits(1e-9)),
    Column("KV KiB/token, 16 bit", "kv_bytes_per_token", five_digits(1 / 1024)),
)
GPUS = (
    Column("name", "name"),
    Column("{memory}", "memory_bytes", five_digits(follows="memory")),
    Column("HBM TB/s", "hbm_bytes_per_s", five_digits(1e-12)),
    Column("BF16 TFLOP/s", "dense_flops_per_s.bf16", five_digits(1e-12)),
    Column("FP8", "dense_flops_per_s.fp8", five_digits(1e-12)),
    Column("FP4", "dense_flops_per_s.fp4", five_digits(1e-12)),
    Column("link GB/s", "link_bytes_per_s", five_digits(1e-9)),
    Column("TDP W", "tdp_watts", five_digits()),
)
COLUMNS_BY_TITLE = {"Models": MODELS, "GPUs": GPUS}


def source_rows(profile: HardwareProfile) -> list[dict[str, object]]:
    """Return every value of a GPU profile with its source; the name of a value ends with its SI unit."""
    values = flatten(profile.model_dump(exclude={"provenance", "step_time"}))
    return [
        {
            "name": name,
            "value": f"{values.get(name)}",
            "basis": origin.basis,
            "date": origin.date,
            "source": origin.source,
        }
        for name, origin in profile.provenance.items()
    ]


def price_rows(gpu: str) -> list[dict[str, object]]:
    """Return the dated prices of one GPU, cheapest first."""
    prices = sorted((p for p in price_table() if p.gpu == gpu), key=lambda price: price.usd_per_gpu_hour)
    shown = ("tier", "usd_per_gpu_hour", "provider", "product", "gpus_per_instance", "date", "source")
    return [{name: getattr(price, name) for name in shown} for price in prices]

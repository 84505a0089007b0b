"""The view of `engines`: engines with their defaults, the formats that they load, and published claims."""

from capacity.report.views import units
from capacity.report.views.units import Unit, join_names, mark_unless
from capacity.report.views.view import Column, Table, View
from capacity.techniques.engine_table import Engines

ENGINES = (
    Column("engine", "engine"),
    Column("policy", mark_unless("policy", "simulated", " *"), units.TEXT),
    Column("paged", "paged", units.TEXT),
    Column("chunked", "chunked_prefill", units.TEXT),
    Column("cache", "prefix_caching", units.TEXT),
    Column("async", "async_scheduling", units.TEXT),
    Column("seqs", "max_num_seqs", units.COUNT),
    Column("tokens", "max_num_batched_tokens", units.COUNT),
    Column("memory", "gpu_memory_utilization", units.PERCENT_0),
    Column("host {time}", "host_step_s", units.MS),
    Column("sourced", "sourced_fraction", units.PERCENT_0),
)
FORMATS = (
    Column("engine", "engine"),
    Column("drafts simulated", "drafts", units.TEXT),
    Column("weights", join_names("weight_formats")),
    Column("KV cache", lambda row: ", ".join(("16-bit", *row.kv_cache_formats))),
)
CLAIMS = (
    Column("claim", "name"),
    Column("published", "{0.published:g} {0.unit}".format, units.TEXT),
    Column("ours", "ours", Unit(1)),
    Column("bound", "bound", Unit(1)),
    Column("possible", "possible", units.TEXT),
    Column("note", "note"),
)


def engines_view(answer: Engines) -> View:
    """Return the view of `engines`."""
    tables = [
        Table(f"Engines and their defaults on {answer.gpu} (* not simulated)", answer.rows, ENGINES),
        Table("Supported formats (others are rejected)", answer.rows, FORMATS),
        Table("Published single-stream claims on A100", answer.claims, CLAIMS),
    ]
    return View("", tables)

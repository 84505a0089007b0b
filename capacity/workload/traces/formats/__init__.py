"""All trace formats: the tables of `tables.toml` and each module's `FORMAT`; this package's own format is first."""

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from capacity.base.data_files import read_rows
from capacity.workload.traces.format import TraceFormat
from capacity.workload.traces.table import CsvSchema, table_format


@cache
def trace_formats() -> tuple[TraceFormat, ...]:
    """Return all trace formats. Their modules are imported when a trace is read, because most commands read none."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    tables = read_rows(Path(__file__).with_name("tables.toml"), CsvSchema).values()
    formats: list[TraceFormat] = [*map(table_format, tables), *(module.FORMAT for module in modules)]
    return tuple(sorted(formats, key=lambda entry: (entry.name != "plain", entry.name)))

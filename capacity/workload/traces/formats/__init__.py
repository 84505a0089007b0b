"""Every trace format that is known: the `FORMAT` of each module of this folder, our own table first."""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from capacity.workload.traces.format import TraceFormat


@cache
def trace_formats() -> tuple[TraceFormat, ...]:
    """Import the formats when a trace is read, and not before: most commands read none."""
    modules = (import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__))
    formats: list[TraceFormat] = [module.FORMAT for module in modules]
    return tuple(sorted(formats, key=lambda entry: (entry.name != "plain", entry.name)))

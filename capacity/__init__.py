"""Capacity planning for LLM inference: which GPUs, how many, which configuration, at what cost, and how certain::

    import capacity
    capacity.estimate("llama-3.1-70b", gpu="h100", tensor_parallel_size=4, input_len=1024, output_len=256, batch_size=8)

The functions have the names of the commands, and keywords in place of their flags.
"""

from typing import Any

from capacity.base.registry import public_names as _public_names

_HOMES = {  # the module of each public name, imported when the name is first used
    **_public_names(),
    **dict.fromkeys(("CapacityError", "DoesNotFit", "InvalidInput"), "capacity.base.errors"),
    "use_currency": "capacity.base.money",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Return a public name from the module that defines it."""
    import importlib.util
    import pkgutil

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if (
        not name.startswith("_") and importlib.util.find_spec(f"capacity.{name}") is None
    ):  # a verb of a plug-in
        from capacity.base.registry import find_verb

        if verb := find_verb(name.replace("_", "-")):
            return pkgutil.resolve_name(verb.function)
    raise AttributeError(f"module 'capacity' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, which notebooks and editors complete."""
    return __all__

"""The published package and container image of an engine's release."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capacity.deployment.engines import find_engine
from capacity.deployment.flag_table import flag_table, has_flag_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One release of an engine: its version as published, its image and its `pip` requirement, where it has them."""

    version: str
    image: str | None
    requirement: str | None


def release_of(engine: str) -> Release:
    """The release that `name@version` names, or the newest known one of `name`. Raises UnknownName, InvalidInput."""
    found = find_engine(engine)
    asked = engine.partition("@")[2] or found.label.partition("@")[2]
    number = re.match(r"v?(\d+(?:\.\d+)*)", asked)
    parts = [] if number is None else number[1].split(".")
    version = ".".join([*parts, *["0"] * (3 - len(parts))]) if parts else asked
    table = flag_table(found.name) if has_flag_table(found.name) else None
    return Release(
        version=version,
        image=None if table is None or table.image is None else table.image.format(version),
        requirement=f"{found.name}=={version}" if table is not None and table.has_package else None,
    )

"""The bill of materials of an installation, CycloneDX 1.5 as JSON: `python docs/sbom.py [FILE]`, else on stdout.

Made of what is installed beside the package: each distribution that it needs, directly or not, with version, licence
and what it needs itself. Extras that are installed are taken too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PACKAGE = "llm-capacity"


def normal(name: str) -> str:
    """A distribution's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(found: Distribution, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Names of the installed distributions that this one asks for, with the extras it asks of them."""
    for text in found.requires or ():
        requirement = Requirement(text)
        asked = ("", *extras)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in asked
        ):
            name = normal(requirement.name)
            if name != PACKAGE and _installed(name):
                yield name, frozenset(requirement.extras)


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def needed(extras: frozenset[str]) -> dict[str, list[str]]:
    """What the package with these extras needs, directly or not, and what each of those needs itself."""
    depends: dict[str, list[str]] = {}
    waiting: list[tuple[str, frozenset[str]]] = [(PACKAGE, extras)]
    while waiting:
        name, asked = waiting.pop()
        if name in depends:
            continue
        wanted = sorted(set(needs(distribution(name), asked)), key=lambda pair: pair[0])
        depends[name] = sorted({each for each, _ in wanted})
        waiting += wanted
    return depends


def bill() -> dict[str, Any]:
    """The document."""
    own = distribution(PACKAGE)
    extras = frozenset(own.metadata.get_all("Provides-Extra") or ()) - {"test", "docs", "all"}
    depends = needed(extras)
    components = {name: _component(distribution(name)) for name in sorted(depends)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**components[PACKAGE], "type": "application"}},
        "components": [part for name, part in components.items() if name != PACKAGE],
        "dependencies": [
            {
                "ref": components[name]["bom-ref"],
                "dependsOn": [components[each]["bom-ref"] for each in wanted],
            }
            for name, wanted in sorted(depends.items())
        ],
    }


def _component(found: Distribution) -> dict[str, Any]:
    name = normal(found.metadata["Name"])
    address = f"pkg:pypi/{name}@{found.version}"
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": found.version,
        "purl": address,
    }
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    if licence and len(licence) < 80 and "\n" not in licence:
        part["licenses"] = [{"license": {"name": licence}}]
    return part


if __name__ == "__main__":
    text = json.dumps(bill(), indent=2) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)

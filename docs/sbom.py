"""The bill of materials of an installation, CycloneDX 1.5 as JSON: `python docs/sbom.py [FILE]`, else on stdout.

Made of what is installed beside the package: each distribution that it needs, directly or not, with version, licence,
the hashes of its released files in requirements.txt, and what it needs itself. Extras that are installed are taken too.
The advisories in SECURITY.md become entries with the reason for which they do not apply (VEX).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

PACKAGE = "llm-capacity"
FOLDER = Path(__file__).parent
SECURITY = FOLDER.parent / "SECURITY.md"
REQUIREMENTS = FOLDER / "requirements.txt"


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
    hashes = released_hashes()
    components = {name: _component(distribution(name), hashes.get(name, ())) for name in sorted(depends)}
    content = json.dumps(components, sort_keys=True).encode()
    made = datetime.fromtimestamp(
        int(os.environ.get("SOURCE_DATE_EPOCH", datetime.now(UTC).timestamp())), UTC
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=4)}",
        "version": 1,
        "metadata": {
            "timestamp": made.isoformat(timespec="seconds"),
            "component": {**components[PACKAGE], "type": "application"},
        },
        "components": [part for name, part in components.items() if name != PACKAGE],
        "dependencies": [
            {
                "ref": components[name]["bom-ref"],
                "dependsOn": [components[each]["bom-ref"] for each in wanted],
            }
            for name, wanted in sorted(depends.items())
        ],
        "vulnerabilities": list(advisories(components)),
    }


def released_hashes() -> dict[str, list[str]]:
    """SHA-256 of the released files of each dependency (one a platform and Python), from requirements.txt."""
    hashes: dict[str, list[str]] = {}
    for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([\w.-]+)==", line):
            hashes[normal(found[1])] = own = []
        elif found := re.search(r"--hash=sha256:(\w+)", line):
            own.append(found[1])
    return hashes


def advisories(components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Advisories in the table of SECURITY.md that concern a component, each with what keeps it out."""
    for row in re.findall(
        r"^\| ([\w-]+) \| [^|]+ \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", SECURITY.read_text("utf-8"), re.M
    ):
        name, described, kept_out = normal(row[0]), row[1].strip(), row[2].strip()
        for identifier in re.findall(r"CVE-\d+-\d+", described):
            if name in components:
                analysis = {"state": "not_affected", "detail": f"{described}. Kept out by: {kept_out}"}
                if "not called" in kept_out:
                    analysis["justification"] = "code_not_reachable"
                yield {
                    "id": identifier,
                    "affects": [{"ref": components[name]["bom-ref"]}],
                    "analysis": analysis,
                }


def _component(found: Distribution, hashes: Sequence[str]) -> dict[str, Any]:
    name = normal(found.metadata["Name"])
    address = f"pkg:pypi/{name}@{found.version}"
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": found.version,
        "purl": address,
    }
    if licence := _licence(found):
        part["licenses"] = [{"license": {"name": licence}}]
    if hashes:
        part["properties"] = [{"name": "released-file:sha256", "value": each} for each in hashes]
    return part


def _licence(found: Distribution) -> str:
    """The licence as the metadata names it: an expression, a short text, or a classifier."""
    named = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    if named and len(named) < 80 and "\n" not in named:
        return named
    classifiers = [
        each for each in found.metadata.get_all("Classifier") or () if each.startswith("License ::")
    ]
    return classifiers[0].rsplit(" :: ", 1)[1] if classifiers else ""


if __name__ == "__main__":
    text = json.dumps(bill(), indent=2) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)

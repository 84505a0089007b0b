"""Version of the data of an installation: a digest of all its tables, to compare two installations."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from capacity.hardware import bundled_directory

SUFFIXES = (".toml", ".csv", ".json")
WORDS = ("verbs.json", "flags.json", "simulation_schema.json")  # no answer depends on them
_DATE = re.compile(rb"\b20\d\d-\d\d-\d\d\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """Version of the tables. `digest`: 12 hex digits of a hash of names and contents; `newest`: latest date."""

    digest: str
    files: int
    newest: str

    def __str__(self) -> str:
        return f"data {self.digest}: {self.files} tables of GPUs, engines, models and prices, latest date {self.newest}"


def data_version() -> DataVersion:
    """Return the version of the hardware profiles, engines, presets, prices and prediction errors of this installation.
    Files that the user added are not included."""
    package = Path(__file__).parents[1]
    found = (path for path in package.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    inside = [path for path in found if path.name not in WORDS]
    profiles = bundled_directory()
    named = {f"capacity/{path.relative_to(package).as_posix()}": path for path in inside}
    named |= {f"capacity/hardware_profiles/{path.name}": path for path in profiles.glob("*.toml")}
    digest = hashlib.sha256()
    newest = b""
    for name in sorted(named):
        content = named[name].read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
        newest = max(newest, *_DATE.findall(content), b"")
    return DataVersion(digest=digest.hexdigest()[:12], files=len(named), newest=newest.decode())

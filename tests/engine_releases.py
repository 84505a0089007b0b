"""Every release of every engine."""

from __future__ import annotations

from capacity.deployment.engines import engine_names
from capacity.deployment.engines.files import read_engine_file

ALL_RELEASES = [
    f"{name}@{release.version}" for name in engine_names() for release in read_engine_file(name).releases
]
NEWEST_VLLM = read_engine_file("vllm").releases[-1].version

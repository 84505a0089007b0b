"""Environment fingerprint: two processes on one machine with the same fingerprint give bit-identical results."""

import hashlib
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ARGUMENTS = 997  # points at which each function is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInputs:
    """Names and paths that tasks look up on the machine where they run: folder of GPU profiles, models, and files."""

    profiles: str | None = None
    models: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


NO_NAMED_INPUTS = NamedInputs()


def difference(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """Return a text with the first component that differs and both values; None if all are equal."""
    for name, own in ours.items():
        if theirs.get(name) != own:
            return f"{name} is {theirs.get(name, 'unknown')} on the worker and {own} here"
    return None


@lru_cache(maxsize=16)
def environment_fingerprint(named: NamedInputs = NO_NAMED_INPUTS) -> dict[str, str]:
    """Return the fingerprint of this process: a dictionary of components and their versions or digests.

    Components: the package, its data as in `--version`, its code and GPU profiles, Python, NumPy, the compiled
    engines, arithmetic, and the profiles, models and files in `named`.
    """
    from capacity.answers.data_version import data_version

    return {
        "llm-capacity": _installed_version("llm-capacity"),
        "the digest of llm-capacity's data": data_version().digest,
        "the digest of llm-capacity's code and of the GPU profiles": package_version().rpartition("+")[2],
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "NumPy": _installed_version("numpy"),
        "the version of the simulator's compiled code": _engines(),
        "the digest of floating-point results": _arithmetic(),
        **dict(_digests_of_named(named)),
    }


def _digests_of_named(named: NamedInputs) -> Iterator[tuple[str, str]]:
    from capacity.base.errors import CapacityError
    from capacity.hardware.profile_search import profile_paths
    from capacity.model import load_model

    if named.profiles is not None:
        contents = [path.read_bytes() for path in profile_paths([named.profiles])]
        yield f"the digest of GPU profiles with {named.profiles}", _digest(*contents)
    for name in named.models:
        try:
            yield f"the digest of model {name}", _digest(repr(load_model(name)).encode())
        except CapacityError:
            yield f"the digest of model {name}", "none"
    for file in named.files:
        try:
            yield f"the digest of {file}", _digest(Path(file).read_bytes())
        except (OSError, ValueError):
            yield f"the digest of {file}", "none"


def _installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _engines() -> str:
    from capacity.simulator.core.library import load

    core = load()
    if core is None:
        return "none"
    import ctypes

    core.core_version.restype = ctypes.c_char_p
    return str(core.core_version().decode())


def _arithmetic() -> str:
    """Return a digest of floating-point results and random draws that may differ between C libraries or CPUs."""
    import numpy as np

    grid = np.linspace(0.001, 30.0, ARGUMENTS)
    by_numpy = [function(grid) for function in (np.exp, np.log, np.log1p, np.sqrt, np.sin, np.tanh)]
    by_python = [function(float(x)) for function in (math.exp, math.log, math.erf, math.lgamma) for x in grid]
    rng = np.random.default_rng(0)
    drawn = [rng.exponential(size=99), rng.gamma(0.3, size=99), rng.normal(size=99), rng.zipf(1.5, size=99)]
    arrays = [*by_numpy, np.power(grid, 0.37), np.array([grid @ grid]), np.array(by_python), *drawn]
    return _digest(*(array.tobytes() for array in arrays))


def _digest(*contents: bytes) -> str:
    whole = hashlib.sha256()
    for content in contents:
        whole.update(f"{len(content)}\0".encode() + content)
    return whole.hexdigest()[:12]


@lru_cache(maxsize=1)
def package_version() -> str:
    """Return the package version with a digest of its code, its data and every hardware profile found."""
    from capacity.hardware import profile_paths

    digest = hashlib.sha256()
    package = Path(__file__).parents[2]
    files = [file for suffix in ("py", "toml", "csv", "json") for file in package.rglob(f"*.{suffix}")]
    for file in [*sorted(files), *profile_paths()]:
        digest.update(file.name.encode() + file.read_bytes())
    return f"{_installed_version('llm-capacity')}+{digest.hexdigest()[:16]}"

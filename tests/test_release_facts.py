"""Entries of vLLM releases agree with the facts of the releases' own source."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from capacity.deployment.engines import find_engine
from capacity.deployment.engines.files import read_engine_file

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
try:
    import release_facts
finally:
    sys.path.remove(str(BENCHMARKS))

TABLE = release_facts.read_table()
ENTRIES = [release.version for release in read_engine_file("vllm").releases]
RECENT = [release for release in TABLE if release_facts.release_order(release) >= (0, 16)]


def test_the_table_has_every_fact_of_every_release() -> None:
    assert tuple(TABLE) == release_facts.RELEASES
    assert all(tuple(facts) == tuple(release_facts.FACTS) for facts in TABLE.values())
    assert {release.rpartition(".")[0] for release in RECENT} == {f"0.{minor}" for minor in range(16, 34)}


@pytest.mark.parametrize("release", TABLE)
def test_entry_agrees_with_the_source_of_its_release(release: str) -> None:
    ours = release_facts.entry_facts(release)
    assert ours == {name: TABLE[release][name] for name in ours}


@pytest.mark.parametrize("release", RECENT)
def test_release_resolves_to_the_entry_of_its_own_generation(release: str) -> None:
    """The newest entry up to it; and one of its own where a fact changed from the release before it."""
    own = release.rpartition(".")[0]
    listed = [
        version
        for version in ENTRIES
        if "-" not in version and release_facts.release_order(version) <= release_facts.release_order(own)
    ]
    engine = find_engine(f"vllm@{release}")
    assert engine.version == listed[-1]
    releases = list(TABLE)
    before = releases[releases.index(release) - 1]
    compared = release_facts.entry_facts(release).keys()
    if any(TABLE[release][name] != TABLE[before][name] for name in compared):
        assert engine.version == own


def source(**files: str) -> release_facts.Source:
    paths = {name: getattr(release_facts, name) for name in files}
    return release_facts.Source("0.99", {paths[name]: text for name, text in files.items()})


@pytest.mark.parametrize(
    ("default", "found"),
    [
        ("0.9", 0.9),
        ("Field(default=0.92, gt=0, le=1)", 0.92),
        ("Field(0.92, gt=0)", 0.92),
    ],
)
def test_default_of_a_field_is_found_in_every_form(default: str, found: float) -> None:
    tree = ast.parse(f"class CacheConfig:\n    gpu_memory_utilization: float = {default}")
    assert release_facts.class_default(tree, "CacheConfig", "gpu_memory_utilization") == found
    with pytest.raises(KeyError, match="block_size"):
        release_facts.class_default(tree, "CacheConfig", "block_size")


@pytest.mark.parametrize(("default", "found"), [("0", False), ("1", True)])
def test_default_of_an_environment_variable_is_found(default: str, found: bool) -> None:
    name = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    text = f'{{"{name}": lambda: bool(int(os.getenv("{name}", "{default}")))}}'
    assert release_facts.graphs_in_budget(source(ENVIRONMENT=text)) is found
    assert release_facts.graphs_in_budget(source(ENVIRONMENT="")) is False


def test_an_unknown_form_of_a_limit_is_an_error() -> None:
    """A new release whose code has another form must not repeat the old value."""
    text = "if device_memory >= LARGE:\n    default_max_num_seqs = 1024"
    with pytest.raises(KeyError, match="device_memory >= LARGE"):
        release_facts.limits(source(ARGUMENTS=text))
    with pytest.raises(KeyError, match="largest graph"):
        release_facts.graph_max_batch(source())


def test_table_is_written_as_it_is_read(tmp_path: Path) -> None:
    release_facts.write_table(TABLE, tmp_path / "facts.csv")
    assert (tmp_path / "facts.csv").read_bytes() == release_facts.TABLE.read_bytes()

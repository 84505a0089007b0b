"""Entries of engine releases agree with the facts of the releases' own source."""

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
    import release_source
    import sglang_facts
    import vllm_facts
finally:
    sys.path.remove(str(BENCHMARKS))

VLLM, SGLANG = vllm_facts.VLLM, sglang_facts.SGLANG
TABLES = {engine.name: release_facts.read_table(engine) for engine in release_facts.ENGINES.values()}
RELEASES = [(engine, release) for engine, table in TABLES.items() for release in table]
RECENT = [
    (engine, release)
    for engine, release in RELEASES
    if engine != "vllm" or release_source.release_order(release) >= (0, 16)
]


@pytest.mark.parametrize("engine", release_facts.ENGINES.values(), ids=lambda engine: engine.name)
def test_the_table_has_every_fact_of_every_release(engine: release_source.EngineFacts) -> None:
    table = TABLES[engine.name]
    assert tuple(table) == engine.releases
    assert all(tuple(facts) == tuple(engine.facts) for facts in table.values())


def test_no_minor_release_is_missing() -> None:
    recent = {release.rpartition(".")[0] for engine, release in RECENT if engine == "vllm"}
    assert recent == {f"0.{minor}" for minor in range(16, 34)}
    assert SGLANG.releases == tuple(f"0.5.{patch}" for patch in range(4, 24))


@pytest.mark.parametrize(("engine", "release"), RELEASES)
def test_entry_agrees_with_the_source_of_its_release(engine: str, release: str) -> None:
    ours = release_facts.entry_facts(release_facts.ENGINES[engine], release)
    assert ours == {name: TABLES[engine][release][name] for name in ours}


@pytest.mark.parametrize(("engine", "release"), RECENT)
def test_release_resolves_to_the_entry_of_its_own_generation(engine: str, release: str) -> None:
    """The newest entry up to it; and one of its own where a fact changed from the release before it."""
    order = release_source.release_order
    own = release.rpartition(".")[0] if engine == "vllm" else release
    entries = [entry.version for entry in read_engine_file(engine).releases]
    listed = [version for version in entries if "-" not in version and order(version) <= order(own)]
    found = find_engine(f"{engine}@{release}")
    assert found.version == listed[-1]
    releases = list(TABLES[engine])
    if release == releases[0]:
        return
    before = releases[releases.index(release) - 1]
    facts = release_facts.ENGINES[engine]
    now, then = release_facts.entry_facts(facts, release), release_facts.entry_facts(facts, before)
    changed = {name for name in now if TABLES[engine][release][name] != TABLES[engine][before][name]}
    if changed & {name for name in now if now[name] != then[name]} - {"mamba_full_memory_ratio"}:
        assert found.version == own


def source(**files: str) -> release_source.Source:
    paths = {name: getattr(vllm_facts, name) for name in files}
    return release_source.Source("0.99", {paths[name]: text for name, text in files.items()})


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
    assert release_source.class_default(tree, "CacheConfig", "gpu_memory_utilization") == found
    with pytest.raises(KeyError, match="block_size"):
        release_source.class_default(tree, "CacheConfig", "block_size")


@pytest.mark.parametrize(("default", "found"), [("0", False), ("1", True)])
def test_default_of_an_environment_variable_is_found(default: str, found: bool) -> None:
    name = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    text = f'{{"{name}": lambda: bool(int(os.getenv("{name}", "{default}")))}}'
    assert vllm_facts.graphs_in_budget(source(ENVIRONMENT=text)) is found
    assert vllm_facts.graphs_in_budget(source(ENVIRONMENT="")) is False


def test_an_unknown_form_of_a_limit_is_an_error() -> None:
    """A new release whose code has another form must not repeat the old value."""
    text = "if device_memory >= LARGE:\n    default_max_num_seqs = 1024"
    with pytest.raises(KeyError, match="device_memory >= LARGE"):
        vllm_facts.limits(source(ARGUMENTS=text))
    with pytest.raises(KeyError, match="largest graph"):
        vllm_facts.graph_max_batch(source())


@pytest.mark.parametrize("engine", release_facts.ENGINES.values(), ids=lambda engine: engine.name)
def test_table_is_written_as_it_is_read(engine: release_source.EngineFacts, tmp_path: Path) -> None:
    release_facts.write_table(engine, TABLES[engine.name], tmp_path / "facts.csv")
    assert (tmp_path / "facts.csv").read_bytes() == engine.table.read_bytes()


MEMORY_SETTINGS = """
class ServerArgs:
    def _handle_gpu_memory_settings(self, gpu_mem):
        self.chunked_prefill_size = 2048 if gpu_mem < 20 * 1024 else 8192
        self.cuda_graph_max_bs = 8 if gpu_mem < 20 * 1024 else 64 * self.tp_size
"""


def test_memory_defaults_come_from_the_functions_of_the_release() -> None:
    files = {sglang_facts.ARGUMENTS[0]: MEMORY_SETTINGS}
    assert sglang_facts.limits(release_source.Source("0.5.99", files)) == [
        {
            "min_memory_gib": 20,
            "max_num_batched_tokens": 8192,
            "max_graph_batch": 64,
            "max_graph_batch_tp4": 256,
        },
        {"min_memory_gib": 0, "max_num_batched_tokens": 2048, "max_graph_batch": 8, "max_graph_batch_tp4": 8},
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "handle_gpu_memory_settings"),
        ("def handle_gpu_memory_settings(args):\n    args.page = args.new_setting", "new_setting"),
    ],
)
def test_an_unknown_form_of_memory_defaults_is_an_error(text: str, found: str) -> None:
    with pytest.raises(KeyError, match=found):
        sglang_facts.limits(release_source.Source("0.5.99", {sglang_facts.ARGUMENTS[0]: text}))

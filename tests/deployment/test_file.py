"""Deployment files: written, read back equal, and refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.base.errors import InvalidInput, MalformedFile
from capacity.base.external_files import MAX_BYTES
from capacity.deployment import (
    Cost,
    DeploymentFile,
    Pool,
    Traffic,
    read_deployment,
    to_toml,
    write_deployment,
)

pools = st.builds(
    Pool,
    gpu=st.text(min_size=1, max_size=20),
    tensor_parallel_size=st.integers(1, 4096),
    enable_expert_parallel=st.booleans(),
    quantization=st.none() | st.text(max_size=10),
    max_model_len=st.none() | st.integers(1, 1 << 40),
    gpu_memory_utilization=st.none() | st.floats(0, 1, exclude_min=True),
    enable_prefix_caching=st.none() | st.booleans(),
    watermark=st.floats(0, 1, exclude_max=True),
)
traffics = st.builds(
    Traffic,
    input_len=st.none() | st.integers(1, 1 << 40),
    request_rate=st.none() | st.floats(0, exclude_min=True),
    burstiness=st.floats(0, exclude_min=True),
    trace=st.none() | st.text(max_size=20),
)
deployments = st.builds(
    DeploymentFile,
    model=st.text(min_size=1, max_size=20),
    pools=st.lists(pools, min_size=1, max_size=3).map(tuple),
    traffic=traffics,
    cost=st.builds(Cost, price=st.none() | st.text(max_size=10)),
)


@given(deployments)
def test_what_is_written_reads_back_equal(deployment: DeploymentFile) -> None:
    assert DeploymentFile(**tomllib.loads(to_toml(deployment))) == deployment


def test_a_file_round_trips_and_leaves_defaults_out(tmp_path: Path) -> None:
    deployment = DeploymentFile(model="llama-3.1-8b", pools=(Pool(gpu="h100", tensor_parallel_size=2),))
    path = tmp_path / "mine.toml"
    write_deployment(deployment, path)
    assert read_deployment(path) == deployment
    assert "max_num_seqs" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "model is missing"),
        ("model = 'm'", "pools is missing"),
        ("model = 'm'\npools = []", "at least 1 item"),
        (
            "model = 'm'\n[[pools]]\ngpu = 'h100'\ntensor_paralel_size = 2",
            "did you mean 'tensor_parallel_size'",
        ),
        (
            "model = 'm'\n[[pools]]\ngpu = 'h100'\ntensor_parallel_size = 0",
            "pools.0.tensor_parallel_size is 0",
        ),
        (
            "model = 'm'\n[[pools]]\ngpu = 'h100'\ngpu_memory_utilization = 1.5",
            "is 1.5: must be less than or equal to 1",
        ),
        ("model = 'm'\n[[pools]]\ngpu = 'h100'\ngpu_memory_utilization = nan", "finite"),
        ("model = 'm'\n[[pools]]\ngpu = 'h100'\n[traffic]\nrequest_rate = -1", "traffic.request_rate is -1"),
        ("schema = 'capacity/deployment/v9'\nmodel = 'm'\n[[pools]]\ngpu = 'h100'", "capacity/deployment/v1"),
        ("model = 'm'\nmodel = 'n'", "not TOML"),
        ("[" * 100_000, "not TOML"),
        ("model = '\x00'", "not TOML"),
    ],
)
def test_a_bad_file_gets_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(MalformedFile) as caught:
        read_deployment(path)
    message = str(caught.value)
    assert complaint in message
    assert str(path) in message
    assert "\n" not in message


def test_a_missing_a_binary_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="cannot be read"):
        read_deployment(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MalformedFile, match="not UTF-8"):
        read_deployment(tmp_path / "binary.toml")
    (tmp_path / "huge.toml").write_bytes(b"#" * (MAX_BYTES["a deployment"] + 1))
    with pytest.raises(MalformedFile, match="has more than"):
        read_deployment(tmp_path / "huge.toml")


def test_the_model_of_a_pool_that_stands_alone_is_the_files() -> None:
    own = Pool(gpu="h100", model="llama-3.2-1b")
    alone = DeploymentFile(model="llama-3.1-8b", pools=(own,))
    assert (alone.model, alone.pools) == ("llama-3.2-1b", (Pool(gpu="h100"),))
    both = DeploymentFile(model="llama-3.1-8b", pools=(own, Pool(gpu="h100")))
    assert (both.model, both.pools[0].model, both.pools[1].model) == ("llama-3.1-8b", "llama-3.2-1b", None)
    assert DeploymentFile(**tomllib.loads(to_toml(both))) == both


def test_only_a_deployment_is_written_over(tmp_path: Path) -> None:
    deployment = DeploymentFile(model="llama-3.1-8b", pools=(Pool(gpu="h100"),))
    empty, notes = tmp_path / "empty.toml", tmp_path / "notes.txt"
    empty.touch()
    notes.write_text("root:x:0:0\n")
    write_deployment(deployment, empty)
    write_deployment(deployment, empty)  # now it is one
    with pytest.raises(InvalidInput, match="exists and is not a deployment file: use another path"):
        write_deployment(deployment, notes)
    assert notes.read_text() == "root:x:0:0\n"

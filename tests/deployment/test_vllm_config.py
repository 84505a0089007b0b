"""JSON options of `vllm serve`, in a pool's own words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm_pools import EAGLE, LLAMA, PRODUCER, pool

from capacity.base.errors import InvalidInput
from capacity.deployment import DeploymentFile, read_deployment, write_deployment
from capacity.deployment.vllm_config import parse_kv_transfer_config


@pytest.mark.parametrize("config", [EAGLE, json.dumps(EAGLE)])
def test_speculative_config_is_a_speculator(config: object) -> None:
    assert pool(speculative_config=config) == pool(speculator="eagle3", num_speculative_tokens=3)
    assert pool(speculative_config="{}") == pool()
    with pytest.raises(InvalidInput, match="use one of them"):
        pool(speculative_config=config, speculator="ngram")


def test_a_kv_role_is_a_pool_of_a_disaggregated_deployment(tmp_path: Path) -> None:
    consumer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_consumer"})
    assert pool(kv_transfer_config=PRODUCER).role == "prefill"
    assert pool(kv_transfer_config='{"kv_connector": "NixlConnector", "kv_role": "kv_both"}').role == "both"
    file = tmp_path / "pools.toml"
    pools = (pool(kv_transfer_config=PRODUCER), pool(kv_transfer_config=consumer))
    write_deployment(DeploymentFile(model=LLAMA, pools=pools), file)
    assert [each.role for each in read_deployment(file).pools] == ["prefill", "decode"]


def test_offloaded_bytes_are_gib_of_host_memory() -> None:
    extra = {"cpu_bytes_to_use": 3 * 2**30}
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    assert parse_kv_transfer_config(config) == {"kv_offloading_size": 3.0, "kv_offloading_backend": "native"}
    for size in (-1, True, "3G", None):
        with pytest.raises(ValueError, match="cpu_bytes_to_use of OffloadingConnector is"):
            parse_kv_transfer_config(config | {"kv_connector_extra_config": {"cpu_bytes_to_use": size}})


def test_default_sampling_parameters_are_those_of_the_requests() -> None:
    config = {"top_p": 0.9, "top_k": -1, "temperature": 0.6, "max_new_tokens": 512}
    assert pool(override_generation_config=config) == pool(top_p=0.9)
    assert pool(override_generation_config='{"frequency_penalty": 0.5}').repetition_penalty != 1
    assert pool(override_generation_config={"presence_penalty": 0.0}) == pool()
    with pytest.raises(InvalidInput, match="--top-p is 2: must be less than or equal to 1"):
        pool(override_generation_config={"top_p": 2})
    with pytest.raises(InvalidInput, match="it is not JSON"):
        pool(override_generation_config="top_p=1")

"""What stands before servers: the router of equal replicas, the proxy between prefill and decode."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import Pool
from capacity.deployment.launch_writers import launch_command
from capacity.report.fronts import proxy_command, router_command
from capacity.report.kubernetes import pod_addresses

PAIR = (
    Pool(gpu="h100", tensor_parallel_size=2, role="prefill", replicas=2),
    Pool(gpu="h100", tensor_parallel_size=4, role="decode", replicas=3),
)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_proxy_knows_every_server(engine: str) -> None:
    prefill, decode = (pod_addresses("m", pool) for pool in PAIR)
    proxy = proxy_command(engine, prefill, decode)
    said = proxy.text + "".join(text for _, text in proxy.files)
    for host in (*prefill, *decode):
        assert host.split(":")[0] in said
    assert len(decode) == 3
    for pool in PAIR:
        launch = launch_command(engine, "m", pool)
        role = {"vllm": "kv_", "sglang": f"--disaggregation-mode {pool.role}"}.get(
            engine, "cache_transceiver_config"
        )
        assert role in launch.text + "".join(text for _, text in launch.files)
    with pytest.raises(InvalidInput, match="ollama cannot separate prefill and decode; use one of vllm"):
        proxy_command("ollama", prefill, decode)


def test_the_router_line_takes_the_planned_policy() -> None:
    hosts = ("replica-0:8000", "replica-1:8000")
    aware = router_command("vllm", "prefix-aware", hosts)
    assert "--policy cache_aware" in aware.text
    assert aware.words.count("http://replica-1:8000") == 1
    other = router_command("vllm", "least-kv", hosts)
    assert "--policy" not in other.text
    assert "least-kv" in other.notes[0]

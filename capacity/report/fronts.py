"""Launch commands of the router in front of replicas and of the proxy between prefill and decode servers.

Source of the flags: SGLang's model gateway, vLLM's example proxy and `trtllm-serve disaggregated`, 2026-11.
"""

import json
from collections.abc import Callable, Sequence

from capacity.base.errors import InvalidInput
from capacity.deployment.command_words import PROXY_PORT, Launch, flag_words
from capacity.deployment.launch_writers import engine_name

POLICIES = {"round-robin": "round_robin", "prefix-aware": "cache_aware"}  # of SGLang's model gateway


def router_command(engine: str, router: str, replicas: Sequence[str]) -> Launch:
    """Return the launch command of a router (SGLang's gateway for every engine) with the routing policy `router` in
    front of identical replicas; `replicas` are their addresses (host:port)."""
    urls = [f"http://{address}" for address in replicas]
    words = ("python", "-m", "sglang_router.launch_router", "--worker-urls", *urls)
    policy = POLICIES.get(router)
    notes: tuple[str, ...] = (
        () if policy else (f"this gateway has no {router} policy; choose the most similar one it has",)
    )
    if engine.partition("@")[0] != "sglang":
        notes += ("this gateway works with any OpenAI-compatible server",)
    return Launch(words=(*words, *flag_words([("--policy", policy), ("--port", PROXY_PORT)])), notes=notes)


def proxy_command(engine: str, prefill: Sequence[str], decode: Sequence[str]) -> Launch:
    """Return the command of the proxy that sends each request through a prefill and a decode server (host:port).

    Raises UnknownName, and InvalidInput for an engine that has no proxy.
    """
    makers: dict[str, Callable[[Sequence[str], Sequence[str]], Launch]] = {
        "vllm": _vllm_proxy,
        "sglang": _sglang_proxy,
        "tensorrt-llm": _tensorrt_llm_proxy,
    }
    name = engine_name(engine)
    if name not in makers:
        raise InvalidInput(f"{name} cannot separate prefill and decode; use one of {', '.join(makers)}")
    return makers[name](prefill, decode)


def _vllm_proxy(prefill: Sequence[str], decode: Sequence[str]) -> Launch:
    words = ["python", "toy_proxy_server.py", "--port", str(PROXY_PORT)]
    for flag, addresses in (("prefiller", prefill), ("decoder", decode)):
        split = [address.rsplit(":", 1) for address in addresses]
        words += [f"--{flag}-hosts", *(host for host, _ in split)]
        words += [f"--{flag}-ports", *(port for _, port in split)]
    note = "toy_proxy_server.py is in vLLM's repository: tests/v1/kv_connector/nixl_integration"
    return Launch(words=tuple(words), notes=(note,))


def _sglang_proxy(prefill: Sequence[str], decode: Sequence[str]) -> Launch:
    words = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    for flag, addresses in (("--prefill", prefill), ("--decode", decode)):
        words += [word for address in addresses for word in (flag, f"http://{address}")]
    return Launch(words=(*words, "--host", "0.0.0.0", "--port", str(PROXY_PORT)))


def _tensorrt_llm_proxy(prefill: Sequence[str], decode: Sequence[str]) -> Launch:
    lines = ["hostname: 0.0.0.0", f"port: {PROXY_PORT}", "backend: pytorch"]
    for part, addresses in (("context_servers", prefill), ("generation_servers", decode)):
        lines += [f"{part}:", f"  num_instances: {len(addresses)}", "  urls:"]
        lines += [f"    - {json.dumps(address)}" for address in addresses]
    config = "disagg_config.yaml"
    words = ("trtllm-serve", "disaggregated", "-c", config)
    return Launch(words=words, files=((config, "\n".join(lines) + "\n"),))

"""The client's and the network's part of a latency: no engine's property, but of who measures, and from where.

A load generator's time to first token holds its own event loop and the way to the server and back, on top of what
the engine's API server takes. Each entry is a campaign of public measurements: what its times to first token hold
beyond the simulated engine, less the API server's own part (`request_latency_s` and `response_latency_s` of vLLM
0.8, 3.5 ms together).
"""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from capacity.base.errors import UnknownName

DATE = "2026-11-22"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLatency:
    """Seconds there and back together, and where they were seen."""

    name: str
    seconds: float
    source: str
    date: str = DATE


CLIENTS = (
    ClientLatency(
        name="same-machine",
        seconds=0.0,
        source="IOG runs of vLLM 0.8.5 on one H100 PCIe: 3.1 to 4.2 ms in all, which is the API server's part",
    ),
    ClientLatency(
        name="inference-perf",
        seconds=0.005,
        source="20 stages of the inference-sim/training runs (inference-perf, vLLM V1, H100, 7B to 70B, 5 to 20 "
        "requests/s): median times to first token 6.7 to 12.8 ms, in the middle 8.5, above the simulated engine",
    ),
    ClientLatency(
        name="inferencex",
        seconds=0.0065,
        source="NVIDIA's runs of the same client against TensorRT-LLM 1.3 (aisimulate issue 288, 2026-09): clients' "
        "mean times to first token 5.2 ms above the server's, which takes 2.7 ms to the executor and 2.0 ms back",
    ),
    ClientLatency(
        name="trtllm-gap-analysis",
        seconds=0.0165,
        source="served rows of TensorRT-LLM in gap-analysis runs: 10 ms each way fit them",
    ),
    ClientLatency(
        name="sglang-gap-analysis",
        seconds=0.0265,
        source="served rows of SGLang in gap-analysis runs: 15 ms each way fit them",
    ),
)

USUAL_S = 0.005
LEAST_S, MOST_S = (limit(client.seconds for client in CLIENTS) for limit in (min, max))


def client_latency(name: str) -> ClientLatency:
    """The client of that name. Raises UnknownName."""
    for client in CLIENTS:
        if client.name == name:
            return client
    raise UnknownName("client", name, [client.name for client in CLIENTS])


def _seconds(given: object) -> object:
    """A client's name as its seconds; a number, or what begins like one, as it is. Raises UnknownName."""
    if not isinstance(given, str) or not re.fullmatch(r"[a-z]{4,}[a-z-]*", given.strip()):
        return given
    return client_latency(given.strip()).seconds


LatencySeconds = Annotated[float, BeforeValidator(_seconds)]

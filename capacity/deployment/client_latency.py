"""Latency that client and network add to TTFT; it depends on the load generator and its location, not on the engine.

The TTFT of a load generator includes its own event loop and the network round trip, in addition to the engine's API
server. Each value of `client_latency.json` is the measured TTFT of public benchmarks minus the simulated engine time
and the API server time (`request_latency_s` and `response_latency_s` of vLLM 0.8, 3.5 ms together).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from capacity.base.data_files import read_rows
from capacity.base.errors import UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLatency:
    """Latency in seconds that a client and its network round trip add to TTFT, and the source of the measurement."""

    name: str
    seconds: float
    source: str
    date: str


CLIENTS = tuple(read_rows(Path(__file__).with_suffix(".json"), ClientLatency).values())
USUAL_S = 0.0014
MIN_S, MAX_S = (limit(client.seconds for client in CLIENTS) for limit in (min, max))


def client_latency(name: str) -> ClientLatency:
    """Return the client latency of this name. Raises UnknownName."""
    for client in CLIENTS:
        if client.name == name:
            return client
    raise UnknownName("client", name, [client.name for client in CLIENTS])


def _seconds(given: object) -> object:
    """Replace the name of a client by its latency in seconds; return other values unchanged. Raises UnknownName."""
    if not isinstance(given, str) or not re.fullmatch(r"[a-z]{4,}[a-z-]*", given.strip()):
        return given
    return client_latency(given.strip()).seconds


LatencySeconds = Annotated[float, BeforeValidator(_seconds)]

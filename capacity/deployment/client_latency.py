"""The client's and the network's part of a latency: no engine's property, but of who measures, and from where.

A load generator's time to first token holds its own event loop and the way to the server and back, on top of what
the engine's API server takes. Each entry is a campaign of public measurements: what its times to first token hold
beyond the simulated engine, less the API server's own part (`request_latency_s` and `response_latency_s` of vLLM
0.8, 3.5 ms together).
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
    """Seconds there and back together, and where they were seen."""

    name: str
    seconds: float
    source: str
    date: str


CLIENTS = tuple(read_rows(Path(__file__).with_suffix(".json"), ClientLatency).values())
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

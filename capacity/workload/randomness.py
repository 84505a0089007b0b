"""Independent random streams from one seed, one for each component of a workload (arrivals, lengths, ...)."""

from typing import Literal, get_args

import numpy as np

from capacity.base.errors import InvalidInput

Component = Literal[
    "arrivals",
    "lengths",
    "routing",
    "correlation",
    "thinking",
    "sessions",
    "max_tokens",
    "adapters",
    "priorities",
    "salts",
]
# A stream is identified by its position, so other components do not change it. Append new components at the end.
_STREAMS = {component: place for place, component in enumerate(get_args(Component))}


def random_stream(seed: int, component: Component) -> np.random.Generator:
    """Return the random stream of one component, the same in every process for the same seed. Raises InvalidInput."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"the seed must be a whole number of at least 0, not {seed!r}")
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=(_STREAMS[component],)))

"""Serving engines as data: limits, memory rules, host times, each with its source; one TOML file per engine.

A file lists releases from old to new; each states only what changed since the one before, so that reading it
down is reading the engine's history; `based_on` names an engine whose newest release the first one starts from.
`find_engine("vllm@0.17")` gives the newest listed release that is not newer. A source that several constants share
is written once, under [sources].
"""

from capacity.deployment.engines.engine_spec import EngineSpec, ExpertPadding, LimitRule, Origin
from capacity.deployment.engines.files import engine_names, find_engine

__all__ = ["EngineSpec", "ExpertPadding", "LimitRule", "Origin", "engine_names", "find_engine"]

"""Serving engines as data: limits, memory rules and host times, each with its source; one TOML file per engine.

A file lists releases from old to new. Each release contains only the changes from the previous one. `based_on` names
another engine, whose newest release is the base of this engine's first release. `find_engine("vllm@0.17")` returns the
newest listed release that is not newer than 0.17. [sources] contains sources that several constants share.
"""

from capacity.deployment.engines.engine_spec import EngineSpec, ExpertPadding, LimitRule, Origin
from capacity.deployment.engines.files import engine_names, find_engine

__all__ = ["EngineSpec", "ExpertPadding", "LimitRule", "Origin", "engine_names", "find_engine"]

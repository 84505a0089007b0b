"""Simulation with the scheduler of a vLLM on this machine, so that any release, fork or patch is reproduced exactly.

In: an `EngineSetup` and the location of the vLLM (`use_installed`). Out: a setup whose policy calls vLLM's scheduler,
which runs in another process. Start reading at `policy.py`; `process.py` starts that process, `worker.py` runs in it.
"""

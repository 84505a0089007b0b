"""The scheduler of a vLLM on this machine in place of ours, so that any release, fork or patch is simulated exactly.

In: an `EngineSetup` and where the vLLM is (`use_installed`). Out: a setup whose policy asks that scheduler. Start
reading at `policy.py`; `process.py` and `worker.py` are the two ends of the pipe.
"""

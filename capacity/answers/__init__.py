"""The questions about one deployment as it stands: does it fit, how fast, why, and what would users see.

In: a model's name, specs of `capacity.deployment`, a workload. Out: frozen records (`records`), whose `to_dict()` is
the command line's JSON. Here a resolved pool (`capacity.pool`) and the simulator (`capacity.simulator`), which do not
know each other, are put together. Start reading at `questions`, then `engine_setup` and `deployment_run`.
"""

"""Commands about one deployment: whether it fits, how fast it is and why, and the latencies that its users see.

In: a model name, specs of `capacity.deployment` and a workload. Out: frozen records (`records`), whose `to_dict()` is
the JSON of the command line. This package connects `capacity.pool` (engines and their memory) with
`capacity.simulator`, which do not import each other. Start reading at `setup_of`, then `deployment_run`.
"""

"""What to rent, and what to change: plan, curve, diff, tornado, advice, bills, sweeps.

In: a model, traffic, service levels, the GPUs that may be rented. Out: frozen records, the rejected candidates and why
among them. A plan is a search (`search`, `hunt`) over a `space` of deployments, cut by `bounds` and decided by
simulated `trial`s. Start reading at `plan`, then `search`.
"""

"""What to rent, and what to change: plan, cost, curve, diff, tornado, advice, sweeps; a module a verb.

In: a model, traffic, service levels, the GPUs that may be rented. Out: frozen records, the rejected candidates and why
among them. A plan is a `search` over a `space` of deployments: `options` cut by `bounds`, a `hunt` in each `family`,
decided by simulated `trial`s that `judging` holds against the service levels, then a `ranking`. Start reading at
`plan`, then `search`.
"""

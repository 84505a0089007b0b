"""What to rent, and what to change: plan, cost, curve, diff, tornado, advise, stack, sweeps, fleets, cascades.

In: a model, traffic, service levels, the GPUs that may be rented. Out: frozen records, with the rejected candidates and
the reasons. A plan searches a `space` of deployments (`search`), best first; `evaluation` simulates each candidate on
the traffic and judges it against the service levels. Start reading at `plan`, then `search.plan_search`.
"""

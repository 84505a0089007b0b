"""Planning: plan, cost, curve, diff, tornado, advise, stack, sweeps, fleets, cascades.

Input: a model, traffic, service levels, and the GPUs to choose from. Output: frozen records, including rejected
candidates with reasons. A plan searches a `space` of deployments best-first (`search`); `evaluation` simulates each
candidate on the traffic and compares it with the service levels. Start with `plan`, then `search.plan_search`.
"""

"""Capacity planning: commands plan, cost, curve, diff, tornado, advise, stack, sweep, fleet, and cascade.

Input: a model, traffic, service levels, and the candidate GPUs. Output: frozen records, including rejected candidates
with the reasons. A plan searches a `space` of deployments best-first (`search`); `evaluation` simulates each candidate
on the traffic and compares the result with the service levels. Start with `plan`, then `search.plan_search`.
"""

"""One engine with all defaults filled in: its model, GPU, limits, memory, and the cost of speculative decoding.

Input: a `Pool` as the user wrote it. Output: `ResolvedPool`, with the step model, the memory plan and all settings.
Only the simulator models requests over time. Start with `settings` and `resolve` (the only place that fills in
defaults), then `memory` (weights, activations, KV layout, blocks), `shortfall` (reasons why a model does not fit) and
`drafting` (speculative decoding).
"""

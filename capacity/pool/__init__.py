"""One engine with every default filled in: its model, GPU and limits, its memory, and what its drafts cost.

In: a `Pool` as a user wrote it. Out: `ResolvedPool`, which has the step model, the memory plan and all settings.
Knows nothing of requests over time: that is the simulator, which in turn knows no roofline. Start reading at
`settings` and `resolve` (the only place of defaults), then `memory` (weights, activations, KV layout, blocks),
`why_not` (refusals in words) and `drafting` (speculative decoding).
"""

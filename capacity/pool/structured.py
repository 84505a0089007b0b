"""Answers that follow a grammar: what compiling it and masking by it cost, as changes of the engine's own times."""

from capacity.deployment.engines import EngineSpec

# xgrammar in vLLM with Llama-3.1-8B: first tokens after 312 ms in place of 204 (pull request 10835, 2024-12)
COMPILE_S = 0.108
# a row's bitmask, filled beside the forward pass: 103.2 to 85.3 requests/s of 128 tokens at up to 800 streams, every
# one of them with the same JSON schema (pull request 26866, 2025-10; Qwen3-1.7B); before it, 37 us
MASK_S = 16e-6


def with_grammars(engine: EngineSpec, *, compiled_each: bool) -> EngineSpec:
    """The engine when every answer follows a grammar; `compiled_each`: one that no request before it had.

    The mask is host time of each sequence. Left out: that a grammar's compilation holds up others, and how long a
    grammar's states take.
    """
    return engine.model_copy(
        update={
            "host_per_sequence_s": engine.host_per_sequence_s + MASK_S,
            "request_latency_s": engine.request_latency_s + (COMPILE_S if compiled_each else 0.0),
        }
    )

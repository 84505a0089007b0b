"""What a router expects of an engine: a line through the step model, as a router could have learned it."""

from capacity.deployment.routing import Forecast
from capacity.pool.resolve import ResolvedPool
from capacity.step import StepShape, decode_shape, prefill_shape
from capacity.step.closed_form import prefill_steps

PROMPT_TOKENS = 1024  # of the prompts that it is drawn through; longer ones take longer than the line says
PROMPTS = 8
OUTSTANDING = (
    32  # requests that decode beside them, each with as long a context, or as many as there are seats
)


def forecast_of(resolved: ResolvedPool, within_s: float) -> Forecast:
    """The time of a prompt token in steps as full as the engine makes them, alone and beside decodes."""
    model, limits = resolved.step_model, resolved.limits
    rows = max(min(OUTSTANDING, limits.max_num_seqs - 1), 1)
    length = max(min(PROMPT_TOKENS, limits.max_num_batched_tokens - rows), 1)
    decode = decode_shape(rows, length, window_tokens=limits.window_tokens)

    def token_s(beside: StepShape) -> float:
        steps = prefill_steps(PROMPTS, length, limits, decode=beside)
        return sum(model.step_seconds(step) for step in steps) / (PROMPTS * length)

    alone_s = token_s(StepShape())
    first = prefill_shape(1, 1, window_tokens=limits.window_tokens)
    return Forecast(
        within_s=within_s,
        least_s=limits.request_latency_s + model.step_seconds(first),
        prompt_token_s=alone_s,
        beside_s=max(token_s(decode) - alone_s, 0.0) / rows,
    )

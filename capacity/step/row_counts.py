"""Which rows of a step an operator computes."""

from collections.abc import Callable

from capacity.step.shape import StepShape

RowCount = Callable[[StepShape], float]


def all_tokens(shape: StepShape) -> float:
    """Rows of the products inside layers: every new token of the step."""
    return shape[1] + shape[7] + shape[8]


def sampled_tokens(shape: StepShape) -> float:
    """Rows of the LM head."""
    return shape[6] + shape[7] + shape[8]


def prompt_tokens(shape: StepShape) -> float:
    """Rows of an encoder: the new tokens of prompts."""
    return shape[1]


def decoded_tokens(shape: StepShape) -> float:
    """Rows of decode, drafts included."""
    return shape[7] + shape[8]


def expanded_tokens(shape: StepShape) -> float:
    """Rows of MLA's expansion of the latent: a prefill expands its whole context, a decode row absorbs it."""
    return shape[3] + shape[7] + shape[8]

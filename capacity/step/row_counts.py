"""Number of rows of a step that an operator computes."""

from collections.abc import Callable

from capacity.step.shape import StepShape

RowCount = Callable[[StepShape], float]


def all_tokens(shape: StepShape) -> float:
    """Return the rows of the products inside layers: every new token of the step."""
    return shape[1] + shape[7] + shape[8]


def sampled_tokens(shape: StepShape) -> float:
    """Return the rows of the LM head."""
    return shape[6] + shape[7] + shape[8]


def prompt_tokens(shape: StepShape) -> float:
    """Return the rows of an encoder: the new prompt tokens."""
    return shape[1]


def decoded_tokens(shape: StepShape) -> float:
    """Return the decode rows, including drafts."""
    return shape[7] + shape[8]


def expanded_tokens(shape: StepShape) -> float:
    """Return the rows of MLA's expansion of the latent.

    A prefill expands its whole context; a decode row counts once, because it absorbs the expansion.
    """
    return shape[3] + shape[7] + shape[8]

"""Functions that count the rows of a step that an operator computes."""

from collections.abc import Callable

from capacity.step.shape import StepShape

RowCount = Callable[[StepShape], float]


def all_tokens(shape: StepShape) -> float:
    """Return the number of rows of the GEMMs inside layers: every new token of the step."""
    return shape[1] + shape[7] + shape[8]


def sampled_tokens(shape: StepShape) -> float:
    """Return the number of rows of the LM head: the tokens that are sampled."""
    return shape[6] + shape[7] + shape[8]


def prompt_tokens(shape: StepShape) -> float:
    """Return the number of rows of an encoder's layers: the new prompt tokens."""
    return shape[1]


def decoded_tokens(shape: StepShape) -> float:
    """Return the number of decoded tokens of the step, including drafts."""
    return shape[7] + shape[8]


def expanded_tokens(shape: StepShape) -> float:
    """Return the number of tokens whose MLA latent is expanded.

    A prefill expands its whole context; a decode request counts once, because it absorbs the expansion into the query.
    """
    return shape[3] + shape[7] + shape[8]

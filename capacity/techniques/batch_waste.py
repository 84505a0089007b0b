"""Waste of batches because of different request lengths, in closed form.

A static batch lasts as long as its longest request. With B requests whose outputs follow one distribution, slots are
busy for mean/E[longest of B] of the time, so continuous batching needs E[longest of B]/mean times fewer steps: 1 for
equal lengths, H(B) = 1 + 1/2 + ... + 1/B for exponential ones. This counts steps, not seconds: the speedup is larger if
attention still reads the KV cache of finished requests, and smaller if a step with fewer requests is shorter.
"""

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import IntArray


def expected_longest(lengths: IntArray, batch_size: int) -> float:
    """Return the exact mean of the longest of `batch_size` draws from `lengths`.

    It is the sum of x * increment of F(x)^B, where F is the distribution function of the lengths.
    """
    if batch_size < 1 or not len(lengths):
        raise InvalidInput(f"a batch of {batch_size} from {len(lengths)} lengths: both must be at least 1")
    ordered = np.sort(np.asarray(lengths, dtype=np.float64))
    below = np.arange(len(ordered) + 1) / len(ordered)
    return float((ordered * np.diff(below**batch_size)).sum())


def static_slot_waste(lengths: IntArray, batch_size: int) -> float:
    """Return the mean fraction of a static batch's slots that finished requests occupy: 1 - mean/E[longest]."""
    return max(0.0, 1.0 - float(np.mean(lengths)) / expected_longest(lengths, batch_size))


def slot_gain(lengths: IntArray, batch_size: int) -> float:
    """Return the decode steps of static batching divided by those of continuous batching: E[longest]/mean.

    This is the speedup if every step takes the same time. The real speedup may be larger or smaller: KV reads of
    finished requests, padding of prompts, waiting for a batch to form, and shorter steps as requests finish are left
    out.
    """
    return expected_longest(lengths, batch_size) / float(np.mean(lengths))


def exponential_slot_gain(batch_size: int) -> float:
    """Return `slot_gain` of exponentially distributed lengths: the harmonic number H(B), 2.7 for 8 and 4.1 for 32."""
    if batch_size < 1:
        raise InvalidInput(f"a batch of {batch_size}: must be at least 1")
    return float(sum(1 / k for k in range(1, batch_size + 1)))


def contiguous_kv_waste(tokens: IntArray, max_model_len: int) -> float:
    """Return the unfilled fraction of KV if each request reserves `max_model_len`: 1 - mean length / max_model_len.

    The waste during a request is larger, because the reservation fills gradually.
    """
    if max_model_len < 1 or int(np.max(tokens)) > max_model_len:
        raise InvalidInput(
            f"max_model_len {max_model_len}: must be at least the longest request, {int(np.max(tokens))} tokens"
        )
    return 1.0 - float(np.mean(tokens)) / max_model_len


def paged_kv_waste(tokens: IntArray, block_tokens: int) -> float:
    """Return the fraction of allocated KV slots that requests never fill: on average under half a block per request."""
    if block_tokens < 1:
        raise InvalidInput(f"blocks of {block_tokens} tokens: must be at least 1")
    held = -(-np.asarray(tokens) // block_tokens) * block_tokens
    return 1.0 - float(np.sum(tokens)) / float(np.sum(held))


def gamma_lengths(mean: float, coefficient_of_variation: float, count: int) -> IntArray:
    """Return `count` output lengths at equally spaced quantiles of a gamma distribution, each at least 1. With a
    coefficient of variation of 0 all are equal."""
    if not (mean >= 1 and coefficient_of_variation >= 0):
        raise InvalidInput(
            f"lengths with a mean of {mean:g} tokens and a coefficient of variation of "
            f"{coefficient_of_variation:g}: must be at least 1 and 0"
        )
    if coefficient_of_variation == 0:
        return np.full(count, round(mean))
    from scipy.stats import gamma

    shape = coefficient_of_variation**-2
    quantiles = gamma.ppf((np.arange(count) + 0.5) / count, shape, scale=mean / shape)
    return np.maximum(1, np.rint(quantiles)).astype(np.int64)

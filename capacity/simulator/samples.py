"""Parallel sampling: a request for n > 1 outputs is simulated as n requests that share the KV of their prompt."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload import PromptContent, Workload


def parallel_samples(workload: Workload, samples: int) -> Workload:
    """Return the workload with each request repeated `samples` times, as vLLM serves a request for n outputs.

    The samples share the prompt's full KV blocks through the prefix cache; each computes the partially filled block
    itself. vLLM before 0.6.4 computed a prompt once and forked its samples; the simulated engine of such a version
    finds them by `sample_of`. If a request follows another request, its samples wait for the first sample of the
    earlier request.
    """
    if workload.images is not None or workload.audio_tokens is not None:
        raise InvalidInput(
            "images cannot be simulated with several samples of a prompt: leave out the images or --num-samples"
        )
    count = len(workload)
    rows = np.repeat(np.arange(count), samples)
    content = workload.content
    if content is None:
        content = PromptContent.from_segments([[(i, int(n))] for i, n in enumerate(workload.prompt_tokens)])
    repeated = content.take(rows)
    fresh = int(max(repeated.segment_ids.max(), repeated.answer_ids.max())) + 1
    answers = repeated.answer_ids.copy()
    later = np.arange(len(rows)) % samples > 0
    answers[later] = fresh + np.arange(int(later.sum()))
    after = workload.after_request
    columns: Mapping[str, Any] = {name: values[rows] for name, values in workload.optional_columns.items()}
    if after is not None:
        columns = {**columns, "after_request": np.where(after[rows] >= 0, after[rows] * samples, -1)}
    return replace(
        workload,
        arrival_s=workload.arrival_s[rows],
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        content=replace(repeated, answer_ids=answers),
        **{**columns, "sample_of": rows},
    )

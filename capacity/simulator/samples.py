"""Parallel samples: n of the API as n requests that share their prompt's KV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload import PromptContent, Workload


def parallel_samples(workload: Workload, samples: int) -> Workload:
    """Return the workload with each request repeated `samples` times: n > 1 as vLLM serves it, one request per sample.

    The samples share the prompt's full KV blocks through the prefix cache; each computes the partially filled block
    itself. Before 0.6.4 vLLM computed a prompt once and forked its samples; such an engine finds them by `sample_of`.
    Links between requests go from first sample to first sample.
    """
    if workload.images is not None or workload.audio_tokens is not None:
        raise InvalidInput(
            "images are simulated only for prompts that share nothing: leave out the images or --num-samples"
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

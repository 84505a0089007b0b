"""Check that a workload's columns are consistent: links between requests, prompt contents and images."""

from typing import TYPE_CHECKING

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import IntArray

if TYPE_CHECKING:
    from capacity.workload.workload import Workload


def check_links(workload: "Workload") -> None:
    """Raise InvalidInput if links between requests, prompt contents or the concurrency are inconsistent."""
    after, think_s, content = workload.after_request, workload.think_s, workload.content
    if (after is None) != (think_s is None):
        raise InvalidInput("after_request and think_s must be given together")
    if after is not None and (after >= np.arange(len(workload))).any():
        at = int(np.argmax(after >= np.arange(len(workload))))
        raise InvalidInput(f"after_request of request {at} must be an earlier one, not {int(after[at])}")
    if content is not None:
        if len(content) != len(workload):
            raise InvalidInput(f"content has {len(content)} prompts for {len(workload)} requests")
        differs = content.prompt_tokens != workload.prompt_tokens
        if differs.any():
            at = int(np.argmax(differs))
            raise InvalidInput(
                f"content of request {at} has {int(content.prompt_tokens[at])} tokens, "
                f"its prompt {int(workload.prompt_tokens[at])}"
            )
    concurrency = workload.concurrency
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise InvalidInput(f"concurrency must be a whole number of at least 1, not {concurrency!r}")


def relink(after_request: IntArray, rows: IntArray) -> IntArray:
    """Return the column `after_request` of the selected requests `rows`, renumbered to their positions in `rows`.

    A request that waits for an omitted request waits for the nearest selected request before it in the chain.
    """
    place = np.full(len(after_request), -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    trigger = after_request[rows]
    while True:
        lost = (trigger >= 0) & (place[trigger] < 0)
        if not lost.any():
            return np.where(trigger < 0, -1, place[trigger])
        trigger = np.where(lost, after_request[trigger], trigger)


def check_images(workload: "Workload") -> None:
    """Raise InvalidInput if image columns are incomplete, images exceed their prompts, or prompts share content."""
    images, tokens = workload.images, workload.image_tokens
    if (images is None) != (tokens is None):
        raise InvalidInput("images and image_tokens must be given together")
    if images is None and workload.audio_tokens is None:
        return
    if workload.content is not None:
        raise InvalidInput(
            "images need prompts without shared content: remove the images, or prefixes, turns and samples"
        )
    pictured = workload.encoded_tokens
    if images is not None and tokens is not None and ((images > 0) & (tokens < 1)).any():
        raise InvalidInput(f"request {int(np.argmax((images > 0) & (tokens < 1)))} has images with 0 tokens")
    outside = pictured > workload.prompt_tokens
    if outside.any():
        at = int(np.argmax(outside))
        raise InvalidInput(
            f"request {at} has {int(pictured[at])} tokens of images and audio in a prompt of "
            f"{int(workload.prompt_tokens[at])} tokens: use a longer prompt, or fewer images"
        )

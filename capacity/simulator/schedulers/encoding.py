"""Images in vLLM V1: choice of the images to encode before a step, and the cache of encoder outputs.

An image is encoded as a whole before the first chunk that contains any of its tokens. A chunk ends before an image that
does not fit into the cache. The output stays in the cache until the last chunk of the image is computed, and after that
until its space is needed. vLLM also limits the encoder tokens per step to the size of the cache. This limit never
excludes an image that fits, because the cache contains everything that a step encodes. Audio is encoded like images.
Assumptions: the images of a prompt are at its start, one after the other, followed by its audio clip; no two prompts
share an image. Source: vLLM v1/core/encoder_cache_manager.py at 003ad86, read 2026-11-22; v1/core/sched/scheduler.py
`_try_schedule_encoder_inputs`, quoted from memory.
"""

from capacity.simulator.schedulers.sequence import Sequence, Step

Image = tuple[int, int]  # index of the request, index of its image


def is_audio(r: Sequence, image: int) -> bool:
    """Return whether image number `image` of a request is its audio clip, which counts as its last image."""
    return bool(r.audio_tokens) and image == r.images - 1


def _size(r: Sequence, image: int) -> int:
    return r.audio_tokens if is_audio(r, image) else r.image_tokens


def _images_reached(r: Sequence, computed: int, end: int) -> list[int]:
    """Return the indices of the images with tokens at positions from `computed` to `end` - 1."""
    first = min(computed // r.image_tokens, r.images) if r.image_tokens else 0
    if r.audio_tokens:
        first = min(first, r.images - 1)
    return [
        image
        for image in range(first, r.images)
        if image * r.image_tokens < end and image * r.image_tokens + _size(r, image) > computed
    ]


class ImageEncoder:
    """Cache of encoder outputs with a capacity of `tokens` tokens, which also limits the image tokens of a step."""

    def __init__(self, tokens: int) -> None:
        self.free = tokens
        self._held: dict[Image, int] = {}  # needed images: tokens
        self._kept: dict[Image, int] = {}  # images no longer needed, in order of eviction
        self._now: list[tuple[Sequence, int]] = []  # images of this step

    def begin_step(self, step: Step) -> None:
        """Set the current step; `encode` adds images to the list `step.encoded`."""
        self._now = step.encoded

    def schedulable_tokens(self, r: Sequence, computed: int, tokens: int) -> int:
        """Return how many of the next `tokens` tokens can be scheduled, up to the first image that does not fit."""
        room = self.free + sum(self._kept.values())
        for image in _images_reached(r, computed, computed + tokens):
            start, size = image * r.image_tokens, _size(r, image)
            if (r.index, image) in self._held:
                continue
            if size > room:
                return max(start - computed, 0)
            room -= size
        return tokens

    def encode(self, r: Sequence, computed: int, tokens: int) -> None:
        """Schedule the encoding of a chunk's images that are not cached; mark the chunk's images as in use."""
        for image in _images_reached(r, computed, computed + tokens):
            name, size = (r.index, image), _size(r, image)
            if name in self._held:
                continue
            if name not in self._kept:
                while self.free < size:
                    self.free += self._kept.pop(next(iter(self._kept)))
                self.free -= size
                self._now.append((r, image))
            self._held[name] = self._kept.pop(name, size)

    def free_computed(self, r: Sequence) -> None:
        """Release a request's images that are completely computed; call it after a step."""
        for image in range(r.images):
            if image * r.image_tokens + _size(r, image) > r.computed:
                break
            self._release_image((r.index, image))

    def release(self, r: Sequence) -> None:
        """Release all images of a finished or preempted request; outputs stay until the space is needed."""
        for image in range(r.images):
            self._release_image((r.index, image))

    def cancel_encoding(self, r: Sequence) -> None:
        """Remove a request's images from the current step and the cache, because this step preempts the request."""
        for image in [image for sequence, image in self._now if sequence is r]:
            self._now.remove((r, image))
            size = self._kept.pop((r.index, image), 0) or self._held.pop((r.index, image))
            self.free += size

    def _release_image(self, name: Image) -> None:
        if name in self._held:
            self._kept[name] = self._held.pop(name)

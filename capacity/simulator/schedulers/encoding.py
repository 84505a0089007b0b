"""Images under vLLM V1: which of them the encoder runs before a step, and the cache of what it made.

An image is encoded whole, before the first chunk that reaches its tokens; a chunk ends before an image for which the
cache has no room. Its output stays until the chunk that ends it is computed, and after that until its room is needed.
vLLM also has a budget of tokens a step, which is the cache's size: since the cache holds what a step encodes, the
budget admits whatever there is room for.
Audio is encoded as images are. Assumed: the images of a prompt stand at its start, one after the other, then its clip,
and no two prompts share one.
Source: vLLM v1/core/encoder_cache_manager.py at 003ad86, read 2026-11-22; v1/core/sched/scheduler.py
`_try_schedule_encoder_inputs`, quoted from memory.
"""

from __future__ import annotations

from capacity.simulator.schedulers.sequence import Sequence, Step

Image = tuple[int, int]  # request, and which of its images


def is_clip(r: Sequence, image: int) -> bool:
    """Whether this one of the request's images is its audio, the last of them."""
    return bool(r.audio_tokens) and image == r.images - 1


def _size(r: Sequence, image: int) -> int:
    return r.audio_tokens if is_clip(r, image) else r.image_tokens


def _images_reached(r: Sequence, computed: int, end: int) -> list[int]:
    """Its images of which tokens lie from `computed` until before `end`."""
    first = min(computed // r.image_tokens, r.images) if r.image_tokens else 0
    if r.audio_tokens:
        first = min(first, r.images - 1)
    return [
        image
        for image in range(first, r.images)
        if image * r.image_tokens < end and image * r.image_tokens + _size(r, image) > computed
    ]


class ImageEncoder:
    """The cache of what the encoder made, of so many `tokens`, and so what it can make for a step."""

    def __init__(self, tokens: int) -> None:
        self.free = tokens
        self._held: dict[Image, int] = {}  # needed: their tokens
        self._kept: dict[Image, int] = {}  # not needed any more, the first to go first
        self._now: list[tuple[Sequence, int]] = []  # images of this step

    def begin(self, step: Step) -> None:
        """A step is decided from here on, and takes note of what is encoded for it."""
        self._now = step.encoded

    def reach(self, r: Sequence, computed: int, tokens: int) -> int:
        """Tokens of the chunk after `computed` that can be scheduled: as many as wanted, or up to an image."""
        room = self._room
        for image in _images_reached(r, computed, computed + tokens):
            start, size = image * r.image_tokens, _size(r, image)
            if (r.index, image) in self._held:
                continue
            if (r.index, image) in self._kept:
                room -= size
                continue
            if size > room:
                return max(start - computed, 0)
            room -= size
        return tokens

    def encode(self, r: Sequence, computed: int, tokens: int) -> None:
        """A chunk that `reach` granted is scheduled: run the encoder for what it lacks, and keep the outputs."""
        for image in _images_reached(r, computed, computed + tokens):
            name, size = (r.index, image), _size(r, image)
            if name in self._held:
                continue
            if name not in self._kept:
                self._make_room(size)
                self.free -= size
                self._now.append((r, image))
            self._held[name] = self._kept.pop(name, size)

    def free_computed(self, r: Sequence) -> None:
        """Steps were computed: what lies wholly before `r.computed` is not needed any more."""
        for image in range(r.images):
            if image * r.image_tokens + _size(r, image) > r.computed:
                break
            self._let_go((r.index, image))

    def release(self, r: Sequence) -> None:
        """The request has left, or is preempted: nothing of it is needed."""
        for image in range(r.images):
            self._let_go((r.index, image))

    def take_back(self, r: Sequence) -> None:
        """The request is preempted in the step that was to encode its images: they are not."""
        for image in [image for sequence, image in self._now if sequence is r]:
            self._now.remove((r, image))
            size = self._kept.pop((r.index, image), 0) or self._held.pop((r.index, image))
            self.free += size

    @property
    def _room(self) -> int:
        return self.free + sum(self._kept.values())

    def _let_go(self, name: Image) -> None:
        if name in self._held:
            self._kept[name] = self._held.pop(name)

    def _make_room(self, size: int) -> None:
        while self.free < size:
            first = next(iter(self._kept))
            self.free += self._kept.pop(first)

"""Scale the prefix cache hits of given requests, for the sensitivity analysis.

Lengths and arrivals do not change. To lower the hits, a fraction of the prompts is replaced with unique text. To raise
them, text that is new in a fraction of the prompts is replaced with text that another prompt has after the same
prefix. Hits are counted in tokens, for an unlimited cache.
"""

from dataclasses import replace

import numpy as np

from capacity.workload import Workload
from capacity.workload.content import PromptContent

Segments = list[tuple[int, int]]
HIT_TOLERANCE = 0.01  # fraction of the hits
ATTEMPTS = 5


def ideal_hits(workload: Workload) -> np.ndarray:
    """Return the tokens of each prompt that an unlimited prefix cache has from earlier prompts and answers."""
    content = workload.content
    if content is None:
        return np.zeros(len(workload), dtype=np.int64)
    longest: dict[tuple[int, int], int] = {}  # (chain before, text) -> tokens of the text seen so far
    chains: dict[tuple[int, int, int], int] = {}  # (chain before, text, tokens) -> chain after
    hits = np.zeros(len(workload), dtype=np.int64)
    for request in range(len(workload)):
        chain, matching = 0, True
        prompt = content.request_segments(request)
        answer = (int(content.answer_ids[request]), int(workload.output_tokens[request]))
        for place, (text, tokens) in enumerate((*prompt, answer)):
            shared = longest.get((chain, text), 0)
            if matching and place < len(prompt):
                hits[request] += min(shared, tokens)
                matching = shared >= tokens
            longest[chain, text] = max(shared, tokens)
            chain = chains.setdefault((chain, text, tokens), len(chains) + 1)
    return hits


def scale_prefix_hits(workload: Workload, factor: float) -> Workload:
    """Return the requests with `factor` times the prefix cache hits, the closest of up to `ATTEMPTS` attempts.

    A changed prompt also affects the hits of later prompts, so each attempt corrects the error of the previous one,
    until it is within `HIT_TOLERANCE`.
    """
    hits = ideal_hits(workload)
    total = float(hits.sum())
    if workload.content is None or factor == 1 or not total:
        return workload
    target = aim = total * (factor - 1)
    best, best_miss = workload, abs(target)
    for _ in range(ATTEMPTS):
        changed = _with_changed_hits(workload, workload.content, hits, aim)
        change = float(ideal_hits(changed).sum()) - total
        if abs(change - target) < best_miss:
            best, best_miss = changed, abs(change - target)
        if best_miss <= HIT_TOLERANCE * total or change * target <= 0:
            break
        aim *= target / change
    return best


def _with_changed_hits(
    workload: Workload, content: PromptContent, hits: np.ndarray, wanted: float
) -> Workload:
    prompts = [content.request_segments(request) for request in range(len(workload))]
    if wanted < 0:
        altered = PromptContent.from_segments(
            _make_prompts_unique(prompts, hits, -wanted), answer_ids=content.answer_ids
        )
    else:
        missed = float(workload.prompt_tokens.sum() - hits.sum())
        altered = _Repeats(prompts, content.answer_ids.tolist()).content(wanted, missed)
    return replace(workload, content=altered)


def _make_prompts_unique(prompts: list[Segments], hits: np.ndarray, wanted: float) -> list[Segments]:
    """Replace prompts with hits by unique text, in random order, until `wanted` hits are removed."""
    # an id that no prompt uses; the wide gap avoids answer ids, which follow the prompts' ids
    fresh = max((text for prompt in prompts for text, _ in prompt), default=0) + (1 << 40)
    changed = list(prompts)
    lost = 0.0
    for request in np.random.default_rng(0).permutation(np.flatnonzero(hits)).tolist():
        if lost >= wanted:
            break
        total = sum(tokens for _, tokens in prompts[request])
        changed[request] = [(fresh, total)]
        fresh += 1
        lost += float(hits[request])
    return changed


class _Repeats:
    """Replacement of text that is new in a prompt with the text that another prompt has after the same prefix.

    A replaced text is renamed in all later prompts as well, so prompts that shared the text still share it.
    """

    def __init__(self, prompts: list[Segments], answers: list[int]) -> None:
        self._prompts = prompts
        self._answers = answers
        self._names: dict[int, int] = {}
        self._seen: set[int] = set()
        self._followed: dict[tuple[tuple[int, int], ...], int] = {}  # prefix -> last request with it

    def content(self, wanted: float, missed: float) -> PromptContent:
        """Return the prompts with about `wanted` more hit tokens; `missed`: current number of tokens without a hit."""
        share = min(wanted / missed, 1.0) if missed else 0.0
        gained = due = 0.0
        changed: list[Segments] = []
        answers: list[int] = []
        for request, original in enumerate(self._prompts):
            prompt = self._rename_texts(original)
            first = next((k for k, (text, _) in enumerate(prompt) if text not in self._seen), None)
            if first is not None:
                new = sum(tokens for _, tokens in prompt[first:])
                due += share * new
                model = self._followed.get(tuple(prompt[:first]))
                if model is not None and due >= new / 2 and gained < wanted:
                    added = self._repeat(request, original, changed[model], answers[model], first)
                    gained += added
                    due -= added
                    prompt = self._rename_texts(original)
            for depth in range(len(prompt)):
                self._followed[tuple(prompt[:depth])] = request
            answer = self._names.get(self._answers[request], self._answers[request])
            self._seen.update((answer, *(text for text, _ in prompt)))
            changed.append(prompt)
            answers.append(answer)
        return PromptContent.from_segments(changed, answer_ids=answers)

    def _rename_texts(self, prompt: Segments) -> Segments:
        return [(self._names.get(text, text), tokens) for text, tokens in prompt]

    def _repeat(self, request: int, prompt: Segments, model: Segments, answer: int, first: int) -> float:
        """Replace the new texts of `prompt` with those at the same positions in `model`, an earlier prompt, and its
        answer too if all texts match; return the number of hit tokens gained."""
        gained = 0.0
        next_text = [*(text for text, _ in model), answer][min(len(prompt), len(model))]
        for (text, tokens), (name, length) in zip(prompt[first:], model[first:]):
            if self._names.get(text, text) in self._seen:
                return gained
            self._names[text] = name
            gained += min(tokens, length)
            if tokens != length:
                return gained
        if len(prompt) <= len(model):
            self._names[self._answers[request]] = next_text
        return gained

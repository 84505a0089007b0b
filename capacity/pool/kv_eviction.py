"""KV eviction methods as data (`kv_eviction.toml`), and models whose layers keep a limited number of tokens.

A token budget is modelled as an attention window of the layers: each decode step reads the kept tokens, and they
occupy KV blocks. Step times, memory and the simulator's blocks are therefore computed as for models trained with
windows. Prompts differ: methods that score tokens prefill the whole prompt in one step and evict tokens afterwards.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from capacity.base.data_files import read_rows
from capacity.base.errors import InvalidInput, UnknownName
from capacity.base.spec import Spec
from capacity.deployment import Pool
from capacity.model import Attention, ModelSpec
from capacity.model.parts import Eviction
from capacity.step import windowed_pairs

TABLE = Path(__file__).with_name("kv_eviction.toml")


class Published(Spec):
    """One published result of a method: what was measured, on which model, and the source."""

    what: str
    model: str
    source: str
    date: str


class KvEviction(Spec):
    """One KV eviction method; `kv_eviction.toml` describes the fields."""

    name: str
    title: str
    keeps: Literal["tokens", "share", "bits"]
    scored: Literal["position", "prompt end", "all"]
    scoring_queries: int | None = Field(default=None, ge=1)
    prompt: Literal["whole", "kept"] = "whole"
    grows: bool = False
    kept_share: float | None = Field(default=None, gt=0, lt=1)
    kv_cache_dtype: str | None = None
    engines: tuple[str, ...] = ()
    note: str = ""
    published: tuple[Published, ...]

    @property
    def eviction_point(self) -> Eviction:
        """Return from when a request holds only its token budget: always, after its prompt, or after scoring."""
        if self.prompt == "kept":
            return "always"
        return "after scoring" if self.scored == "all" else "after prompt"

    def kept_tokens(self, context_tokens: int, budget_tokens: int) -> int:
        """Return the mean number of tokens of a context that each layer keeps."""
        if self.keeps == "tokens":
            return min(context_tokens, budget_tokens)
        return context_tokens if self.kept_share is None else max(round(context_tokens * self.kept_share), 1)

    def prompt_pairs(self, prompt_tokens: int, kept_tokens: int) -> int:
        """Return the number of query-key pairs in the prefill of a prompt whose queries see only kept tokens."""
        if self.keeps == "tokens":
            return windowed_pairs(prompt_tokens, 0, kept_tokens)
        return round(prompt_tokens * (prompt_tokens + 1) / 2 * (self.kept_share or 1.0))

    def scored_pairs(self, prompt_tokens: int) -> int:
        """Return the number of query-key pairs whose attention scores are computed a second time to select tokens.

        This is necessary because FlashAttention does not return its scores.
        """
        if self.scored == "position":
            return 0
        queries = prompt_tokens if self.scored == "all" else min(self.scoring_queries or 1, prompt_tokens)
        return queries * prompt_tokens - queries * (queries - 1) // 2


@lru_cache(maxsize=1)
def kv_evictions() -> dict[str, KvEviction]:
    """Return all eviction methods of the package. Raises MalformedFile."""
    return read_rows(TABLE, KvEviction)


def find_eviction(name: str) -> KvEviction:
    """Return the eviction method of this name. Raises UnknownName."""
    known, key = kv_evictions(), name.strip().lower().replace("_", "-")
    if key not in known:
        raise UnknownName("KV eviction method", name, known)
    return known[key]


def evict_to_budget(model: ModelSpec, pool: Pool) -> ModelSpec:
    """Return the model with every layer limited to the pool's token budget. Raises InvalidInput."""
    whole = map_attention(
        model,
        lambda own: own if own.eviction == "none" else replace(own, window_tokens=None, eviction="none"),
    )
    if pool.kv_eviction is None:
        return whole
    method = find_eviction(pool.kv_eviction)
    _check(method, whole, pool)
    kept: Mapping[str, Any] = {"window_tokens": pool.kv_budget, "eviction": method.eviction_point}
    return map_attention(whole, lambda mixer: replace(mixer, **kept))


def map_attention(model: ModelSpec, changed: Callable[[Attention], Attention]) -> ModelSpec:
    """Return the model with its attention layers replaced by `changed(layer)`; the same object if no layer changes."""
    groups = tuple(
        replace(group, mixer=changed(group.mixer)) if isinstance(group.mixer, Attention) else group
        for group in model.layer_groups
    )
    return model if groups == model.layer_groups else replace(model, layer_groups=groups)


def keeps_whole_prompts(model: ModelSpec) -> bool:
    """Return whether the layers hold the KV of a whole prompt before they evict tokens."""
    return any(
        isinstance(group.mixer, Attention) and group.mixer.window_tokens and group.mixer.sees_whole_prompt
        for group in model.layer_groups
    )


def _check(method: KvEviction, model: ModelSpec, pool: Pool) -> None:
    """Raise InvalidInput for an invalid token budget or a setting that does not support eviction."""
    flag = f"--kv-eviction {method.name}"
    if method.keeps == "bits":
        raise InvalidInput(
            f"{flag} is a KV format that no supported engine has. Use `capacity kv --eviction {method.name}` for "
            "its bytes and steps, or --kv-cache-dtype for formats that engines have."
        )
    if method.keeps == "share":
        raise InvalidInput(
            f"{flag} keeps a fraction of every context and needs a checkpoint trained for it. Use `capacity kv "
            f"--eviction {method.name}` for its bytes and steps, or a method with a token budget (snapkv, h2o, "
            "...)."
        )
    if pool.kv_budget is None:
        raise InvalidInput(
            f"{flag} needs a budget: add --kv-budget, the number of tokens that every layer keeps per request"
        )
    if pool.enable_prefix_caching:
        raise InvalidInput(
            f"{flag} with --enable-prefix-caching: the prefixes of other requests would need the evicted tokens; "
            "leave one of them out"
        )
    if pool.enable_chunked_prefill and method.prompt == "whole":
        raise InvalidInput(
            f"{flag} with --enable-chunked-prefill: tokens are selected after the whole prompt is computed in "
            "one step; leave one of them out"
        )
    full = [
        isinstance(group.mixer, Attention)
        and group.mixer.window_tokens is None
        and group.mixer.causal
        and not (group.mixer.crossed or group.mixer.cross)
        for group in model.layer_groups
    ]
    if not all(full):
        raise InvalidInput(
            f"{flag}: {model.name} has layers with windows, latents or recurrent states. Eviction is modelled "
            "only for models whose layers all attend to the whole context with KV heads: leave it out"
        )


def eviction_notes(pool: Pool, engine: str) -> tuple[str, ...]:
    """Return the notes on the pool's KV eviction for an answer; empty without eviction."""
    if pool.kv_eviction is None:
        return ()
    method = find_eviction(pool.kv_eviction)
    has = (
        f"{engine} implements it in part: {method.note}"
        if engine in method.engines
        else f"{engine} has no flag for it (only research code on HF transformers has it), so this estimate is "
        "hypothetical"
    )
    on_top = (
        "; this estimate counts generated tokens in the budget, but the method keeps them in addition"
        if method.grows
        else ""
    )
    quality = method.published[0]
    return (
        f"KV eviction by {method.name}, {pool.kv_budget:,} tokens per request kept in every layer: {has}{on_top}",
        f"not lossless; published: {quality.what} ({quality.model}; {quality.source}, {quality.date})",
    )

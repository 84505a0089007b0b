"""Examples to begin with, as links: a page and the values of its widgets."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlencode

from capacity_app.pages import PAGES


@dataclass(frozen=True, kw_only=True)
class Preset:
    """`query` holds the widgets that are not at their defaults, as they stand in the URL."""

    title: str
    page: str
    query: dict[str, str] = field(default_factory=dict)

    @property
    def href(self) -> str:
        """The link, relative to any page."""
        path = "./" if self.page == PAGES[0].name else self.page
        return f"{path}?{urlencode(self.query)}"


PRESETS = (
    Preset(title="8B chat on one H100", page="estimate"),
    Preset(
        title="70B chat on four H100",
        page="estimate",
        query={"model": "llama-3.1-70b", "tp": "4", "batch": "32"},
    ),
    Preset(
        title="DeepSeek-V3 on eight H200",
        page="fit",
        query={"model": "deepseek-v3", "gpu": "h200-sxm-141gb", "tp": "8", "ep": "true", "kv": "fp8"},
    ),
    Preset(
        title="gpt-oss-120b with long documents",
        page="fit",
        query={"model": "gpt-oss-120b", "gpu": "h200-sxm-141gb", "isl": "32000", "osl": "1000"},
    ),
    Preset(
        title="Qwen3-32B in FP8 for retrieval",
        page="estimate",
        query={"model": "qwen3-32b", "gpu": "h200-sxm-141gb", "weights": "fp8", "isl": "8000", "osl": "300"},
    ),
    Preset(
        title="Static against continuous batching",
        page="simulate",
        query={"rate": "10", "sim_beside": "static batching"},
    ),
    Preset(
        title="Conversations behind a prefix-aware router",
        page="simulate",
        query={
            "sim_arrivals": "conversations",
            "sim_replicas": "4",
            "sim_router": "prefix-aware",
            "rate": "8",
        },
    ),
    Preset(title="A GPU of one's own or an API", page="cost", query={"model": "llama-3.3-70b", "tp": "4"}),
    Preset(title="What each technique is worth on an 8B", page="stack"),
    Preset(
        title="An 8B before a 70B",
        page="cascade",
        query={"model": "llama-3.1-70b", "tp": "4", "rate": "20", "casc_model": "llama-3.1-8b"},
    ),
    Preset(
        title="L40S for short prompts, H100 for long ones",
        page="fleet",
        query={"rate": "40", "fleet_cv": "2", "fleet_ttft": "500"},
    ),
    Preset(
        title="MTP for DeepSeek-V3",
        page="speculation",
        query={
            "model": "deepseek-v3",
            "gpu": "h200-sxm-141gb",
            "tp": "8",
            "spec_method": "mtp",
            "spec_batch": "1",
        },
    ),
)

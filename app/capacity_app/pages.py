"""The pages, in the order of the menu. A page of its own is a script in `app_pages/` and an entry here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "app_pages"


@dataclass(frozen=True, kw_only=True)
class PageEntry:
    """`name` is the script's name and the page's path in the URL."""

    name: str
    title: str
    icon: str
    help: str

    @property
    def path(self) -> Path:
        """The script."""
        return FOLDER / f"{self.name}.py"


PAGES = (
    PageEntry(
        name="fit",
        title="Fit",
        icon=":material/memory:",
        help="Does it fit? Memory of each GPU against what the engine may use, and on which GPUs else it would.",
    ),
    PageEntry(
        name="estimate",
        title="Estimate",
        icon=":material/speed:",
        help="How fast and how dear? Latency, throughput and cost with intervals, what bounds them, what would help.",
    ),
    PageEntry(
        name="simulate",
        title="Simulate",
        icon=":material/play_circle:",
        help="What would users see? Requests replayed by the engine's rules, beside other ways of batching.",
    ),
    PageEntry(
        name="plan",
        title="Plan",
        icon=":material/fact_check:",
        help="What to rent? The cheapest deployments that meet a service level, ranked, with what was turned down.",
    ),
    PageEntry(
        name="cost",
        title="Cost",
        icon=":material/payments:",
        help="What does it cost? The bill, an API beside it, replicas by the hour, and what the bill hangs on.",
    ),
    PageEntry(
        name="speculation",
        title="Speculation",
        icon=":material/bolt:",
        help="Does speculative decoding pay? Over acceptance, draft length, way of drafting and batch size.",
    ),
    PageEntry(
        name="validate",
        title="Validate",
        icon=":material/rule:",
        help="How far off is it? Your measurements or your server's benchmark beside the prediction.",
    ),
    PageEntry(
        name="models_and_gpus",
        title="Models & GPUs",
        icon=":material/table:",
        help="Every model and GPU that is known, with where each number comes from.",
    ),
)

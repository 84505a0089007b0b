"""Sessions of the dashboard without a browser: streamlit's own protocol over a WebSocket, as a tab speaks it."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from capacity_app.error_display import INTERNAL_ERROR

VIEWS: tuple[tuple[str, str], ...] = (
    ("", "model=llama-3.1-8b&gpu=h100-sxm-80gb"),
    ("", "model=llama-3.1-70b&tp=4"),
    ("estimate", "model=llama-3.1-8b&gpu=h100-sxm-80gb&isl=1000&osl=100"),
    ("estimate", "model=qwen3-30b-a3b&gpu=h200-sxm-141gb&isl=2000&osl=200"),
    ("simulate", "model=llama-3.1-8b&rate=10&isl=500&osl=50"),
    ("speculation", "model=llama-3.1-8b"),
    ("cost", "model=llama-3.1-8b&rate=8"),
    ("kv", "model=llama-3.1-8b"),
    ("cascade", "model=llama-3.1-8b"),
    ("compare", "model=llama-3.1-8b&rate=8"),
    ("models_and_gpus", ""),
    ("estimate", "model=<script>&isl=1e9&tp=9999"),
)
LONGEST_VIEW_S = 300.0
REFUSED = "computations are already waiting"


@dataclass
class Tab:
    """One session. Of the latest view, `seen` counts elements by kind; `texts` are alerts, `metrics` figures."""

    address: str
    seen: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    metrics: list[tuple[str, str]] = field(default_factory=list)
    reruns: dict[str, float] = field(default_factory=dict)
    _socket: Any = None
    _where: tuple[str, str] = ("", "")
    _page_hash: str = ""
    _idle: bool = False

    async def open(self) -> Tab:
        """Have a session."""
        from websockets.asyncio.client import connect

        place = self.address.removeprefix("http://")
        self._socket = await connect(
            f"ws://{place}/_stcore/stream",
            subprotocols=["streamlit"],
            origin=self.address,
            max_size=None,
            open_timeout=LONGEST_VIEW_S,
            ping_interval=None,
        )  # type: ignore[call-overload]
        return self

    async def close(self) -> None:
        """As a tab is closed."""
        await self._socket.close()

    async def view(self, page: str, query: str) -> float:
        """Show a page until all of its work is done; seconds. Raises TimeoutError."""
        began_s = time.monotonic()
        self._where = (page, query)
        self._clear()
        await self._ask()
        async with asyncio.timeout(LONGEST_VIEW_S):
            while not (self._idle and not self.reruns):
                await self.hear()
        return time.monotonic() - began_s

    def _clear(self) -> None:
        for collected in (self.seen, self.texts, self.metrics, self.reruns):
            collected.clear()

    def wrong(self) -> list[str]:
        """What no view should show, or be without."""
        found = [text for text in self.texts if INTERNAL_ERROR in text]
        if self.seen["exception"]:
            found.append("an exception")
        if not self.seen["metric"] and not self.seen["dataframe"] and not self.texts:
            found.append(f"nothing to see: {dict(self.seen)}")
        return found

    async def begin(self, page: str, query: str, for_s: float) -> None:
        """Show a page for so long, whatever is under way then."""
        self._where = (page, query)
        await self._ask()
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            await self.hear()

    async def _ask(self, fragment: str = "") -> None:
        from streamlit.proto.BackMsg_pb2 import BackMsg

        message = BackMsg()
        state = message.rerun_script
        page, state.query_string = self._where
        if fragment:  # as a browser does: a rerun names the page by its hash
            state.page_script_hash, state.fragment_id, state.is_auto_rerun = self._page_hash, fragment, True
        else:
            state.page_name = page
        self._idle = False
        await self._socket.send(message.SerializeToString())

    async def hear(self) -> None:
        """The next message; where none comes within the shortest interval, what a fragment's timer asks."""
        from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

        try:
            raw = await asyncio.wait_for(self._socket.recv(), min(self.reruns.values(), default=1.0))
        except TimeoutError:
            for fragment in list(self.reruns):
                await self._ask(fragment)
            return
        message = ForwardMsg.FromString(raw)
        kind = message.WhichOneof("type")
        if kind == "new_session" and not message.metadata.run.fragment_ids:
            self._clear()
            self._idle = False
        elif kind == "navigation":
            self._page_hash = message.navigation.page_script_hash
        elif kind == "auto_rerun":
            self.reruns[message.auto_rerun.fragment_id] = message.auto_rerun.interval
        elif kind == "stop_auto_rerun":
            for fragment in message.stop_auto_rerun.fragment_ids:
                self.reruns.pop(fragment, None)
        elif kind == "script_finished":
            self._idle = message.script_finished != message.FINISHED_EARLY_FOR_RERUN
        elif kind == "delta":
            element = message.delta.new_element
            what = element.WhichOneof("type") or "block"
            self.seen[what] += 1
            if what == "alert":
                self.texts.append(element.alert.body)
            elif what == "metric":
                self.metrics.append((element.metric.label, element.metric.body))


@dataclass
class Soaked:
    """What the sessions saw: the time of each view, how many views were refused for load, and what was wrong.

    `figures` are the metrics of the first view of each link; a later view with others is wrong.
    """

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    figures: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)

    def add(self, link: tuple[str, str], seconds: float, tab: Tab) -> None:
        """Record a view of a link that took so long."""
        self.seconds.append(seconds)
        if any(REFUSED in text for text in tab.texts):
            self.refused += 1
            return
        wrong = tab.wrong()
        if self.figures.setdefault(link, list(tab.metrics)) != tab.metrics:
            wrong.append(f"other figures than before: {tab.metrics}, {self.figures[link]}")
        self.wrong.extend(f"{link[0]}?{link[1]}: {each}" for each in wrong)

    def summary(self) -> str:
        """Return the counts and the percentiles of the times in one line."""
        median, p95, slowest = (
            statistics.median(self.seconds),
            percentile(self.seconds, 95),
            max(self.seconds),
        )
        return (
            f"{len(self.seconds)} views of {len(self.figures)} links, {self.refused} refused, median {median:.2f} s, "
            f"p95 {p95:.2f} s, slowest {slowest:.1f} s, wrong={self.wrong}"
        )


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile of at least two values."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def browse(address: str, until_s: float, seed: int, pause_s: float, soaked: Soaked) -> None:
    """One visitor: opens a link in a new tab and looks at it for `pause_s` on average; closes some while they load."""
    rng = random.Random(seed)
    await asyncio.sleep(rng.uniform(0.0, pause_s))
    while time.monotonic() < until_s and len(soaked.wrong) < 10:
        page, query = rng.choice(VIEWS)
        query = query.replace("osl=", f"osl={rng.randrange(1, 9)}")
        tab = Tab(address)
        try:
            await tab.open()
            if rng.random() < 0.1:
                await tab.begin(page, query, rng.uniform(0.0, 2.0))
            else:
                soaked.add((page, query), await tab.view(page, query), tab)
                await asyncio.sleep(rng.uniform(0.2, 1.8) * pause_s)
            await tab.close()
        except Exception as error:
            soaked.wrong.append(f"{page}?{query}: {type(error).__name__}: {error}")


async def visitors(address: str, count: int, until_s: float, pause_s: float, soaked: Soaked) -> None:
    """So many at once."""
    await asyncio.gather(*(browse(address, until_s, seed, pause_s, soaked) for seed in range(count)))


async def hold(address: str, page: str, query: str) -> None:
    """One tab that says when work has begun for it, and stays."""
    tab = await Tab(address).open()
    await tab.begin(page, query, 0.0)
    said = False
    while True:
        await tab.hear()
        if tab.reruns and not said:
            print("at work", flush=True)
            said = True


def main(words: Sequence[str]) -> None:
    """`python dashboard_sessions.py ADDRESS COUNT SECONDS PAUSE_S`, or `hold ADDRESS PAGE QUERY`."""
    if words[0] == "hold":
        asyncio.run(hold(*words[1:]))
    soaked, until_s = Soaked(), time.monotonic() + float(words[2])
    asyncio.run(visitors(words[0], int(words[1]), until_s, float(words[3]), soaked))
    print(soaked.summary())


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])

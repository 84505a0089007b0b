"""Sessions of the dashboard without a browser: streamlit's own protocol over a WebSocket, as a tab speaks it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

VIEWS: tuple[tuple[str, str], ...] = (
    ("", "model=llama-3.1-8b&gpu=h100"),
    ("", "model=llama-3.1-70b&tp=4"),
    ("estimate", "model=llama-3.1-8b&gpu=h100&isl=1000&osl=100"),
    ("estimate", "model=qwen3-30b-a3b&gpu=h200&isl=2000&osl=200"),
    ("simulate", "model=llama-3.1-8b&rate=10&isl=500&osl=50"),
    ("speculation", "model=llama-3.1-8b"),
    ("cost", "model=llama-3.1-8b&rate=8"),
    ("models_and_gpus", ""),
    ("estimate", "model=<script>&isl=1e9&tp=9999"),
)
LONGEST_VIEW_S = 300.0


@dataclass
class Tab:
    """One session. `seen` counts elements of the latest view by their kind; `texts` are those of its alerts."""

    address: str
    seen: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)
    reruns: dict[str, float] = field(default_factory=dict)
    _socket: Any = None
    _where: tuple[str, str] = ("", "")
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
        )  # type: ignore[call-overload]
        return self

    async def close(self) -> None:
        """As a tab is closed."""
        await self._socket.close()

    async def view(self, page: str, query: str) -> float:
        """Show a page until all of its work is done; seconds. Raises TimeoutError."""
        began_s = time.monotonic()
        self._where = (page, query)
        self.seen.clear()
        self.texts.clear()
        self.reruns.clear()
        await self._ask()
        async with asyncio.timeout(LONGEST_VIEW_S):
            while not (self._idle and not self.reruns):
                await self.hear()
        return time.monotonic() - began_s

    def wrong(self) -> list[str]:
        """What no view should show, or be without."""
        found = [text for text in self.texts if "went wrong" in text]
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
        state.page_name, state.query_string = self._where
        state.fragment_id, state.is_auto_rerun = fragment, bool(fragment)
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
            self.reruns.clear()
            self.seen.clear()
            self.texts.clear()
            self._idle = False
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


@dataclass
class Soaked:
    """What sessions have seen: views, the slowest, and what was wrong."""

    views: int = 0
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


async def browse(address: str, until_s: float, seed: int, soaked: Soaked) -> None:
    """One visitor: a link in a new tab, looked at for a while; some are closed while all is under way."""
    rng = random.Random(seed)
    while time.monotonic() < until_s and len(soaked.wrong) < 10:
        page, query = rng.choice(VIEWS)
        query = query.replace("osl=", f"osl={rng.randrange(1, 9)}")
        tab = Tab(address)
        try:
            await tab.open()
            if rng.random() < 0.1:
                await tab.begin(page, query, rng.uniform(0.0, 2.0))
            else:
                soaked.slowest_s = max(soaked.slowest_s, await tab.view(page, query))
                soaked.views += 1
                soaked.wrong.extend(f"{page}?{query}: {wrong}" for wrong in tab.wrong())
                await asyncio.sleep(rng.uniform(1.0, 8.0))
            await tab.close()
        except Exception as error:
            soaked.wrong.append(f"{page}?{query}: {type(error).__name__}: {error}")


async def visitors(address: str, count: int, until_s: float, soaked: Soaked) -> None:
    """So many at once."""
    await asyncio.gather(*(browse(address, until_s, seed, soaked) for seed in range(count)))


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
    """`python dashboard_sessions.py ADDRESS COUNT SECONDS`, or `hold ADDRESS PAGE QUERY`."""
    if words[0] == "hold":
        asyncio.run(hold(*words[1:]))
    soaked = Soaked()
    asyncio.run(visitors(words[0], int(words[1]), time.monotonic() + float(words[2]), soaked))
    print(soaked)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])

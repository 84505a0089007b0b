"""Agentic coding sessions, one per line; each request waits for the previous one and extends an earlier prompt."""

import heapq
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.content import PromptContent, fresh_ids
from capacity.workload.sessions import SESSIONS_START_AT_ONCE
from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.json_lines import json_number, json_tokens
from capacity.workload.traces.lines import TraceLines, short_repr
from capacity.workload.traces.records import json_records
from capacity.workload.traces.table import as_ints
from capacity.workload.workload import Workload

_TIMES, _COUNTS = ("arrival_s", "think_s"), ("prompt_tokens", "output_tokens", "session", "after_request")
_KEYS = ("id", "cols", "req", "block_size", "tool_tokens", "system_tokens")
_COLUMNS = ("t", "in", "out", "prefix_parent", "prefix_blocks", "api_time", "think_time", "subagent")


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Read sessions as a closed loop: a request follows a think time after the previous request of its thread.

    A subagent's first request follows the latest request of the main thread. Duplicate sessions and requests without a
    response are skipped. With `concurrent_sessions`, this many users replay one session after another; the next session
    is replayed by the user who finished first in the recording. Otherwise all sessions start at 0. The recording does
    not show blocks that sessions share. So sessions with equal `tool_tokens` (and `system_tokens`) are assumed to share
    the tools (and the system prompt) at the start of their first large prompt. Raises MalformedFile.
    """
    assert isinstance(first, JsonLines)
    limit, users = options.limit, options.concurrent_sessions
    if users is not None and users < 1:
        raise InvalidInput(f"concurrent_sessions must be at least 1, not {users}")
    rows = _Sessions(lines, users)
    for record in json_records(lines, first):
        rows.add(record)
        lines.count_row(rows.count)
        if limit is not None and rows.count >= limit:
            break
    workload = rows.workload(options.name)
    return workload if limit is None else workload.head(limit)


class _Sessions:
    """Collects the requests of all sessions while a trace is read."""

    def __init__(self, lines: TraceLines, concurrent_sessions: int | None) -> None:
        self.lines = lines
        self.users: list[tuple[float, int, int]] | None = None  # (free at, user, last request)
        if concurrent_sessions is not None:
            self.users = [(0.0, user, -1) for user in range(concurrent_sessions)]
        self.sessions = self.duplicates = self.unanswered = 0
        self.texts: dict[object, int] = {}
        self.columns: dict[str, array[Any]] = {name: array("d") for name in _TIMES}
        self.columns |= {name: array("q") for name in _COUNTS}
        self.segment_ids = array("q")
        self.segment_tokens = array("q")
        self.offsets = array("q", [0])

    @property
    def count(self) -> int:
        return len(self.columns["arrival_s"])

    def add(self, record: Mapping[str, object]) -> None:
        lines = self.lines
        if missing := [key for key in _KEYS if key not in record]:
            lines.reject(f"has no {missing[0]!r}; it has {short_repr(', '.join(map(str, record)))}")
        if record.get("dup_of") is not None:
            self.duplicates += 1
            return
        columns, requests = record["cols"], record["req"]
        if not isinstance(columns, list) or any(column not in columns for column in _COLUMNS):
            lines.reject(f"cols {short_repr(columns)} must name {', '.join(_COLUMNS)}")
        if not isinstance(requests, list):
            lines.reject(f"req {short_repr(requests)} is not a list of requests")
        positions = [columns.index(column) for column in _COLUMNS]
        picked = []
        for index, row in enumerate(requests):
            if not isinstance(row, list) or len(row) != len(columns):
                lines.reject(f"req {index} is not a list of {len(columns)} values: {short_repr(row)}")
            picked.append([row[position] for position in positions])
        self._add_requests(record, picked)
        self.sessions += 1

    def _add_requests(self, record: Mapping[str, object], requests: list[list[object]]) -> None:
        lines = self.lines
        start_s, user, previous = heapq.heappop(self.users) if self.users else (0.0, -1, -1)
        begun = _Session(self, record)
        end_s = start_s
        last = previous
        threads: dict[str | None, tuple[int, float]] = {}  # latest request of each, and its completion time
        for index, (t, prompt, output, parent, blocks, api_time, think, thread) in enumerate(requests):
            where = f"req {index} "
            if not isinstance(thread, str | None):
                lines.reject(f"{where}subagent {short_repr(thread)} is not a name")
            sent_s = json_number(lines, where + "t", t)
            prompt_tokens = json_tokens(lines, where + "in", prompt)
            output_tokens = json_tokens(lines, where + "out", output)
            begun.add_prompt(where, prompt_tokens, parent, blocks, main=thread is None)
            if not prompt_tokens or not output_tokens:
                self.unanswered += 1
                continue
            before, answered_s = threads.get(thread if thread in threads else None, (previous, 0.0))
            took_s = 0.0 if api_time is None else json_number(lines, where + "api_time", api_time)
            recorded = thread in threads and think is not None
            think_s = (
                json_number(lines, where + "think_time", think) if recorded else max(0.0, sent_s - answered_s)
            )
            threads[thread] = (self.count, sent_s + took_s)
            if thread is None or last == previous:
                last = self.count
            end_s = max(end_s, start_s + sent_s + took_s)
            waits_s = think_s if before >= 0 else 0.0
            row = (start_s + sent_s, waits_s, prompt_tokens, output_tokens, self.sessions, before)
            for column, value in zip(self.columns.values(), row, strict=True):
                column.append(value)
            self.segment_ids.extend([text for text, _ in begun.prompts[-1]])
            self.segment_tokens.extend([tokens for _, tokens in begun.prompts[-1]])
            self.offsets.append(len(self.segment_ids))
        if self.users is not None:
            heapq.heappush(self.users, (end_s, user, last))

    def text_number(self, key: object) -> int:
        """Return the id of the text for this key; equal keys have equal ids."""
        return self.texts.setdefault(key, len(self.texts))

    def workload(self, name: str) -> Workload:
        """Return the requests as a workload, with a notice of skipped requests."""
        notices: list[str] = []
        if self.duplicates:
            notices.append(f"{self.duplicates:,} duplicate sessions skipped")
        if self.unanswered:
            notices.append(f"{self.unanswered:,} requests without prompt or answer (0 tokens) skipped")
        if not self.count:
            self.lines.reject("the file has no requests with prompt and answer")
        if self.users is None and self.sessions > 1:
            notices.append(
                f"all {self.sessions:,} {SESSIONS_START_AT_ONCE}: use --trace-sessions-per-s to start them at a rate"
            )
        notices.append("sessions with equally long tools and system prompts are assumed to share them")
        ids = as_ints(self.segment_ids)
        columns: Mapping[str, Any] = {
            name: np.frombuffer(values, dtype=values.typecode) for name, values in self.columns.items()
        }
        return Workload.sort_arrivals(
            **columns,
            content=PromptContent(
                offsets=as_ints(self.offsets),
                segment_ids=ids,
                segment_tokens=as_ints(self.segment_tokens),
                answer_ids=fresh_ids(ids, self.count),
            ),
            name=name,
            source=self.lines.path,
            notices=tuple(notices),
            remark=False,
        )


class _Session:
    """Prompts of one session. Each starts with a part of an earlier prompt and continues with new text."""

    def __init__(self, sessions: _Sessions, record: Mapping[str, object]) -> None:
        self._sessions = sessions
        self._lines = sessions.lines
        self._session = sessions.sessions
        self._block_tokens = json_tokens(self._lines, "block_size", record["block_size"])
        self._tool_tokens = json_tokens(self._lines, "tool_tokens", record["tool_tokens"])
        self._system_tokens = json_tokens(self._lines, "system_tokens", record["system_tokens"])
        self._opened = False
        self.prompts: list[list[tuple[int, int]]] = []

    def add_prompt(self, where: str, tokens: int, parent: object, blocks: object, *, main: bool) -> None:
        """Add a prompt: the first blocks of its parent prompt, or tools and system prompt, followed by new text.

        `where` names the request in errors; `main`: whether the request belongs to the main thread, not to a subagent.
        """
        lines = self._lines
        index = len(self.prompts)
        if type(parent) is not int or not -1 <= parent < index:
            lines.reject(f"{where}prefix_parent {short_repr(parent)} is not -1 or an earlier request")
        shared_tokens = json_tokens(lines, where + "prefix_blocks", blocks) * self._block_tokens
        if shared_tokens > tokens:
            lines.reject(f"{where}prefix_blocks {short_repr(blocks)} exceeds the prompt of {tokens} tokens")
        segments = _first_tokens(self.prompts[parent], shared_tokens) if parent >= 0 else []
        opening_tokens = self._tool_tokens + self._system_tokens
        if not segments and main and not self._opened and opening_tokens < tokens:
            self._opened = True
            text, tools, system = self._sessions.text_number, self._tool_tokens, self._system_tokens
            opening = [(text(("tools", tools)), tools), (text(("system", tools, system)), system)]
            segments = [segment for segment in opening if segment[1]]
        rest = tokens - sum(length for _, length in segments)
        if rest:
            segments.append((self._sessions.text_number((self._session, index)), rest))
        self.prompts.append(segments)


def _first_tokens(segments: list[tuple[int, int]], tokens: int) -> list[tuple[int, int]]:
    """Return the segments of the first `tokens` tokens; all segments if there are fewer tokens."""
    taken: list[tuple[int, int]] = []
    for text, length in segments:
        if tokens <= 0:
            break
        taken.append((text, min(length, tokens)))
        tokens -= length
    return taken


FORMAT = TraceFormat(
    name="agentic",
    title="agentic",
    recognises=lambda first: isinstance(first, JsonLines) and {"req", "cols"} <= first.record.keys(),
    read=_read,
)

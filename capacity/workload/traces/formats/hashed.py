"""JSON-lines traces with hashes of prompt blocks: Mooncake, Qwen-Bailian, vLLM timed_trace."""

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from capacity.base.errors import InvalidInput
from capacity.workload.columns import FloatArray, IntArray
from capacity.workload.content import PromptContent, fresh_ids
from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.json_lines import json_number, json_tokens
from capacity.workload.traces.lines import TraceLines, count_from_first, short_repr
from capacity.workload.traces.records import json_records
from capacity.workload.traces.table import as_ints
from capacity.workload.workload import Workload

MOONCAKE_BLOCK_TOKENS = 512  # milliseconds, kvcache-ai/Mooncake, FAST25-release, 2025
# seconds, alibaba-edu/qwen-bailian-usagetraces-anon, 2025; vLLM's timed_trace default too
BAILIAN_BLOCK_TOKENS = 16
_POSSIBLE_BLOCK_TOKENS = tuple(2**power for power in range(14))


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Read requests with `timestamp`, `input_length`, `output_length`, optional `max_tokens` and `hash_ids`.

    The block size is inferred from the numbers of tokens and hashes of all rows. Timestamps are milliseconds with
    blocks of 512 tokens (Mooncake) and seconds with blocks of 16 tokens. With other blocks they are milliseconds if all
    are whole numbers, else seconds. Raises MalformedFile.
    """
    assert isinstance(first, JsonLines)
    block_tokens, seconds_per_unit = options.block_tokens, options.seconds_per_unit
    if block_tokens is not None and block_tokens < 1:
        raise InvalidInput(f"block_tokens must be at least 1, not {block_tokens}")
    if seconds_per_unit is not None and not 0 < seconds_per_unit < float("inf"):
        raise InvalidInput(f"seconds_per_unit must be finite and above 0, not {seconds_per_unit}")
    rows = _Rows(lines, _POSSIBLE_BLOCK_TOKENS if block_tokens is None else (block_tokens,))
    rows.read(json_records(lines, first), options.limit)
    return rows.workload(options.name, seconds_per_unit, spread_ticks=options.spread_ticks)


class _Rows:
    """Collects the requests of one file while it is read."""

    def __init__(self, lines: TraceLines, block_sizes: tuple[int, ...]) -> None:
        self.lines = lines
        self.block_sizes = block_sizes  # sizes that match every row so far
        self.timestamps = array("d")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.max_tokens = array("q")  # empty: no row has this field
        self.blocks = array("q")
        self.hashes_in_row = array("q")
        self.number_of: dict[object, int] = {}  # number of each hash, in order of appearance
        self.whole_timestamps = True
        self.session_of_chat: dict[object, int] = {}
        self.session = array("q")

    def read(self, records: Iterable[Mapping[str, object]], limit: int | None) -> None:
        for record in records:
            self._add(record)
            if limit is not None and len(self.timestamps) >= limit:
                return
            self.lines.count_row(len(self.timestamps))

    def _add(self, record: Mapping[str, object]) -> None:
        lines = self.lines
        try:
            timestamp, prompt, output = record["timestamp"], record["input_length"], record["output_length"]
        except KeyError as error:
            lines.reject(f"has no {error.args[0]!r}; it has {short_repr(', '.join(map(str, record)))}")
        if type(timestamp) is not int:
            self.whole_timestamps = (
                self.whole_timestamps and float(json_number(lines, "timestamp", timestamp)).is_integer()
            )
        self.timestamps.append(json_number(lines, "timestamp", timestamp))
        self.prompt_tokens.append(self._positive_tokens("input_length", prompt))
        self.output_tokens.append(self._positive_tokens("output_length", output))
        if (asked := record.get("max_tokens")) is not None:
            self.max_tokens.append(self._positive_tokens("max_tokens", asked))
        if len(self.max_tokens) not in (0, len(self.timestamps)):
            lines.reject("max_tokens must be in every row or in none")
        self._add_hashes(record.get("hash_ids") or [], self.prompt_tokens[-1])
        if "chat_id" in record:
            self._add_chat(record["chat_id"], record.get("parent_chat_id"))

    def _positive_tokens(self, field: str, value: object) -> int:
        tokens = json_tokens(self.lines, field, value)
        if tokens == 0:
            self.lines.reject(f"{field} {short_repr(value)} must be at least 1 token")
        return tokens

    def _add_hashes(self, hashes: object, prompt_tokens: int) -> None:
        lines = self.lines
        if not isinstance(hashes, list) or not all(
            type(block) is int or type(block) is str for block in hashes
        ):
            lines.reject(f"hash_ids {short_repr(hashes)} is not a list of whole numbers")
        if len(self.timestamps) > 1 and bool(hashes) != bool(self.blocks):
            lines.reject("hash_ids must be in every row or in none")
        if hashes:
            fitting = tuple(size for size in self.block_sizes if -(-prompt_tokens // size) == len(hashes))
            if not fitting:
                sizes = " or ".join(map(str, self.block_sizes[-3:]))
                lines.reject(
                    f"hash_ids has {len(hashes)} blocks for an input_length of {prompt_tokens}, "
                    f"which does not fit blocks of {sizes} tokens"
                )
            self.block_sizes = fitting
            numbers = self.number_of
            self.blocks.extend([numbers.setdefault(block, len(numbers)) for block in hashes])
        self.hashes_in_row.append(len(hashes))

    def _add_chat(self, chat: object, parent: object) -> None:
        """Add a chat to its parent's session; -1 or an unknown parent starts a new session."""
        for field, value in (("chat_id", chat), ("parent_chat_id", parent)):
            if not isinstance(value, int | str | None):
                self.lines.reject(f"{field} {short_repr(value)} is not a number")
        sessions = self.session_of_chat
        number = sessions.get(parent)
        if number is None:
            number = len(self.session)
        sessions[chat] = number
        self.session.append(number)

    def workload(self, name: str, seconds_per_unit: float | None, *, spread_ticks: bool) -> Workload:
        """Return the requests as a workload, with notices of the assumed time unit and block size."""
        notices: list[str] = []
        block_tokens = self._block_tokens()
        content = None if block_tokens is None else self._content(block_tokens)
        if seconds_per_unit is None:
            milliseconds = self.whole_timestamps and block_tokens != BAILIAN_BLOCK_TOKENS and not self.session
            seconds_per_unit = 0.001 if milliseconds or block_tokens == MOONCAKE_BLOCK_TOKENS else 1.0
            blocks = "" if block_tokens is None else f" and blocks as {block_tokens} tokens"
            unit = "milliseconds" if seconds_per_unit == 0.001 else "seconds"
            notices.append(f"timestamps read as {unit}{blocks}")
        timestamps: FloatArray = np.frombuffer(self.timestamps, dtype=np.float64)
        # divide whole milliseconds instead of multiplying, so that 3001 ms gives exactly 3.001 s
        arrival_s = timestamps / 1000 if seconds_per_unit == 0.001 else timestamps * seconds_per_unit
        workload = Workload.sort_arrivals(
            arrival_s=count_from_first(arrival_s, notices),
            prompt_tokens=as_ints(self.prompt_tokens),
            output_tokens=as_ints(self.output_tokens),
            max_tokens=as_ints(self.max_tokens) if self.max_tokens else None,
            content=content,
            session=as_ints(self.session) if len(self.session) == len(self.timestamps) else None,
            name=name,
            source=self.lines.path,
            notices=tuple(notices),
        )
        return _handle_ticks(workload, spread=spread_ticks)

    def _block_tokens(self) -> int | None:
        if not self.blocks:
            return None
        usual = BAILIAN_BLOCK_TOKENS if self.session or not self.whole_timestamps else MOONCAKE_BLOCK_TOKENS
        return usual if usual in self.block_sizes else self.block_sizes[0]

    def _content(self, block_tokens: int) -> PromptContent:
        ids, counts = as_ints(self.blocks), as_ints(self.hashes_in_row)
        offsets: IntArray = np.concatenate(([0], np.cumsum(counts)))
        segment_tokens = np.full(len(ids), block_tokens, dtype=np.int64)
        segment_tokens[offsets[1:] - 1] = as_ints(self.prompt_tokens) - (counts - 1) * block_tokens
        return PromptContent(
            offsets=offsets,
            segment_ids=ids,
            segment_tokens=segment_tokens,
            answer_ids=fresh_ids(ids, len(counts)),
        )


def _handle_ticks(workload: Workload, *, spread: bool) -> Workload:
    """Spread requests with the same timestamp of a coarse clock; without `spread`, only add a notice."""
    ticks_s = np.unique(workload.arrival_s)
    if len(ticks_s) < 10 or len(workload) < 3 * len(ticks_s):
        if spread:
            raise InvalidInput(
                f"--trace-spread-ticks has no effect without a coarse clock: {len(workload):,} requests of "
                f"{workload.name} have {len(ticks_s):,} timestamps; remove it"
            )
        return workload
    tick_s = float(np.median(np.diff(ticks_s)))
    clock = f"{len(workload):,} requests share {len(ticks_s):,} timestamps about {tick_s:g} s apart"
    if spread:
        workload, notice = workload.spread_within_ticks(tick_s), f"{clock}: spread evenly between them"
    else:
        notice = f"{clock}, so their bursts are artefacts: use --trace-spread-ticks to spread them"
    return replace(workload, notices=(*workload.notices, notice))


FORMAT = TraceFormat(
    name="hashed",
    title="Mooncake, Qwen",
    spreads_ticks=True,
    recognises=lambda first: isinstance(first, JsonLines) and "timestamp" in first.record,
    read=_read,
    needed=("timestamp", "input_length", "output_length"),
)

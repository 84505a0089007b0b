"""Conversations as text in ShareGPT format. Turns extend earlier turns; the file has no times and no token counts."""

from collections.abc import Mapping

import numpy as np

from capacity.workload.content import PromptContent
from capacity.workload.traces.format import FirstLine, JsonLines, TraceFormat, TraceOptions
from capacity.workload.traces.lines import TraceLines
from capacity.workload.traces.records import json_records
from capacity.workload.workload import Workload

# assumed for English text; help.openai.com, "What are tokens and how to count them", 2024
CHARACTERS_PER_TOKEN = 4.0
QUESTION_ROLES, ANSWER_ROLES = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
Turn = tuple[int, int]  # tokens of a question and of its answer


def _read(lines: TraceLines, first: FirstLine, options: TraceOptions) -> Workload:
    """Read each conversation as a session: a turn follows the previous response, and its prompt repeats earlier turns.

    One conversation starts per second, because the file has no times. Raises MalformedFile.
    """
    assert isinstance(first, JsonLines)
    sessions, requests = [], 0
    for record in json_records(lines, first):
        turns = _turns(record)
        if options.limit is not None:
            turns = turns[: options.limit - requests]
        requests += len(turns)
        if turns:
            sessions.append(turns)
            lines.count_row(requests)
        if options.limit is not None and requests >= options.limit:
            break
    if not sessions:
        lines.reject("has no question with an answer")
    return _workload(sessions, options.name, lines.path)


def _turns(record: Mapping[str, object]) -> list[Turn]:
    """Return the turns of a conversation. The user message of a turn is all text since the previous response."""
    said = record.get("conversations", record.get("messages"))
    turns: list[Turn] = []
    question = 0
    for entry in said if isinstance(said, list) else ():
        if not isinstance(entry, Mapping):
            continue
        who = entry.get("from", entry.get("role"))
        text = entry.get("value", entry.get("content"))
        tokens = _tokens(text) if isinstance(text, str) else 0
        if who not in ANSWER_ROLES:
            question += tokens
        elif tokens and question:
            turns.append((question, tokens))
            question = 0
    return turns


def _tokens(text: str) -> int:
    return round(len(text) / CHARACTERS_PER_TOKEN) or min(len(text), 1)


def _workload(sessions: list[list[Turn]], name: str, path: str) -> Workload:
    prompts: list[int] = []
    outputs: list[int] = []
    session: list[int] = []
    after: list[int] = []
    texts: list[list[tuple[int, int]]] = []
    for number, turns in enumerate(sessions):
        history: list[tuple[int, int]] = []
        for place, (question, answer) in enumerate(turns):
            row = len(prompts)
            history.append((2 * row, question))
            texts.append(list(history))
            prompts.append(sum(tokens for _, tokens in history))
            history.append((2 * row + 1, answer))
            outputs.append(answer)
            session.append(number)
            after.append(row - 1 if place else -1)
    begins_s = np.asarray(session, dtype=np.float64)
    return Workload.sort_arrivals(
        arrival_s=begins_s,
        prompt_tokens=prompts,
        output_tokens=outputs,
        session=session,
        after_request=after,
        think_s=np.zeros(len(prompts)),
        content=PromptContent.from_segments(texts, answer_ids=2 * np.arange(len(prompts)) + 1),
        name=name,
        source=path,
        notices=(
            f"{CHARACTERS_PER_TOKEN:g} characters per token are assumed, and one conversation starts per second, "
            "because the file has no times: use --request-rate to change it",
        ),
    )


def _recognises(first: FirstLine) -> bool:
    return isinstance(first, JsonLines) and any(
        isinstance(first.record.get(key), list) for key in ("conversations", "messages")
    )


FORMAT = TraceFormat(
    name="sharegpt",
    title="ShareGPT conversations",
    recognises=_recognises,
    read=_read,
    needed=("conversations",),
    arrays=True,
)

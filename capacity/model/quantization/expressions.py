"""Regular expressions for module names, matched in linear time, because checkpoints of third parties are untrusted.

An expression becomes a nondeterministic automaton without back-tracking (Thompson, 1968), which runs on sets of its
states. Sets and their transitions are cached, so that matching a name costs one look-up per character. The total work
of all expressions of one list is limited as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from re import _constants as _op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

MAX_CHARACTERS = 1_000  # characters of one expression; the longest in published checkpoints have about 200
MAX_STATES = 20_000  # in all expressions of one list
MAX_WORK = 1_000_000  # states visited to compute transitions: less than half a second
MAX_LISTS = 128  # lists in one configuration, which share that work

_ALPHABET = frozenset(map(chr, range(32, 127)))
_WORD = frozenset(c for c in _ALPHABET if c.isalnum() or c == "_")
_DIGIT, _SPACE = frozenset("0123456789"), frozenset(" ")
_CLASSES = {
    _op.CATEGORY_DIGIT: _DIGIT,
    _op.CATEGORY_NOT_DIGIT: _ALPHABET - _DIGIT,
    _op.CATEGORY_WORD: _WORD,
    _op.CATEGORY_NOT_WORD: _ALPHABET - _WORD,
    _op.CATEGORY_SPACE: _SPACE,
    _op.CATEGORY_NOT_SPACE: _ALPHABET - _SPACE,
}
_AT_START, _AT_END, _FOUND = -1, -2, -3


class _State(NamedTuple):
    """State of the automaton: it consumes one of `characters`, and the states `after` follow.

    Without characters, the state consumes nothing. `only`: `_AT_START` or `_AT_END` if it can be left only at the start
    or end of the name, `_FOUND` if reaching it is a match, else 0.
    """

    characters: frozenset[str]
    after: tuple[int, ...]
    only: int = 0


class Expressions:
    """List of regular expressions; `match` tests whether one of them matches the beginning of a name, like `re.match`.

    Supports literals, sets, groups, alternatives, repeats, `^`, `$`, and look-aheads at the beginning. Raises
    `re.error` for other syntax of Python (back-references, look-behinds, flags), and beyond the maximum number of
    states or work.
    """

    def __init__(self, patterns: Iterable[str], *, lists: int = 1) -> None:
        """Compile the patterns. `lists`: number of lists in a configuration, by which the work limit is divided."""
        if lists > MAX_LISTS:
            raise re.error(f"{lists:,} groups of modules; at most {MAX_LISTS} are supported")
        self._most_work = MAX_WORK // lists
        self._items = 0
        self.work = 0
        self.states = [_State(frozenset(), (), _FOUND)]
        plain: list[int] = []
        self._guarded: list[tuple[_Automaton, list[tuple[bool, _Automaton]]]] = []
        for pattern in patterns:
            guards, items = _parse_expression(pattern)
            try:
                start = self._compile_sequence(items, 0)
                ahead = [(wanted, _Automaton(self, [self._compile_sequence(g, 0)])) for wanted, g in guards]
            except RecursionError:
                raise re.error("groups are nested too deeply") from None
            if guards:
                self._guarded.append((_Automaton(self, [start]), ahead))
            else:
                plain.append(start)
        self._plain = _Automaton(self, plain)

    def match(self, name: str) -> bool:
        """Return whether an expression matches `name` from its start. Raises `re.error` beyond the work limit."""
        return self._plain.match(name) or any(
            own.match(name) and all(guard.match(name) is wanted for wanted, guard in guards)
            for own, guards in self._guarded
        )

    def count_work(self, states: int) -> None:
        self.work += states
        if self.work > self._most_work:
            raise re.error("matching takes too much work: use fewer or simpler expressions")

    # an expression is compiled from its end to its beginning

    def _add(self, characters: frozenset[str], after: tuple[int, ...], only: int = 0) -> int:
        if len(self.states) >= MAX_STATES:
            raise self._size_error()
        self.states.append(_State(characters, after, only))
        return len(self.states) - 1

    @staticmethod
    def _size_error() -> re.error:
        return re.error(f"the expressions are too large: more than {MAX_STATES:,} states")

    def _compile_sequence(self, items: Iterable[tuple[Any, Any]], after: int) -> int:
        for op, value in reversed(list(items)):
            after = self._compile_item(op, value, after)
        return after

    def _compile_item(self, op: Any, value: Any, after: int) -> int:
        self._items += 1
        if self._items > MAX_STATES:  # empty groups add no states, but many may be repeated
            raise self._size_error()
        if op in (_op.LITERAL, _op.NOT_LITERAL, _op.ANY, _op.IN):
            return self._add(_characters(op, value), (after,))
        if op is _op.SUBPATTERN and not value[1] and not value[2]:
            return self._compile_sequence(value[3], after)
        if op is _op.BRANCH:
            return self._add(frozenset(), tuple(self._compile_sequence(way, after) for way in value[1]))
        if op in (_op.MAX_REPEAT, _op.MIN_REPEAT):
            least, most, items = value
            return self._compile_repeat(least, most, items, after)
        if op is _op.AT and value in (_op.AT_BEGINNING, _op.AT_BEGINNING_STRING):
            return self._add(frozenset(), (after,), _AT_START)
        if op is _op.AT and value in (_op.AT_END, _op.AT_END_STRING):
            return self._add(frozenset(), (after,), _AT_END)
        raise _unsupported_error(value if op is _op.AT else op)

    def _compile_repeat(self, least: int, most: Any, items: Sequence[tuple[Any, Any]], after: int) -> int:
        if not items or not most:
            return after
        if least > MAX_STATES or (most is not _op.MAXREPEAT and most > MAX_STATES):
            raise self._size_error()
        if most is _op.MAXREPEAT:
            again = self._add(frozenset(), ())
            self.states[again] = _State(frozenset(), (self._compile_sequence(items, again), after))
            start = again
        else:
            start = after
            for _ in range(most - least):
                start = self._add(frozenset(), (self._compile_sequence(items, start), after))
        for _ in range(least):
            start = self._compile_sequence(items, start)
        return start


class _Automaton:
    """Deterministic automaton of some expressions: sets of states, with cached transitions between them."""

    def __init__(self, owner: Expressions, starts: list[int]) -> None:
        self._owner = owner
        self._starts = starts
        self._first: _StateSet | None = None
        self._known: dict[frozenset[int], _StateSet] = {}

    def match(self, name: str) -> bool:
        if not self._starts:
            return False
        if self._first is None:
            self._first = self._closure(self._starts, at_start=True)
        here = self._first
        for character in name:
            if here.found or not here.takes:
                return here.found
            after = here.ways.get(character)
            if after is None:
                after = here.ways[character] = self._step(here, character)
            here = after
        return here.found or self._matches_at_end(here)

    def _step(self, here: _StateSet, character: str) -> _StateSet:
        self._owner.count_work(len(here.takes))
        states = (self._owner.states[number] for number in here.takes)
        return self._closure([s.after[0] for s in states if character in s.characters])

    def _closure(self, numbers: list[int], *, at_start: bool = False) -> _StateSet:
        """Return the set of states that are reachable from the states `numbers` without consuming a character.

        It contains only states that need a character or the end of the name to continue.
        """
        seen, takes, found = self._walk(numbers, (_AT_START,) if at_start else ())
        self._owner.count_work(seen)
        key = frozenset(takes) if not found else frozenset((_FOUND,))
        if key not in self._known:
            self._known[key] = _StateSet(takes, found)
        return self._known[key]

    def _matches_at_end(self, here: _StateSet) -> bool:
        if here.at_end is None:
            start = (_AT_START,) if here is self._first else ()
            seen, _, here.at_end = self._walk(here.takes, (_AT_END, *start))
            self._owner.count_work(seen)
        return here.at_end

    def _walk(self, numbers: Iterable[int], places: tuple[int, ...]) -> tuple[int, list[int], bool]:
        """Visit all states that are reachable from the states `numbers` without consuming a character.

        `places`: `_AT_START` and `_AT_END` if this is the start or end of the name. Returns the number of visited
        states, those that need a character or the end of the name to continue, and whether one of them is a match.
        """
        open_, seen, takes = list(numbers), set(numbers), []
        while open_:
            number = open_.pop()
            state = self._owner.states[number]
            if state.only == _FOUND:
                return len(seen), [], True
            if state.characters or (state.only == _AT_END and _AT_END not in places):
                takes.append(number)
            elif not state.only or state.only in places:
                new = [after for after in state.after if after not in seen]
                seen.update(new)
                open_ += new
        return len(seen), takes, False


class _StateSet:
    """Set of states that the automaton is in at the same time, with cached transitions."""

    __slots__ = ("at_end", "found", "takes", "ways")

    def __init__(self, takes: list[int], found: bool) -> None:
        self.takes = takes
        self.found = found
        self.ways: dict[str, _StateSet] = {}
        self.at_end: bool | None = None


def _parse_expression(pattern: str) -> tuple[list[tuple[bool, Any]], list[tuple[Any, Any]]]:
    """Return the look-aheads at the start of an expression, each with True if it must match, and its other items.

    Raises `re.error` for syntax that is not supported.
    """
    if len(pattern) > MAX_CHARACTERS:
        raise re.error(f"{len(pattern):,} characters; at most {MAX_CHARACTERS:,} are supported")
    try:
        parsed = _parser.parse(pattern)
    except (OverflowError, RecursionError):
        raise re.error("too many repeats or nested groups") from None
    if parsed.state.flags & ~re.UNICODE:
        raise re.error("flags such as (?i) are not supported")
    items, guards = list(parsed), []
    place = 1 if items and items[0] == (_op.AT, _op.AT_BEGINNING) else 0
    while place < len(items) and items[place][0] in (_op.ASSERT, _op.ASSERT_NOT):
        op, (direction, ahead) = items.pop(place)
        if direction < 0:
            raise _unsupported_error("look-behind")
        guards.append((op is _op.ASSERT, ahead))
    return guards, items


def _characters(op: Any, value: Any) -> frozenset[str]:
    """Return the characters that one item of an expression consumes."""
    if op is _op.ANY:
        return _ALPHABET
    if op is _op.LITERAL:
        return frozenset(chr(value))
    if op is _op.NOT_LITERAL:
        return _ALPHABET - {chr(value)}
    taken: set[str] = set()
    for kind, what in value:
        if kind is _op.LITERAL:
            taken.add(chr(what))
        elif kind is _op.RANGE:
            taken.update(c for c in _ALPHABET if what[0] <= ord(c) <= what[1])
        elif kind is _op.CATEGORY:
            taken |= _CLASSES[what]
    negated = value[0][0] is _op.NEGATE
    return _ALPHABET - taken if negated else frozenset(taken)


def _unsupported_error(what: object) -> re.error:
    return re.error(
        f"{str(what).lower()} is not supported; use literals, sets, groups, alternatives and repeats"
    )


def glob_to_expression(glob: str) -> str:
    """Return the regular expression of a shell glob for a whole name: `*`, `?` and `[sets]`."""
    made, place = "", 0
    while place < len(glob):
        character = glob[place]
        end = glob.find("]", place + 2) if character == "[" else -1
        if end > 0:
            inside = glob[place + 1 : end].replace("\\", r"\\").replace("[", r"\[")
            inside = "^" + inside[1:] if inside.startswith("!") else inside
            made, place = f"{made}[{inside}]", end
        else:
            made += {"*": ".*", "?": "."}.get(character, re.escape(character))
        place += 1
    return made + "$"

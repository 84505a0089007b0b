"""Terms of LLM inference with their units. A sentence shows each term with the numbers of a given pool."""

from functools import cache
from pathlib import Path

from capacity.base.data_files import read_rows
from capacity.base.errors import UnknownName
from capacity.techniques.glossary.term import Definition, Situation, Term

__all__ = ["Definition", "Situation", "Term", "define", "find_term", "is_term", "terms"]


@cache
def terms() -> tuple[Term, ...]:
    """Return all terms, in the order of the glossary page. Raises MalformedFile."""
    return tuple(read_rows(Path(__file__).with_name("terms.toml"), Term).values())


def find_term(name: str) -> Term:
    """Return the term with this name or alias; case, spaces, `-` and `_` do not matter. Raises UnknownName."""
    key = _normalise_name(name)
    for term in terms():
        if key in (_normalise_name(term.name), *map(_normalise_name, term.aliases)):
            return term
    aliases = {alias: term.name for term in terms() for alias in term.aliases}
    raise UnknownName("term", name, [term.name for term in terms()], aliases=aliases)


def is_term(name: str) -> bool:
    try:
        find_term(name)
    except UnknownName:
        return False
    return True


def define(name: str, situation: Situation | None = None) -> Definition:
    """Return the meaning of a term, and if `situation` is given, a sentence with its numbers. Raises UnknownName."""
    term = find_term(name)
    yours = None if situation is None else term.describe(situation)
    return Definition(term=term.name, definition=term.definition, yours=yours)


def _normalise_name(name: str) -> str:
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())

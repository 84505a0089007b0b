"""Every error that this package raises on purpose, with its numbers as attributes and a text of one line.

CapacityError               exit code 2
├── InvalidInput            an impossible value: the field, the value, the limit and the fix
│   ├── UnknownName         no such model, GPU, engine or format, with the nearest known names
│   ├── UnsupportedModel    a model architecture without a formula, with the missing part
│   ├── MalformedFile       a file that cannot be read, with its path, the line or field, and the problem
│   ├── OverLimit           a computation that exceeds a server's limit of time, memory or queued requests
│   └── OutsideValidity     input outside the range of measurements, which is never extrapolated silently
└── DoesNotFit              exit code 1: the model, or one request, is larger than the memory
"""

import difflib
from collections.abc import Iterable

from capacity.base.untrusted_text import shorten_text

LONGEST_PATH = 300  # longest path that an error shows in full


class CapacityError(Exception):
    """Base of all errors of this package. `str(error)` is one line; `exit_code` is the exit code of the command line.

    Text and attributes are pickled without calling the constructor, so errors arrive complete from worker processes.
    """

    exit_code = 2

    def __str__(self) -> str:
        return shorten_text(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_error, (type(self), self.args, self.__dict__)


class InvalidInput(CapacityError, ValueError):
    """An invalid value: the text names the field, the value, the limit and the fix."""


class UnknownName(InvalidInput):
    """No `kind` (model, GPU, ...) has the name `name`; `suggestions` are the nearest known names.

    `aliases` are accepted spellings that can be suggested but are not listed as known. `note` ends the message.
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, aliases: Iterable[str] = (), note: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        candidates = {candidate.lower(): candidate for candidate in (*aliases, *self.known)}
        close = difflib.get_close_matches(name.lower(), list(candidates), n=3, cutoff=0.5)
        contained = [c for c in candidates if name and name.lower() in c and c not in close]
        self.suggestions = tuple(candidates[c] for c in [*close, *contained][:3])
        hint = f" Did you mean {' or '.join(repr(s) for s in self.suggestions)}?" if self.suggestions else ""
        shown = ", ".join(self.known[:8]) + (", ..." if len(self.known) > 8 else ".")
        super().__init__(f"no {kind} {name!r}.{hint} Known: {shown}{note}")


class UnsupportedModel(InvalidInput):
    """A model architecture for which this package has no formula; `missing` states what is missing."""

    def __init__(self, model_type: str, missing: str) -> None:
        self.model_type = model_type
        self.missing = missing
        super().__init__(f"model_type {model_type!r} is not supported: {missing}")


class MalformedFile(InvalidInput):
    """A file that cannot be read: its `path`, the line or field in it (`where`) and the `problem`."""

    def __init__(self, path: object, problem: str, *, where: str | None = None) -> None:
        self.path = str(path)
        self.where = where
        self.problem = problem
        text = str(path).replace("\0", "\\0")
        shown = text if len(text) <= LONGEST_PATH else f"{text[:80]}...{text[-40:]}"
        super().__init__(f"{shown}{f', {where}' if where else ''}: {problem}")


class OverLimit(InvalidInput):
    """A computation that was rejected or stopped by a limit of the dashboard or the service."""


class OutsideValidity(InvalidInput):
    """Input outside the range of any datasheet, measurement or fit."""


class DoesNotFit(CapacityError):
    """The model, or one request, needs more memory than is usable (bytes, per GPU)."""

    exit_code = 1

    def __init__(self, message: str, *, needed_bytes: float, usable_bytes: float) -> None:
        self.needed_bytes = needed_bytes
        self.usable_bytes = usable_bytes
        super().__init__(message)


def _restore_error(
    kind: type[CapacityError], args: tuple[object, ...], attributes: dict[str, object]
) -> CapacityError:
    """Return an unpickled error with the arguments and attributes that it had in the other process."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error

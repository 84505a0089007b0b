"""How often specs are validated while a question is answered."""

from __future__ import annotations

from collections import Counter

import pytest

from capacity.base.spec import Spec


def count_specs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """From now on, how often each kind of spec was validated, by its name."""
    counts: Counter[str] = Counter()
    validate = Spec.__init__

    def counted(self: Spec, **fields: object) -> None:
        counts[type(self).__name__] += 1
        validate(self, **fields)

    monkeypatch.setattr(Spec, "__init__", counted)
    return counts

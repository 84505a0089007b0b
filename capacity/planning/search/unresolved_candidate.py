"""An engine, or a pair of them, of which nothing is known but what one replica costs: it is looked at in its turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capacity.planning.search.candidate_family import Exclusion, Order
from capacity.planning.search.replica_search import ReplicaSearch
from capacity.planning.space import Candidate

Look = Callable[[], Sequence[ReplicaSearch] | Exclusion]


class UnresolvedCandidate:
    """`order` is the best place that it might take; `look` resolves and bounds it, `entered` hears what came of it."""

    def __init__(
        self,
        candidate: Candidate,
        order: Order,
        look: Look,
        entered: Callable[[UnresolvedCandidate, Sequence[ReplicaSearch] | Exclusion], None],
    ) -> None:
        self.candidate = candidate
        self.order = order
        self._look = look
        self.entered = False
        self._hear = entered
        self._seen: Sequence[ReplicaSearch] | Exclusion | None = None

    @property
    def plain(self) -> bool:
        """Whether it neither drafts nor has its prefills done elsewhere."""
        return self.candidate.prefill is None and self.candidate.pool.speculator is None

    def look(self) -> Sequence[ReplicaSearch]:
        """Its contenders, none where it was turned down; before its turn has come, this counts for nothing."""
        if self._seen is None:
            self._seen = self._look()
        return () if isinstance(self._seen, Exclusion) else self._seen

    def enter(self) -> Sequence[ReplicaSearch]:
        """Its turn has come: its contenders, none where it was turned down."""
        contenders = self.look()
        assert self._seen is not None
        self.entered = True
        self._hear(self, self._seen)
        return contenders

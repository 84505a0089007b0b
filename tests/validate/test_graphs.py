"""Graphs of padded steps, with a stand-in for their capture."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.step_inputs import InputRow  # noqa: E402
from capacity_validate.transformer import GraphedTransformer, Transformer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class NowCaptures:
    """Capture runs the step at once, replay runs it again: static inputs and padding are what is tested."""

    def __init__(self) -> None:
        self.pools: list[object] = []
        self.shared_pool = (0, 7)

    def run_on_side_stream(self, body: Callable[[], object]) -> object:
        return body()

    def capture(self, body: Callable[[], Any], *, pool: object = None) -> tuple[Any, Any]:
        self.pools.append(pool)
        result = body()
        return SimpleNamespace(replay=lambda: result.copy_(body())), result


@pytest.fixture
def captures() -> NowCaptures:
    return NowCaptures()


@pytest.fixture
def graphed(tiny: Transformer, captures: Any) -> Iterator[GraphedTransformer]:
    tiny.num_blocks = 63  # the last block is nobody's: padding rows write there
    yield GraphedTransformer(tiny, captures, sizes=(2, 4), max_context=128)
    tiny.num_blocks = 64


@pytest.mark.usefixtures("graphed")
def test_all_graphs_share_one_memory_pool(captures: NowCaptures) -> None:
    assert captures.pools == [captures.shared_pool] * 2


def test_graphs_padded_to_their_size_give_the_eager_tokens(
    tiny: Transformer, graphed: GraphedTransformer
) -> None:
    generator = torch.Generator().manual_seed(9)
    rows = []
    for index, context in enumerate((30, 90, 17)):
        tokens = torch.randint(4096, (context,), generator=generator).tolist()
        blocks = list(range(index * 8, index * 8 + 8))
        tiny.logits(tiny.inputs([InputRow(tokens=tokens[:-1], computed=0, blocks=blocks)]))
        rows.append(InputRow(tokens=tokens[-1:], computed=context - 1, blocks=blocks))
    before = [cache[:24].clone() for cache in tiny.cache_tensors]
    expected = tiny.next_tokens(tiny.inputs(rows))
    for _ in range(2):
        assert graphed.next_tokens(graphed.inputs(rows)) == expected
    assert graphed.next_tokens(graphed.inputs(rows[:2])) == expected[:2]
    for cache in tiny.cache_tensors:
        cache[8:24] = 0.0  # the other two rows are gone, and their blocks are somebody else's now
    assert graphed.next_tokens(graphed.inputs(rows[:1])) == expected[:1]
    assert not any(bool(cache[8:24].any()) for cache in tiny.cache_tensors)
    for cache, was in zip(tiny.cache_tensors, before, strict=True):
        changed = (cache[:8] != was[:8]).flatten(2).any(dim=-1)
        assert int(changed.sum()) <= 1  # the row's own slot, and nothing that padding wrote

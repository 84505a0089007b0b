"""Graphs of padded steps, with a stand-in for torch.cuda."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from capacity_validate.graphs import GraphedTransformer  # noqa: E402
from capacity_validate.step_inputs import Row  # noqa: E402
from capacity_validate.transformer import Transformer  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def graphed(tiny: Transformer, monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphedTransformer]:
    """Capture runs the step at once, replay runs it again: static inputs and padding are what is tested."""
    nothing = contextlib.nullcontext

    class Stream:
        def __init__(self, *_: object) -> None: ...
        def wait_stream(self, _: object) -> None: ...

    for name, fake in (
        ("Stream", Stream),
        ("current_stream", Stream),
        ("stream", lambda _: nothing()),
        ("graph", lambda _: nothing()),
        ("CUDAGraph", lambda: SimpleNamespace()),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    tiny.num_blocks = 63  # the last block is nobody's: padding rows write there
    model = GraphedTransformer(tiny, sizes=(2, 4), max_context=128)
    for graph in model._graphs:
        graph.graph.replay = lambda g=graph: g.chosen.copy_(tiny.logits(g.step).argmax(dim=-1))
    yield model
    tiny.num_blocks = 64


def test_graphs_padded_to_their_size_give_the_eager_tokens(
    tiny: Transformer, graphed: GraphedTransformer
) -> None:
    generator = torch.Generator().manual_seed(9)
    rows = []
    for index, context in enumerate((30, 90, 17)):
        tokens = torch.randint(4096, (context,), generator=generator).tolist()
        blocks = list(range(index * 8, index * 8 + 8))
        tiny.logits(tiny.inputs([Row(tokens=tokens[:-1], computed=0, blocks=blocks)]))
        rows.append(Row(tokens=tokens[-1:], computed=context - 1, blocks=blocks))
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

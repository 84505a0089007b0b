"""Vision towers: what published totals count beside the language model."""

from __future__ import annotations

from itertools import chain

import pytest
from pydantic import TypeAdapter

from capacity.base.data_files import read_data
from capacity.base.errors import MalformedFile
from capacity.model import load_model, vision
from capacity.model.vision import TABLE, Tower, find_tower


# Totals of the safetensors metadata that the models' pages on the Hugging Face hub state; they count what we
# count apart: vision tower, MTP layer with its copies of embedding and head, score correction biases, scales.
def test_vision_towers_make_up_the_published_totals() -> None:
    for name, published in {
        "gemma-3-4b": 4_300_079_472,
        "gemma-3-12b": 12_187_325_040,
        "gemma-3-27b": 27_432_406_640,
        "llama-4-scout": 108_641_793_536,
    }.items():
        model = load_model(name)
        assert model.total_params + model.vision_params == published


def test_every_row_is_a_tower_of_the_kinds_that_its_fields_declare() -> None:
    """Each size that a row names is one that can be read, too."""
    adapter = TypeAdapter(Tower)
    known = {"hidden", "patches", "head", "shuffled"}
    for model_type in set(read_data(TABLE)) - {"usual"}:
        tower = find_tower(model_type)
        assert tower is not None
        adapter.validate_python({name: getattr(tower, name) for name in Tower.__dataclass_fields__})
        named = {
            tower.attention,
            tower.image_tokens,
            tower.longest_side,
            *tower.positions,
            *tower.cell_pixels,
        }
        named |= {*tower.patches_per_token, *chain(*tower.projections), *chain(*tower.products.values())}
        assert {name for name in named if isinstance(name, str)} <= {*tower.keys, *tower.products, *known}


def test_a_slip_in_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"usual": {}, "gemma9": {"projections": (("width", "hidden"),), "vector": 4}}
    monkeypatch.setattr(vision, "_rows", lambda: rows)
    with pytest.raises(MalformedFile, match="gemma9: got an unexpected keyword argument 'vector'"):
        find_tower("gemma9")

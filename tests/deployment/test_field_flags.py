"""Specs whose fields are flags: each field has its row in the file beside its spec, and what the row says holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import capacity.planning.fleets.fleet_space
import capacity.planning.space  # noqa: F401 - every spec of flags must be there
from capacity.base.errors import InvalidInput
from capacity.deployment import Pool, build
from capacity.deployment.field_flags import FlagSpec, Need, field_needs, reading_part
from capacity.deployment.pool_routers import POOL_ROUTERS


@pytest.mark.parametrize("spec", FlagSpec.__subclasses__(), ids=lambda spec: spec.__name__)
def test_each_field_has_a_row_with_a_help_text_in_the_same_order(spec: type[FlagSpec]) -> None:
    file = Path(str(sys.modules[spec.__module__].__file__)).with_name("flags.json")
    rows = json.loads(file.read_bytes())[spec.__name__]
    assert list(rows) == list(spec.model_fields)
    assert all(field.description for field in spec.model_fields.values())


def test_a_row_gives_spellings_limits_and_what_a_field_needs() -> None:
    field = Pool.model_fields["route_up_to_tokens"]
    assert reading_part(field) == "routes"
    assert field_needs(field) == (Need("router", POOL_ROUTERS),)
    assert Pool.model_fields["max_num_seqs"].json_schema_extra == {"flags": []}
    with pytest.raises(InvalidInput, match="max_num_seqs is 0: must be greater than or equal to 1"):
        build(Pool, {"gpu": "h100", "max_num_seqs": 0})

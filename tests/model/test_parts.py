"""Parts of a model: how many matrices and parameters."""

from __future__ import annotations

from capacity.model.parameter_part import ParameterPart


def test_a_part_counts_its_matrices() -> None:
    part = ParameterPart(
        name="mlp.experts.up_proj", kind="experts", rows=3, columns=5, matrices_per_layer=7, layers=(0, 2)
    )
    assert part.params == 210

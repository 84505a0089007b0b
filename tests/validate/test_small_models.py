"""Small models, and models cut to fit."""

import pytest
from capacity_validate.small_models import (
    cut_layers,
    extrapolate_seconds,
    find_model,
    layers_that_fit,
    small_model_names,
)

from capacity.base.errors import InvalidInput


@pytest.mark.parametrize("name", small_model_names())
def test_small_models_are_small(name: str) -> None:
    assert 1e7 < find_model(name).total_params < 6e7


def test_cut_models_lose_layers_and_nothing_else() -> None:
    whole = find_model("llama-3.1-8b")
    cut = cut_layers(whole, 4)
    assert cut.num_layers == 4
    per_layer = (whole.total_params - cut.total_params) / (whole.num_layers - 4)
    assert per_layer == (cut.total_params - cut_layers(whole, 2).total_params) / 2
    assert cut_layers(whole, 99) is whole
    with pytest.raises(InvalidInput, match="at least 1 layer"):
        cut_layers(whole, 0)


def test_layers_are_cut_to_the_memory() -> None:
    model = find_model("llama-3.1-70b")
    fitting = layers_that_fit(model, 100e9)
    assert 0 < fitting < model.num_layers
    assert (
        2 * cut_layers(model, fitting).total_params <= 100e9 < 2 * cut_layers(model, fitting + 1).total_params
    )
    assert layers_that_fit(model, 1e9) == 0


def test_two_depths_extrapolate_to_all_layers() -> None:
    assert extrapolate_seconds(few=4, few_s=1.4, more=8, more_s=1.8, layers=80) == pytest.approx(9.0)

"""What a question is asked of: keywords or a file, never both, and one pool where one is meant."""

from __future__ import annotations

import pytest

from capacity.base.errors import InvalidInput
from capacity.deployment import DeploymentFile, Pool, Traffic
from capacity.deployment.deployment import make_deployment

FILE = DeploymentFile(
    model="llama-3.1-8b", pools=(Pool(gpu="h100"), Pool(gpu="l4")), traffic=Traffic(input_len=9)
)


def test_keywords_and_a_file_make_the_same_deployment() -> None:
    one = FILE.model_copy(update={"pools": FILE.pools[:1]})
    assert make_deployment(one) == make_deployment(
        "llama-3.1-8b", pool={"gpu": "h100"}, traffic={"input_len": 9}
    )


def test_a_file_says_everything() -> None:
    with pytest.raises(InvalidInput, match="'input_len' cannot be combined with a deployment file"):
        make_deployment(FILE, traffic={"input_len": 7})


def test_a_question_about_one_pool_is_not_asked_of_two() -> None:
    assert make_deployment(FILE).pools == FILE.pools
    with pytest.raises(InvalidInput, match="2 pools"):
        _ = make_deployment(FILE).pool

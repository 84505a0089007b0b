"""Data files of the package: a slip in one of them is refused with its file, row and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from capacity.base.data_files import read_data, read_rows
from capacity.base.errors import MalformedFile
from capacity.hardware.attention_kernels import AttentionKernel
from capacity.model.quantization.kv_cache import KvCacheFormat, find_kv_cache_format, kv_cache_format_names
from capacity.model.quantization.weight_format import WeightFormat, weight_formats


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            '{"value_bit": 8, "source": "s"}',
            "table.json, fp9: got an unexpected keyword argument 'value_bit'",
        ),
        ('{"value_bits": 8}', "table.json, fp9: missing 1 required keyword-only argument: 'source'"),
    ],
)
def test_a_record_names_the_key_that_it_does_not_know_or_lacks(tmp_path: Path, row: str, said: str) -> None:
    path = written(tmp_path, "table.json", f'{{"fp9": {row}}}')
    with pytest.raises(MalformedFile) as caught:
        read_rows(path, KvCacheFormat)
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"remarks": "'r'"}, "remarks: Extra inputs are not permitted"),
        ({"remark": None}, "remark: Field required"),
        ({"error_factor": "0.5"}, "error_factor: Input should be greater than or equal to 1"),
    ],
)
def test_a_spec_names_the_key_too(tmp_path: Path, change: dict[str, str | None], said: str) -> None:
    texts = {"title": "'t'", "remark": "'r'", "source": "'s'", "date": "'d'", "error_factor": "2"}
    lines = (f"{key} = {value}\n" for key, value in (texts | change).items() if value is not None)
    path = written(tmp_path, "table.toml", "[triton]\n" + "".join(lines))
    with pytest.raises(MalformedFile, match=rf"table\.toml, triton: {said}"):
        read_rows(path, AttentionKernel, named=False)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", '{"a": 1, "a": 2}', "occurs twice"),
        ("a.toml", "a = ", "cannot be read"),
        ("a.toml", None, "cannot be read"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    path = written(tmp_path, name, text) if text is not None else tmp_path / name
    with pytest.raises(MalformedFile, match=said):
        read_data(path)


def test_rows_are_as_frozen_as_their_records(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", '{"a": {"b": [[1, 2], {"c": [3]}]}}')
    assert read_data(path) == {"a": {"b": ((1, 2), {"c": (3,)})}}


def test_values_are_of_the_kinds_that_the_records_declare() -> None:
    """Dataclasses do not check this as they are made."""
    for stored in weight_formats().values():
        copied = {name: getattr(stored, name) for name in WeightFormat.__dataclass_fields__}
        TypeAdapter(WeightFormat).validate_python(copied)
    for name in kv_cache_format_names():
        kv = find_kv_cache_format(name)
        copied = {field: getattr(kv, field) for field in KvCacheFormat.__dataclass_fields__}
        TypeAdapter(KvCacheFormat).validate_python(copied)

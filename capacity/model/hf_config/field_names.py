"""Under which names configs have their sizes, the first that is there, and what the names of other fields tell."""

from pathlib import Path

from capacity.base.data_files import read_data

NAMES = read_data(Path(__file__).with_name("field_names.json"))

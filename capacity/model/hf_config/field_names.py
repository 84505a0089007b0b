"""Names of the config fields that give each size (the first field present is used), and the meaning of other names."""

from pathlib import Path

from capacity.base.data_files import read_data

NAMES = read_data(Path(__file__).with_name("field_names.json"))

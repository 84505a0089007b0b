"""Import one source file of the package with a change that is not written to disk.

As a pytest plugin (`-p mutant_import`), `CAPACITY_MUTANT` is the file, the text to replace and the new text, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _MutantLoader(SourceFileLoader):
    mutant: str | None

    def get_code(self, fullname: str) -> CodeType:
        if self.mutant is None:
            raise ImportError(fullname)
        return compile(self.mutant, self.path, "exec")


class MutantFinder(MetaPathFinder):
    """Finds one file with another source; with None, importing it fails."""

    def __init__(self, file: Path, source: str | None) -> None:
        self._file, self._source = file, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.rpartition(".")[2] != self._file.stem:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not Path(spec.origin).samefile(self._file):
            return None
        spec.loader = _MutantLoader(fullname, spec.origin)
        spec.loader.mutant = self._source
        return spec


if "CAPACITY_MUTANT" in os.environ:
    assert "capacity" not in sys.modules, "the mutant comes too late"
    _file, _old, _new = json.loads(os.environ["CAPACITY_MUTANT"])
    _text = Path(_file).read_text()
    assert _text.count(_old) == 1
    sys.meta_path.insert(0, MutantFinder(Path(_file), _text.replace(_old, _new)))

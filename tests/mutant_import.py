"""A pytest plugin (`-p mutant_import`) that changes one place of one source file as it is imported, on no disk.

`CAPACITY_MUTANT` names the file, what stands there and what shall stand there instead, as JSON.
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

FILE, OLD, NEW = json.loads(os.environ["CAPACITY_MUTANT"])


class _MutantLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        source = self.get_data(self.path).decode()
        assert source.count(OLD) == 1
        return compile(source.replace(OLD, NEW), self.path, "exec")


class _MutantFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not Path(spec.origin).samefile(FILE):
            return None
        spec.loader = _MutantLoader(fullname, spec.origin)
        return spec


assert "capacity" not in sys.modules, "the mutant comes too late"
sys.meta_path.insert(0, _MutantFinder())

"""A plan's files, launch commands, manifest, benchmark and report, as one archive."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from capacity.report.plan_files import write_plan_files

if TYPE_CHECKING:
    from capacity.deployment import Traffic
    from capacity.model import ModelSpec
    from capacity.planning.records import Plan


def zipped(plan: Plan, model: str | ModelSpec, traffic: Traffic) -> bytes:
    """What `capacity plan --output FOLDER` writes."""
    content = io.BytesIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for path in write_plan_files(plan, Path(folder), model=model, traffic=traffic):
            archive.write(path, path.name)
    return content.getvalue()

"""Write a report into a folder: `report.html` and `report.json`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import atomic_write, make_folder, report_write_errors
from .page import render_page

__all__ = ["check_report_folder", "write_report"]

PAGE, VALUES = "report.html", "report.json"


def check_report_folder(folder: str | os.PathLike[str]) -> None:
    """Raise OSError if a report could not be written into `folder`; create the folder.

    Example:
        >>> from bcrf.tagger.report import check_report_folder
        >>> check_report_folder("new-folder")
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise FileExistsError(f"{path} is a file; expected a folder for the report")
    make_folder(path)
    for name in (PAGE, VALUES):
        if (path / name).is_dir():
            raise IsADirectoryError(f"{path / name} is a folder; choose another folder")


def write_report(report: Mapping[str, Any], folder: str | os.PathLike[str]) -> Path:
    """Write `report.json` and `report.html`; return the path of the page.

    Each file is replaced atomically: readers find the old file or the new one.

    Example (`tagger` and `file` as in `Tagger`):
        >>> from bcrf.tagger.data import read
        >>> from bcrf.tagger.report import TaggingSystem, build_report, write_report
        >>> examples = tagger.task.annotated(list(read(file)))
        >>> write_report(build_report(TaggingSystem("small", tagger, examples)), "report").name
        'report.html'
    """
    path = Path(folder)
    with report_write_errors(path, "cannot write the report", "older files are unchanged"):
        check_report_folder(path)
        with atomic_write(path / VALUES) as stream:
            stream.write(json.dumps(report, indent=1) + "\n")
        with atomic_write(path / PAGE) as stream:
            stream.write(render_page(report))
    return path / PAGE

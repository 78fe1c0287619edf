"""Reports on a tagger: scores with intervals, errors in context, calibration, paired comparison.

`build_report` computes a report as plain values. `write_report` writes it as JSON, and as one HTML
page that needs no network and no script.
"""

from .build import TaggingSystem, build_report
from .page import render_page
from .resampling import approximate_randomisation, bootstrap_interval, paired_interval
from .writing import check_report_folder, write_report

__all__ = [
    "TaggingSystem",
    "approximate_randomisation",
    "bootstrap_interval",
    "build_report",
    "check_report_folder",
    "paired_interval",
    "render_page",
    "write_report",
]

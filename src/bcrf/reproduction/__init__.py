"""The paper's experiments: what is run for each of its tables, a log of the results, a report.

A table is a small TOML file. Its runs are trained, evaluated and logged one by one (`work`); the
report is made from the logs alone.
"""

from .book import Book
from .experiment import ExperimentError
from .grid import Selection
from .jobs import Job, Notice, Workplace, work
from .listing import Progress, progress
from .log import Log, LogError
from .report import report, write_report
from .results import Results

__all__ = [
    "Book",
    "ExperimentError",
    "Job",
    "Log",
    "LogError",
    "Notice",
    "Progress",
    "Results",
    "Selection",
    "Workplace",
    "progress",
    "report",
    "work",
    "write_report",
]

"""Run the experiments of the paper's tables, log their results, and write the report.

A small TOML file in `experiments/` describes each table. `run_jobs` trains and evaluates the models
of a table one by one, and logs the results. `report` writes the page from the logs alone.
`python -m reproduction --help` lists the commands.
"""

from .experiment import ExperimentError
from .experiment_set import ExperimentSet
from .jobs import Job, JobMessage, JobStatus, RunContext, job_statuses, run_jobs
from .report import report, write_report
from .results import Results
from .selection import Selection

__all__ = [
    "ExperimentError",
    "ExperimentSet",
    "Job",
    "JobMessage",
    "JobStatus",
    "Results",
    "RunContext",
    "Selection",
    "job_statuses",
    "report",
    "run_jobs",
    "write_report",
]

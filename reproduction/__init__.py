"""Run the experiments of the paper's tables, log their results, and write the report.

A small TOML file in `experiments/` describes each table. `run_jobs` trains and evaluates the models
of a table one by one, and logs the results. `report` writes the page from the logs alone.
`python -m reproduction --help` lists the commands.
"""

# The modules of this package are imported when a name is first used: they import torch, which takes
# a second, and `python -m reproduction --help` does not need it.
import importlib
import typing

if typing.TYPE_CHECKING:
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

_MODULES = ("experiment", "experiment_set", "jobs", "report", "results", "selection")
"""The modules that define these names."""


# Type checkers read the imports above; with this function they would accept any attribute.
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        """Import all names of this package, and return the one that was asked for.

        All at once, because the import of the module `report` binds its name, and the function of
        this name has to replace it.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module_name in _MODULES:
            module = importlib.import_module(f".{module_name}", __name__)
            names = set(module.__all__) & set(__all__)
            globals().update({public: getattr(module, public) for public in names})
        return globals()[name]

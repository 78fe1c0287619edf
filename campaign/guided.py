"""`python -m campaign.guided READER RUNS FOLDER`: inputs that atheris chooses by coverage.

FOLDER holds the inputs to begin with. Every failure is a line `failure: ...` on standard output;
libFuzzer, which never returns, writes its counts to standard error.
"""

from __future__ import annotations

import sys

import atheris

# The readers have to be imported here for the first time: they are instrumented by their import.
with atheris.instrument_imports(
    include=["bcrf.data", "bcrf.cli.config_file", "bcrf.training.config", "bcrf.fetching"]
):
    from .readers import SHOWN_FAILURES, failure_of


def main() -> None:
    """Run one reader on inputs that reach new code."""
    name, runs, folder = sys.argv[1:]
    failures: set[str] = set()

    def read(data: bytes) -> None:
        failure = failure_of(name, data)
        if failure is not None and len(failures) < SHOWN_FAILURES:
            kind = failure.partition(";")[0]
            if kind not in failures:
                failures.add(kind)
                print(f"failure: {failure}", flush=True)

    options = [f"-runs={runs}", "-seed=1", "-max_len=4096", "-timeout=60", "-rss_limit_mb=4096"]
    atheris.Setup([sys.argv[0], *options, folder], read)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

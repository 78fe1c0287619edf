"""`python -m campaign.guided READER RUNS FOLDER`: inputs that atheris chooses by coverage.

FOLDER holds the inputs to begin with. Every failure is a line `failure: ...` on standard output;
libFuzzer, which never returns, writes its counts to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# An editable install has a loader of its own, whose modules atheris does not instrument. So the
# sources are imported as they lie in the repository.
sys.meta_path[:] = [
    finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")
]
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

# The import instruments the modules: nothing may have imported them before.
with atheris.instrument_imports(include=["bcrf"]):
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

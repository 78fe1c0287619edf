"""`python -m campaign.guided READER RUNS FOLDER`: fuzz a reader with inputs chosen by coverage.

FOLDER holds the initial inputs. Every failure is printed as a line `failure: ...`. libFuzzer never
returns; it writes its counts to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# atheris does not instrument modules that are imported by the loader of an editable install. We
# therefore import the sources from the repository.
sys.meta_path[:] = [
    finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")
]
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

# atheris instruments modules while it imports them, so they must not be imported earlier.
with atheris.instrument_imports(include=["bcrf"]):
    from .readers import SHOWN_FAILURES, failure_of


def main() -> None:
    """Fuzz one reader with inputs that reach new code, and print its failures."""
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

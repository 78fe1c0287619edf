"""Define the taggers that are compared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "SYSTEMS", "TaggerSystem"]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class TaggerSystem:
    """A tagger of a library, with its settings.

    Args:
        adapter: name of the module in `benchmarks.taggers.adapters`.
        package: the distribution that has to be installed.
        description: how the tagger is trained, for the page.
        settings: settings that differ from the defaults of the library.
        environment: folder of the environment of the tagger; "": that of this process.
        tasks: the tasks that the tagger can learn.
    """

    adapter: str
    package: str
    description: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: str = ""
    tasks: tuple[str, ...] = ("pos", "ner")

    @property
    def python(self) -> str:
        """The interpreter that runs the tagger."""
        if not self.environment:
            return sys.executable
        return str(Path(ROOT, self.environment, "bin", "python"))

    def version(self) -> str | None:
        """Return the version of the package; None if it is not installed."""
        probe = f"from importlib import metadata; print(metadata.version({self.package!r}))"
        try:
            done = subprocess.run([self.python, "-c", probe], capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return done.stdout.strip() or None


_OUR_TASKS = ("pos", "ner", "segmentation")

SYSTEMS = {
    "bcrf": TaggerSystem("ours", "bcrf", "the default settings of `bcrf train`", tasks=_OUR_TASKS),
    "bcrf small": TaggerSystem(
        "ours",
        "bcrf",
        "`bcrf train --model.size small`",
        {"model": {"size": "small"}},
        tasks=_OUR_TASKS,
    ),
    "spaCy": TaggerSystem(
        "spacy_pipeline",
        "spacy",
        "`spacy init config -o efficiency` with a morphologizer (parts of speech) or an entity "
        "recognizer, from scratch, without vectors; words as in the files (`gold_preproc`)",
    ),
    "flair": TaggerSystem(
        "flair_tagger",
        "flair",
        "in an environment of its own, because it needs an older version of transformers; "
        "`SequenceTagger` with a BiLSTM of 256 units and a CRF on embeddings of words and "
        "characters, both trained from scratch; the defaults of `ModelTrainer.train`",
        environment=".venv-flair",
    ),
    "stanza": TaggerSystem(
        "stanza_tagger",
        "stanza",
        "`stanza.models.tagger` (parts of speech; 3,000 steps of 50 sentences: its default, up to "
        "50,000 steps of 250, takes days on a CPU) or `stanza.models.ner_tagger`, without "
        "pretrained vectors and character models",
        {"pos": {"max_steps": 3000, "batch_size": 50, "eval_interval": 250}},
    ),
}
"""All taggers by name."""

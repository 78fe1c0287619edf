"""Training of taggers: configuration, training loop, and the folder of a run.

config = Config.from_dict({"output": "run", "data": {"train": "train.conllu", "dev": "dev.conllu"}})
for event in train(config):
    print(event)
"""

from .config import Config, DataConfig, DecodingConfig, OptimizerConfig, TrainingConfig
from .events import Epoch, Event, Finished, Started, Step
from .loop import train
from .recipes import recipe

__all__ = [
    "Config",
    "DataConfig",
    "DecodingConfig",
    "Epoch",
    "Event",
    "Finished",
    "OptimizerConfig",
    "Started",
    "Step",
    "TrainingConfig",
    "recipe",
    "train",
]

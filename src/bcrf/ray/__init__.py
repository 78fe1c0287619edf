"""Tag corpora on a Ray cluster (extra `ray`).

`TagBatch` is a callable class for `ray.data.Dataset.map_batches`. `tag_shards` is the engine of
`bcrf tag --engine ray`. In this package, `import ray` imports Ray itself.
"""

import importlib.util

if importlib.util.find_spec("ray") is None:
    raise ImportError("bcrf.ray needs the package ray: pip install '.[ray]'", name="ray")

from ..tagger.prediction.tag_batch import TagBatch
from .connection import connect
from .engine import ClusterError, ShardFailure, tag_shards

__all__ = ["ClusterError", "ShardFailure", "TagBatch", "connect", "tag_shards"]

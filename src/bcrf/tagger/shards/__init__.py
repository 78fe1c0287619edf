"""Tag a corpus that is divided into shards: files of JSON lines, each tagged by itself.

`plan_shards` finds the shards and where their results go; `tag_shard` tags one of them; `bcrf.ray`
runs `tag_shard` on many machines. Nothing here needs Ray.
"""

from .plan import ShardError, ShardPlan, find_shards, lock_results, plan_shards
from .tag_shard import Shard, ShardOptions, ShardRecord, read_record, tag_shard

__all__ = [
    "Shard",
    "ShardError",
    "ShardOptions",
    "ShardPlan",
    "ShardRecord",
    "find_shards",
    "lock_results",
    "plan_shards",
    "read_record",
    "tag_shard",
]

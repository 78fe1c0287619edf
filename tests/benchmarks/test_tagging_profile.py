"""The profile of tagging."""

from benchmarks.tagging_profile import STAGES, profile
from tests.tagger_cases import trained


def test_the_profile_has_a_time_for_each_stage(tmp_path):
    tagger = trained(tmp_path, "segmentation", training={"epochs": 1})
    seconds, tokens = profile(tagger, ["书 看见", "我们"], repeats=1)
    assert tuple(seconds) == STAGES
    assert min(seconds.values()) > 0
    assert tokens == 5

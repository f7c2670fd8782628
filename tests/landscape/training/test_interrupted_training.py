"""A user's training goes on to the undisturbed one's bytes, at whatever change of the disk it was killed."""

import pytest
from scenes import needs_proc, play

pytestmark = [needs_proc, pytest.mark.long, pytest.mark.faults]
EVERYWHERE = pytest.param(["kill,all", "power,3,1"], marks=[pytest.mark.slow, pytest.mark.timeout(2 * 3600)])


@pytest.mark.parametrize("tasks", [["kill,checkpoints/.step-00000004", "power,1,16"], EVERYWHERE])
def test_killed_or_without_power_a_training_goes_on_to_the_undisturbed_run(tmp_path, tasks):
    killed, cut = play("training_scene.py", tmp_path, *tasks)
    assert not killed["wrong"]
    assert killed["killed"] >= killed["chosen"] > 4
    assert not cut["wrong"]
    assert cut["worlds"] > 5

"""Checkpoints of others: found under the usual keys, checked before anything is written, never run as code."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from landscape.checkpoints import import_checkpoints, load_weights, strip_prefixes
from landscape.errors import JobError, NotFoundError
from landscape.trajectory import TrajectoryCollector, read_info, read_trajectory


def weights(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"fc.weight": torch.full((2, 3), value), "fc.bias": torch.full((2,), value)}


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in weights().items()}


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "held",
    [
        weights(),
        {"state_dict": weights(), "epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
        {"model": weights(), "best": 0.5},
        {"model_state_dict": weights()},
        {"net": weights()},
        {"model": {"state_dict": weights()}},
        prefixed("module."),
        prefixed("_orig_mod."),
        {"state_dict": prefixed("module._orig_mod.")},
        {**weights(), "fc._extra_state": None},
    ],
    ids=lambda held: ",".join(held),
)
def test_torch_files_in_the_usual_forms(tmp_path, held):
    torch.save(held, tmp_path / "c.pt")
    assert same(load_weights(tmp_path / "c.pt"), weights())


def test_the_old_format_of_torch_and_whole_state_dicts_with_metadata(tmp_path):
    torch.save(nn.Sequential(nn.Linear(3, 2)).state_dict(), tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    assert set(load_weights(tmp_path / "c.pt")) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("name", ["c.safetensors", "no-suffix"])
def test_safetensors_are_known_by_their_content(tmp_path, name):
    save_file(prefixed("module."), tmp_path / name)
    assert same(load_weights(tmp_path / name), weights())


def test_a_prefix_that_not_all_names_share_is_a_name(tmp_path):
    mixed = {"module.weight": torch.ones(1), "head.weight": torch.ones(1)}
    assert list(strip_prefixes(mixed)) == list(mixed)


def test_the_collectors_own_files_keep_their_names(tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(3, 2)

    TrajectoryCollector(tmp_path, Wrapper(), intervals=[[0, 1, 2]])
    path = read_trajectory(tmp_path).snapshot(0).path
    assert set(load_weights(path)) == {"module.weight", "module.bias"}


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("write", ["torch", "old torch", "pickle"])
def test_a_malicious_pickle_is_not_executed(tmp_path, write):
    held = {"state_dict": weights(), "hook": Malicious(tmp_path / "owned")}
    if write == "pickle":
        (tmp_path / "c.pt").write_bytes(pickle.dumps(Malicious(tmp_path / "owned")))
    else:
        torch.save(held, tmp_path / "c.pt", _use_new_zipfile_serialization=write == "torch")
    with pytest.raises(JobError, match="never loaded that way; save the weights alone") as caught:
        import_checkpoints([tmp_path / "c.pt"], tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "owned").exists()
    assert not (tmp_path / "run").exists()


def test_whole_modules_are_refused_with_the_remedy(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "c.pt")
    with pytest.raises(JobError, match=r"torch\.save\(model\.state_dict\(\), path\)"):
        load_weights(tmp_path / "c.pt")


@pytest.mark.parametrize(
    "content", [b"", b"hello, I am a text file", b"\x80\x02]q\x00.", b"PK\x03\x04 cut", b"\x09" * 99]
)
@pytest.mark.parametrize("name", ["c.pt", "c.safetensors"])
def test_files_that_are_no_checkpoints(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(JobError, match=f"{name}' (is no|must hold|is not a whole)") as caught:
        load_weights(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("held", [{}, {"a": 1}, [torch.ones(1)], torch.ones(2), {"generator": {"w": torch.ones(1)}}])
def test_checkpoints_without_named_tensors(tmp_path, held):
    torch.save(held, tmp_path / "c.pt")
    with pytest.raises(JobError, match="must hold named tensors"):
        load_weights(tmp_path / "c.pt")


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(NotFoundError, match=r"missing\.pt' does not exist"):
        load_weights(tmp_path / "missing.pt")
    with pytest.raises(JobError, match="is a folder"):
        load_weights(tmp_path)


# Importing


def checkpoints(folder, values=(3.0, 1.0, 2.0)):
    paths = [folder / f"c{value:g}.pt" for value in values]
    for path, value in zip(paths, values, strict=True):
        torch.save(weights(value), path)
    return paths


@pytest.mark.parametrize("unit", ["epoch", "step"])
def test_the_order_given_is_the_order_of_the_trajectory(tmp_path, unit):
    trajectory = import_checkpoints(checkpoints(tmp_path), tmp_path / "run", unit)
    assert trajectory == read_trajectory(tmp_path / "run")
    assert (trajectory.unit, trajectory.numbers) == (unit, (1, 2, 3))
    assert [each.source for each in trajectory.snapshots] == ["c3.pt", "c1.pt", "c2.pt"]
    assert [float(each.load()["fc.bias"][0]) for each in trajectory.snapshots] == [3, 1, 2]
    info = read_info(tmp_path / "run")
    assert (info["unit"], info["imported"]) == (unit, ["c3.pt", "c1.pt", "c2.pt"])


def test_tied_tensors_that_share_their_memory(tmp_path):
    tensor = torch.ones(4, 2)
    torch.save({"embed": tensor, "head": tensor, "view": tensor[1:]}, tmp_path / "c.pt")
    state = import_checkpoints([tmp_path / "c.pt"], tmp_path / "run").snapshot(1).load()
    assert sorted(state) == ["embed", "head", "view"]


def test_an_existing_trajectory_is_replaced_only_when_told_to(tmp_path):
    paths = checkpoints(tmp_path)
    import_checkpoints(paths, tmp_path / "run")
    with pytest.raises(JobError, match="already holds a trajectory of 3 epochs"):
        import_checkpoints(paths[:1], tmp_path / "run", "step")
    assert import_checkpoints(paths[:1], tmp_path / "run", "step", overwrite=True).numbers == (1,)
    assert read_info(tmp_path / "run")["unit"] == "step"


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"fc.weight": torch.ones(2, 3)}, "lacks 'fc.bias', which is in"),
        (
            {"fc.weight": torch.ones(2, 4), "fc.bias": torch.ones(2)},
            r"has 'fc.weight' of shape \(2, 4\), which is \(2, 3\)",
        ),
        ({**weights(), "extra": torch.ones(1)}, "has 'extra', which is not in"),
    ],
)
def test_checkpoints_of_different_networks_are_refused_by_the_first_difference(tmp_path, other, difference):
    paths = checkpoints(tmp_path)
    torch.save(other, tmp_path / "other.pt")
    with pytest.raises(JobError, match=difference):
        import_checkpoints([*paths, tmp_path / "other.pt"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("paths", "unit"), [([], "epoch"), ("c.pt", "epoch"), (["c.pt"], "batch")])
def test_arguments_that_make_no_sense(tmp_path, paths, unit):
    with pytest.raises(JobError, match=r"unit: must|checkpoints: must"):
        import_checkpoints(paths, tmp_path / "run", unit)


def test_a_missing_checkpoint_leaves_the_run_as_it_was(tmp_path):
    paths = checkpoints(tmp_path)
    import_checkpoints(paths, tmp_path / "run")
    with pytest.raises(NotFoundError):
        import_checkpoints([*paths, tmp_path / "missing.pt"], tmp_path / "run", overwrite=True)
    assert read_trajectory(tmp_path / "run").numbers == (1, 2, 3)


def test_snapshots_of_the_run_itself_are_refused(tmp_path):
    own = import_checkpoints(checkpoints(tmp_path), tmp_path / "run").snapshot(1).path
    with pytest.raises(JobError, match="part of the run it would be imported into"):
        import_checkpoints([own], tmp_path / "run", overwrite=True)
    assert import_checkpoints([own], tmp_path / "other").numbers == (1,)

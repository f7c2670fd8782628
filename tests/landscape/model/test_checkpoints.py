"""Checkpoints of others: found under the usual keys, checked before anything is written, never run as code."""

import logging
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from landscape.core.errors import JobError, LandscapeError, NotFoundError
from landscape.model import checkpoint_import as checkpoints_module
from landscape.model.checkpoint_import import import_checkpoints
from landscape.model.parameters import match_state
from landscape.model.run_files import read_info
from landscape.model.snapshots import read_trajectory
from landscape.model.weight_files import load_weights, strip_prefixes
from landscape.training.collector import TrajectoryCollector


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
    with pytest.raises(JobError, match="a folder must hold one file of weights, or shards with their index"):
        load_weights(tmp_path)


# Importing


def checkpoints(folder, values=(3.0, 1.0, 2.0)):
    paths = [folder / f"c{value:g}.pt" for value in values]
    for path, value in zip(paths, values, strict=True):
        torch.save(weights(value), path)
    return paths


@pytest.mark.parametrize(("unit", "expected"), [("epoch", "epoch"), ("step", "step"), (None, "step")])
def test_the_number_in_the_name_orders_and_stays(tmp_path, unit, expected):
    trajectory = import_checkpoints(checkpoints(tmp_path), tmp_path / "run", unit)
    assert trajectory == read_trajectory(tmp_path / "run")
    assert (trajectory.unit, trajectory.numbers) == (expected, (1, 2, 3))
    assert [each.source for each in trajectory.snapshots] == ["c1.pt", "c2.pt", "c3.pt"]
    assert [float(each.load()["fc.bias"][0]) for each in trajectory.snapshots] == [1, 2, 3]
    info = read_info(tmp_path / "run")
    assert (info["unit"], info["imported"]) == (expected, ["c1.pt", "c2.pt", "c3.pt"])


def test_sparse_numbers_are_kept_whatever_order_the_shell_gives(tmp_path):
    for number in (0, 120, 180, 240, 300, 60):
        torch.save(weights(number), tmp_path / f"ckpt_{number}.pt")
    trajectory = import_checkpoints(sorted(tmp_path.glob("ckpt_*.pt")), tmp_path / "run")
    assert trajectory.numbers == (0, 60, 120, 180, 240, 300)
    assert float(trajectory.snapshots[-1].load()["fc.bias"][0]) == 300
    assert trajectory.select([0, 60, 300]).numbers == (0, 60, 300)


def test_the_order_given_is_kept_when_told_to_and_numbers_that_fall_are_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "landscape"):
        trajectory = import_checkpoints(checkpoints(tmp_path), tmp_path / "run", order="given")
    assert (trajectory.unit, trajectory.numbers) == ("epoch", (1, 2, 3))
    assert [each.source for each in trajectory.snapshots] == ["c3.pt", "c1.pt", "c2.pt"]
    assert "do not rise in the order given: 'c1.pt' comes after 'c3.pt'" in caplog.text
    caplog.clear()
    import_checkpoints(checkpoints(tmp_path, (1.0, 2.0)), tmp_path / "other", order="given")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("about", "unit", "numbers"),
    [
        ([{"epoch": 4, "global_step": 400}, {"epoch": 1, "global_step": 100}], "step", (100, 400)),
        ([{"epoch": 4}, {"epoch": torch.tensor(1)}], "epoch", (1, 4)),
        ([{"iter": 40, "epoch": 0}, {"iter": 10, "epoch": 0}], "step", (10, 40)),
        ([{"step": 40, "epoch": 2}, {"step": 40, "epoch": 1}], "epoch", (1, 2)),
    ],
)
def test_names_that_tell_nothing_leave_it_to_the_step_inside(tmp_path, about, unit, numbers):
    files = [tmp_path / "best.ckpt", tmp_path / "last.ckpt"]
    for file, more in zip(files, about, strict=True):
        torch.save({"state_dict": weights(), "pytorch-lightning_version": "2.4.0", "callbacks": {}, **more}, file)
    trajectory = import_checkpoints(files, tmp_path / "run")
    assert (trajectory.unit, trajectory.numbers) == (unit, numbers)


def test_names_and_files_that_tell_nothing_are_taken_as_given_with_a_warning(tmp_path, caplog):
    files = [tmp_path / "start.pt", tmp_path / "end.pt"]
    for file in files:
        torch.save(weights(), file)
    with caplog.at_level(logging.WARNING, "landscape"):
        trajectory = import_checkpoints(files, tmp_path / "run")
    assert (trajectory.unit, trajectory.numbers) == ("epoch", (1, 2))
    assert [each.source for each in trajectory.snapshots] == ["start.pt", "end.pt"]
    assert "'end.pt' is the end of the training" in caplog.text


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["ckpt_0.pt", "ckpt_60.pt", "ckpt_last.pt"], "'ckpt_last.pt' has no number in its name"),
        (["a/ckpt_60.pt", "b/ckpt_60.pt"], r"a/ckpt_60.pt' and .*b/ckpt_60.pt' share their number"),
        (["2026-01-02.pt", "2026-03-04.pt"], "which number in names like '2026-01-02.pt' counts"),
        (["1k.pt", "10k.pt", "2k.pt"], "which number in names like '1k.pt' counts"),
    ],
)
def test_an_order_that_cannot_be_told_is_refused_with_the_remedy(tmp_path, names, reason):
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        torch.save(weights(), file)
    with pytest.raises(JobError, match=f"checkpoints: .*{reason}.*--order given"):
        import_checkpoints(files, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert import_checkpoints(files, tmp_path / "run", order="given").numbers == tuple(range(1, len(files) + 1))


def test_folders_of_transformers(tmp_path):
    files = []
    for number in (1000, 1500, 500):
        files.append(tmp_path / f"checkpoint-{number}" / "model.safetensors")
        files[-1].parent.mkdir()
        save_file(weights(number), files[-1])
    trajectory = import_checkpoints(files, tmp_path / "run")
    assert trajectory.numbers == (500, 1000, 1500)
    assert trajectory.snapshots[0].source == "checkpoint-500/model.safetensors"


def test_the_order_must_be_one_that_there_is(tmp_path):
    with pytest.raises(JobError, match="order: must be 'auto' or 'given', not 'name'"):
        import_checkpoints(checkpoints(tmp_path), tmp_path / "run", order="name")


def test_tied_tensors_that_share_their_memory(tmp_path):
    tensor = torch.ones(4, 2)
    torch.save({"embed": tensor, "head": tensor, "view": tensor[1:]}, tmp_path / "c.pt")
    state = import_checkpoints([tmp_path / "c.pt"], tmp_path / "run").snapshots[0].load()
    assert sorted(state) == ["embed", "head", "view"]


def test_the_same_checkpoints_again_change_nothing_and_others_of_their_names_are_refused(tmp_path):
    paths = checkpoints(tmp_path)
    first = import_checkpoints(paths, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert import_checkpoints(paths[::-1], tmp_path / "run") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    for call in ({"unit": "epoch"}, {"order": "given"}):
        with pytest.raises(JobError, match="already holds a trajectory of 3 steps"):
            import_checkpoints(paths, tmp_path / "run", **call)
    state = {name: tensor + 1 for name, tensor in load_weights(paths[0]).items()}
    torch.save(state, paths[0])
    with pytest.raises(JobError, match="already holds a trajectory of 3 steps"):
        import_checkpoints(paths, tmp_path / "run")


def test_an_existing_trajectory_is_replaced_only_when_told_to(tmp_path):
    paths = checkpoints(tmp_path)
    import_checkpoints(paths, tmp_path / "run")
    with pytest.raises(JobError, match="already holds a trajectory of 3 steps"):
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


# What strangers give


def sparse():
    return torch.eye(3).to_sparse()


def meta():
    return torch.ones(3, device="meta")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (sparse, "a sparse tensor"),
        (meta, "a tensor without data"),
        (lambda: torch.ones(2, dtype=torch.complex128), "of type torch.complex128"),
        (lambda: torch.ones(1).expand(1 << 40), "a tensor of 1099511627776 elements spread from a file of"),
    ],
)
def test_tensors_that_hold_no_number_per_element_are_refused_by_name(tmp_path, make, what):
    paths = checkpoints(tmp_path)
    import_checkpoints(paths, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    torch.save({**weights(), "odd\x1b[31m": make()}, tmp_path / "c4.pt")
    with pytest.raises(JobError, match=f"c4.pt': 'odd.*{what}") as caught:
        import_checkpoints([*paths, tmp_path / "c4.pt"], tmp_path / "run", overwrite=True)
    assert "\x1b" not in str(caught.value)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_values_that_are_hardly_meant_are_kept_and_said(tmp_path, caplog):
    state = {
        "a.weight": torch.tensor([1.0, float("nan")]),
        "b.weight": torch.ones(2, dtype=torch.int64),
        "c": torch.ones(2, dtype=torch.complex64),
        "empty": torch.zeros(0, 3),
        "bn.num_batches_tracked": torch.tensor(3),
        "turned": torch.arange(6.0).view(2, 3).t(),
        "line\nbreak\x00": torch.ones(1),
    }
    for number in (1, 2):
        torch.save(state, tmp_path / f"c{number}.pt")
    with caplog.at_level(logging.WARNING, "landscape"):
        found = import_checkpoints([tmp_path / "c1.pt", tmp_path / "c2.pt"], tmp_path / "run").snapshots[0].load()
    assert set(found) == set(state)
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items() if name != "a.weight")
    lines = caplog.text.splitlines()
    assert len(lines) == 3
    for what in ("NaN or infinity in 'a.weight'", "whole numbers for weights in 'b.weight'", "complex numbers in 'c'"):
        assert sum(f"{what} of 'c1.pt', and in 1 more files; imported as it is" in line for line in lines) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path, kind):
    path = tmp_path / "ckpt_2.pt"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    torch.save(weights(), tmp_path / "ckpt_1.pt")
    with pytest.raises(JobError, match=r"ckpt_2.pt'(: a folder must hold one file| is a pipe or a device, not a file)"):
        import_checkpoints([tmp_path / "ckpt_1.pt", path], tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("length", [2**63, 2**62, 10**11, 99_000_000, 500])
def test_a_safetensors_header_that_claims_to_be_gigantic(tmp_path, length):
    (tmp_path / "c1.safetensors").write_bytes(length.to_bytes(8, "little") + b'{"a":' + b" " * 200)
    with pytest.raises(JobError, match=r"c1.safetensors' is not a whole safetensors file"):
        import_checkpoints([tmp_path / "c1.safetensors"], tmp_path / "run")


def test_file_names_that_are_no_text(tmp_path):
    names = [b"ckpt_\xff_1.pt", b"ckpt_\x1b[31m_2.pt"]
    files = [tmp_path / os.fsdecode(name) for name in names]
    for file in files:
        torch.save(weights(), file)
    trajectory = import_checkpoints(files, tmp_path / "run")
    assert [each.source for each in trajectory.snapshots] == ["ckpt_\\xff_1.pt", "ckpt_\x1b[31m_2.pt"]
    assert read_info(tmp_path / "run")["imported"] == [each.source for each in trajectory.snapshots]


def test_one_file_given_twice_is_refused(tmp_path):
    paths = checkpoints(tmp_path)
    (tmp_path / "c9.pt").symlink_to(paths[0])
    for again in (paths[0], tmp_path / "c9.pt"):
        with pytest.raises(JobError, match=r"are one file; leave one of them out"):
            import_checkpoints([*paths, again], tmp_path / "run")


def test_a_file_that_is_replaced_or_goes_while_it_is_imported(tmp_path, monkeypatch):
    paths = checkpoints(tmp_path)
    import_checkpoints(paths[1:], tmp_path / "run")
    real, seen = load_weights, []

    def replaced(path, **options):
        seen.append(path)
        if len(seen) == 5:
            actions[-1](path)
        return real(path, **options)

    monkeypatch.setattr(checkpoints_module, "load_weights", replaced)
    actions = [Path.unlink, lambda path: torch.save({"other": torch.ones(1)}, path)]
    for error in ("changed while it was imported", "does not exist"):
        with pytest.raises(LandscapeError, match=error):
            import_checkpoints(paths, tmp_path / "run", overwrite=True)
        torch.save(weights(), seen[-1])
        seen.clear()
        actions.pop()
        assert read_trajectory(tmp_path / "run").numbers == (1, 2)
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["run.json", "trajectory"]


def test_a_lightning_checkpoint_fits_the_network_inside_the_module(tmp_path):
    inner = nn.Linear(3, 2)
    state = {f"model.{name}": tensor for name, tensor in inner.state_dict().items()} | {"loss.pos": torch.ones(1)}
    torch.save({"state_dict": {**state, "seen": 5}, "epoch": 1, "global_step": 7}, tmp_path / "last.ckpt")
    (snapshot,) = import_checkpoints([tmp_path / "last.ckpt"], tmp_path / "run").snapshots
    assert (snapshot.unit, snapshot.number) == ("step", 7)
    assert same(match_state(inner, snapshot.load(), "step 7"), inner.state_dict())
    with pytest.raises(JobError, match=r"missing weight, bias"):
        match_state(inner, {**state, **{f"ema.{name}": tensor for name, tensor in inner.state_dict().items()}}, "it")


@pytest.mark.parametrize("average", [nn.Linear(3, 2), torch.optim.swa_utils.AveragedModel(nn.Linear(3, 2))])
def test_of_two_networks_in_a_checkpoint_it_is_said_which_is_taken(tmp_path, caplog, average):
    model, optimizer = nn.Linear(3, 2), torch.optim.Adam([nn.Parameter(torch.ones(1))])
    whole = {"ema": average.state_dict(), "model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(whole, tmp_path / "both.pt")
    with caplog.at_level(logging.WARNING, logger="landscape"):
        assert torch.equal(load_weights(tmp_path / "both.pt")["weight"], model.weight)
    (line,) = caplog.messages
    assert "the weights under 'model' are used; 'ema' holds weights of the same names" in line
    caplog.clear()
    del whole["ema"]
    torch.save(whole, tmp_path / "one.pt")
    load_weights(tmp_path / "one.pt")
    assert caplog.messages == []

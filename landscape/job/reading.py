"""A job read from its YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from landscape.core.errors import JobError, NotFoundError, message_of, shown
from landscape.core.folders import locate
from landscape.job.job import Job
from landscape.job.strict_yaml import MAX_BYTES, parse_yaml
from landscape.model.packed_file import names_a_file
from landscape.model.run_files import read_problem

if TYPE_CHECKING:
    from landscape.model.packed_model import PortableFile

YAML_TYPES = {
    type(None): "nothing",
    list: "a list",
    str: "one text",
    int: "a number",
    float: "a number",
    bool: "a bool",
}


def read_job(path: str | Path, **overrides: Any) -> Job:
    """Read a YAML job file, or the job of a portable problem; `overrides` that are not None replace its fields.

    Where it names no problem, it is the one that the training of its run recorded.

    Raises:
        NotFoundError: there is no such file.
        JobError: it is not YAML, or not a job.
    """
    if names_a_file(str(path)):
        return _packed_job(Path(path), overrides)
    file, name = Path(path), f"job file {shown(str(path), 100)}"
    try:
        with open(file, "rb") as opened:
            data = parse_yaml(opened.read(MAX_BYTES + 1))
    except FileNotFoundError:
        raise NotFoundError(f"{name} does not exist; `landscape init` writes one to start from") from None
    except IsADirectoryError:
        raise JobError(f"{name} cannot be read: it is a folder, such as a run's; name the job file") from None
    except OSError as error:
        raise JobError(f"{name} cannot be read: {error.strerror or message_of(error)}") from None
    except ValueError as error:
        raise JobError(f"{name}: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"{name} must hold 'key: value' lines, not {YAML_TYPES.get(type(data), 'a value')}")
    run = overrides.get("run")
    if isinstance(run, str) and run.strip():
        overrides["run"] = locate(run, Path.cwd())
    data.update({key: value for key, value in overrides.items() if value is not None})
    folder = file.absolute().parent
    if (
        "problem" not in data
        and isinstance(data.get("run"), str)
        and (known := read_problem(locate(data["run"], folder)))
    ):
        data["problem"] = known
    job = Job(**data)
    job._folder = folder
    return job


def _packed_job(file: Path, overrides: dict[str, Any]) -> Job:
    """The job of a portable problem, whose run is called as the file is, unless another one is given."""
    from landscape.model.packed_model import PortableFile  # which needs torch; other jobs are read without

    packed = PortableFile(file)
    try:
        data = parse_yaml(packed.job_text())
    except ValueError as error:
        raise packed.archive.damaged(f"its job: {error}") from None
    if not isinstance(data, dict) or {"run", "problem"} & set(data):
        raise packed.archive.damaged("its job is none, or names a run or a problem of its own")
    run = overrides.pop("run", None) or f"runs/{file.stem}"
    data |= {key: value for key, value in overrides.items() if value is not None}
    job = Job(**data, run=locate(run, Path.cwd()), problem=str(file.absolute()))
    job._folder = file.absolute()  # the files and runs that the job names lie in it
    _refuse_other_places(job, packed)
    return job


def _refuse_other_places(job: Job, packed: PortableFile) -> None:
    """Refuse a packed job that names weights or runs outside its file: these would be of the machine that runs it."""
    for landscape in job.landscapes:
        for name in (*landscape.named_files(), *landscape.named_runs()):
            members = (each for each in packed.archive.names if each == name or each.startswith(f"{name}/"))
            if next(members, None) is None:
                raise packed.archive.damaged(f"its job names {shown(name)}, which it does not hold")

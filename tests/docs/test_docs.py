"""Every block of code in the README and the documentation is carried out, in the order of its page.

A page has one folder and one Python session, as its reader has. What cannot be carried out here says why, in a comment
above the block, and is checked as far as that goes: commands by the real parser, Python by the compiler, jobs by
`read_job`.
"""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from blocks import Block, blocks_of, commands_in_prose, shell_commands
from cyclopts import CycloptsError, MissingArgumentError

from cluster.commands.app import app, command
from cluster.runtime.logs import common_options
from landscape import read_job

ROOT = Path(__file__).parents[2]
FOLDERS = ("*.md", "docs/**/*.md", "deploy/*.md", ".github/**/*.md")
PAGES = sorted(path for pattern in FOLDERS for path in ROOT.glob(pattern) if path.name != "CHANGELOG.md")
WITH_FRAMEWORKS = [page for page in PAGES if any(block.frameworks for block in blocks_of(page))]
OUTSIDE = [page for page in PAGES if ROOT / "docs" not in page.parents]  # of the site
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

# Jobs are computed on a grid of this size, with so many samples: what a page shows is about words and not about values.
SMALL: dict[str, Any] = {"size": 5, "num_samples": 64}
# A part of a job stands for the job that these complete.
REST: dict[str, Any] = {"run": "runs/mine", "problem": "my_problem:problem", "landscapes": [{"name": "minimum"}]}
# A browser takes seconds to start; the tests of the views let it draw.
BY_BROWSER = {"png": "html", "svg": "html"}


@pytest.fixture(autouse=True)
def _page_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logging_as_it_was: None) -> Iterator[None]:
    """Each page has an empty folder, whose modules are imported anew, and the arguments of a command of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    forget_modules()


def forget_modules() -> None:
    """Have the modules of the page's folder imported anew, as each command and each script does."""
    folder = f"{Path.cwd()}/"
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
    importlib.invalidate_caches()


def with_marker(page: Path) -> Any:
    """The README and the tutorial are carried out by every suite, the other pages by `make test-faults`."""
    name = str(page.relative_to(ROOT))
    marks = [] if name in ("README.md", "docs/tutorial.md") else [pytest.mark.faults]
    return pytest.param(page, id=name, marks=marks)


@pytest.mark.parametrize("page", [with_marker(page) for page in PAGES])
def test_the_blocks_of_a_page_do_what_it_says(page: Path) -> None:
    carry_out_page(page, with_frameworks=False)


@pytest.mark.frameworks
@pytest.mark.parametrize("page", WITH_FRAMEWORKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_that_need_frameworks_do_what_it_says(page: Path) -> None:
    carry_out_page(page, with_frameworks=True)


def carry_out_page(page: Path, with_frameworks: bool) -> None:
    session: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.not_run or (block.frameworks and not with_frameworks):
            check(block)
        elif block.file:
            Path(block.file).parent.mkdir(parents=True, exist_ok=True)
            Path(block.file).write_text(block.code)
            if block.language == "yaml":
                read_job(block.file)
        elif block.language == "python":
            exec(compile(block.code, block.place, "exec"), session)
        elif block.language == "sh":
            for line in shell_commands(block.code):
                carry_out(line, block.place)
        else:
            check(block)


def check(block: Block) -> None:
    """What can be said of a block without carrying it out."""
    if block.language == "python":
        compile(block.code, block.place, "exec")
    elif block.language == "sh":
        for line in shell_commands(block.code):
            words = shlex.split(line, comments=True)
            if words[:1] == ["landscape"]:
                parse(words[1:], block.place)
    elif block.language == "yaml":
        check_job(block)
    elif block.language == "json":
        json.loads(block.code)
    else:
        raise AssertionError(f"{block.place}: the tests know no blocks of {block.language}")


def check_job(block: Block) -> None:
    """A whole job, some of its fields, or some of its landscapes."""
    data = yaml.safe_load(block.code)
    fields = {"landscapes": data} if isinstance(data, list) else data
    Path("checked.yaml").write_text(yaml.safe_dump(REST | fields))
    read_job("checked.yaml")


def parse(arguments: list[str], place: str) -> None:
    """Let the real parser read a command line."""
    plain, _, _ = common_options(arguments)
    try:
        app.parse_args(plain, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise AssertionError(f"{place}: landscape {' '.join(arguments)}: {error}") from None


def carry_out(line: str, place: str) -> None:
    """One command of a shell block: `landscape` and scripts in this process; what installs is only looked at."""
    forget_modules()
    match shlex.split(line, comments=True):
        case ["landscape", *arguments]:
            shrink_jobs()
            sys.argv[:] = ["landscape", *map(without_browser, arguments)]
            assert command() == 0, f"{place}: {line}"
        case ["python", file]:
            sys.argv[:] = [file]
            runpy.run_path(file, run_name="__main__")
        case ["make", *targets]:
            assert {each for each in targets if "=" not in each} <= TARGETS, f"{place}: {line}"
        case ["pip", "install", *arguments]:
            extras = set(re.findall(r"[\w-]+", "".join(re.findall(r"\[(.*)\]", arguments[-1]))))
            assert extras <= set(PROJECT["optional-dependencies"]), f"{place}: {line}"
        case ["cd", *_] | ["git", "clone", *_]:
            pass
        case _:
            raise AssertionError(f"{place}: say why it is not run, in a comment above its block: {line}")


def shrink_jobs() -> None:
    """Make the jobs of the folder small."""
    for path in Path().glob("*.yaml"):
        job = yaml.safe_load(path.read_text())
        for each in job.get("landscapes", ()):  # without any, those of the run's collector
            if "like" not in each and "accuracy" not in each:  # the size of another one; points where they are needed
                each["size"] = SMALL["size"]
        if not any("accuracy" in each for each in job.get("landscapes", ())):  # which chooses its samples
            job["num_samples"] = SMALL["num_samples"]
        path.write_text(yaml.safe_dump(job))


def without_browser(argument: str) -> str:
    """`png,csv` as `html,csv`; anything else as it is."""
    names = argument.split(",")
    return ",".join(BY_BROWSER.get(name, name) for name in names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_within_sentences_are_such_as_the_parser_knows(page: Path) -> None:
    """They may leave out what is required, and stand for several: `landscape run`, `landscape export ... --to csv`."""
    for text in commands_in_prose(page):
        plain, _, _ = common_options(shlex.split(text.replace("…", "").replace("...", ""))[1:])
        try:
            app.parse_args(plain, exit_on_error=False, print_error=False)
        except MissingArgumentError:
            pass
        except CycloptsError as error:
            raise AssertionError(f"{page.name}: {text}: {error}") from None


def test_what_is_not_run_has_a_reason() -> None:
    reasons = {block.not_run for page in PAGES for block in blocks_of(page) if block.not_run}
    assert all(len(reason.split()) >= 3 for reason in reasons), reasons


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    """Those of the site itself are checked where it is built."""
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_are_as_wide_as_a_page_shows(page: Path) -> None:
    shown = [block for block in blocks_of(page) if not block.hidden]
    assert [line for block in shown for line in block.code.splitlines() if len(line) > 92] == []

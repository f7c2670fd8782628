"""Which files of a job's folder are sent to a cluster, and the archive that is made from them."""

from __future__ import annotations

import contextlib
import io
import ntpath
import os
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.runtime.address import IN_A_RAY_JOB
from cluster.runtime.logs import write_remark
from cluster.runtime.placement import Shipped
from landscape.core.errors import JobError, quoted
from landscape.core.files import temporary_folder
from landscape.core.text import bytes_text

if TYPE_CHECKING:
    from pathspec import RegexPattern

IGNORE_FILES = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class IgnoreFile:
    """An ignore file in the job's folder or below.

    Attributes:
        name: its path in the job's folder.
        patterns: those of its lines that git takes for patterns.
    """

    name: str
    patterns: tuple[RegexPattern, ...]

    def says(self, name: str, is_folder: bool) -> bool | None:
        """Whether it excludes a file or folder; None where no pattern matches. The last matching pattern decides."""
        folder = self.name[: self.name.rfind("/") + 1]
        if not name.startswith(folder):
            return None
        inside = name.removeprefix(folder) + "/" * is_folder
        for pattern in reversed(self.patterns):
            # A match that ends earlier is that of a folder above, which was decided on before.
            if pattern.regex and any(match.end() == len(inside) for match in pattern.regex.finditer(inside)):
                return pattern.include
        return None


def read_ignore_file(text: str, name: str) -> IgnoreFile:
    """The patterns of an ignore file; as in git, a line that is no pattern, such as a single '!', is left out."""
    from pathspec import GitIgnoreSpec

    patterns: list[RegexPattern] = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            patterns += GitIgnoreSpec.from_lines([line]).patterns
    return IgnoreFile(name, tuple(pattern for pattern in patterns if pattern.include is not None))


def ignored_by(files: Iterable[IgnoreFile], name: str, is_folder: bool) -> str:
    """The ignore file that excludes `name`, '' where none does; the innermost one with a matching pattern decides."""
    excluded_by = ""
    for file in files:
        excludes = file.says(name, is_folder)
        if excludes is not None:
            excluded_by = file.name if excludes else ""
    return excluded_by


# ----------------------------------------------------------------------------------------------------
# The list of a job's folder: which files are sent to a cluster, and why the others are not.
#
# Ray's own packing follows links out of the folder and includes keys. So the archive is made here, and exactly what
# the user sees listed is sent.

LARGEST_UPLOAD = 200 << 20  # bytes of all files
DEEPEST = 60  # folders below one another
CACHES = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints")

# The reasons for which a file or folder is not sent.
SECRET = "may hold secrets"
LEAVES = "links that leave the folder"
CIRCLE = "links that run in a circle"
BROKEN = "links to nothing"
SPECIAL = "neither files nor folders"
UNREADABLE = "unreadable"
UNNAMED = "names that an archive cannot hold"
DEEP = f"below more than {DEEPEST} folders"
USUAL = "environments, caches and runs, which stay"
THE_RUN = "the run itself"


@dataclass(frozen=True)
class ListedFile:
    """A file that is sent: its name in the folder, its path with links resolved, its size and mode when listed."""

    name: str
    source: Path
    size: int
    mode: int


@dataclass
class SentFiles:
    """The files of a folder that are sent, and what is not.

    Attributes:
        files: by their names in the folder.
        omitted: name → reason; a name that ends in / is a folder.
        empty: the names of empty folders, which are sent too.
    """

    folder: Path
    files: dict[str, ListedFile] = field(default_factory=dict)
    omitted: dict[str, str] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Bytes of all files that are sent."""
        return sum(file.size for file in self.files.values())

    def only(self, names: Collection[str], why: str) -> SentFiles:
        """The same listing with only these of its files; the others are omitted for the reason `why`."""
        dropped = {name: why for name in self.files if name not in names}
        files = {name: self.files[name] for name in self.files if name in names}
        return SentFiles(self.folder, files, self.omitted | dropped)

    def why_omitted(self, name: str) -> str:
        """The reason why a file is omitted: its own, or that of a folder above it; '' where there is none."""
        parts = name.split("/")
        above = ["/".join(parts[:k]) + "/" for k in range(1, len(parts))]
        return next((self.omitted[place] for place in (name, f"{name}/", *above) if place in self.omitted), "")


def in_singular(reason: str) -> str:
    """The reason in the singular, for one file."""
    return {LEAVES: "a link that leaves the job file's folder", CIRCLE: "a link that runs in a circle"}.get(
        reason, reason
    )


def listing_lines(listing: SentFiles) -> list[str]:
    """A line for every file that is sent, with its size, then one for everything that is not, with the reason."""
    lines = [f"travels: {file.name}, {file.size} bytes" for _, file in sorted(listing.files.items())]
    lines += [f"travels: {name}, an empty folder" for name in sorted(listing.empty)]
    lines += [f"stays: {quoted(name)[1:-1]} ({in_singular(why)})" for name, why in sorted(listing.omitted.items())]
    return [*lines, f"{len(listing.files)} files travel, {bytes_text(listing.size)}"]


def omitted_line(listing: SentFiles, most: int = 6) -> str:
    """What is not sent, grouped by reason, in one line; '' where it is only the run and caches.

    Args:
        most: how many names are given for each reason.
    """
    by_reason: dict[str, list[str]] = {}
    for name, why in sorted(listing.omitted.items()):
        if why != THE_RUN and name.rstrip("/").rpartition("/")[2] not in CACHES:
            by_reason.setdefault(why, []).append(quoted(name)[1:-1])
    if not by_reason:
        return ""
    parts = []
    for why, names in by_reason.items():
        others = f" and {len(names) - most} more" if len(names) > most else ""
        parts.append(f"{', '.join(names[:most])}{others} ({why})")
    return f"not sent with the job: {'; '.join(parts)}"


MOST_ENTRIES = 100_000
IGNORED_UPLOADS = (".venv", "venv", "runs", "node_modules", *CACHES)
# They are compared with every part of a path, in lower case. A file that one of them matches is never sent.
SECRETS = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".aws", ".ssh", ".gnupg", ".kube", ".azure", ".docker",
    ".config", ".git", ".hg", ".svn", ".git-credentials", ".gitconfig", ".npmrc", ".pypirc", ".huggingface", ".pgpass",
    ".my.cnf", ".htpasswd", ".boto", ".s3cfg", ".databrickscfg", ".vault-token", ".terraformrc", "rclone.conf",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx", "*.gpg", "*.tfstate",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials*", ".credentials*", "secret.*", "secrets.*",
    "secrets", ".secrets",
    "service-account*.json", "service_account*.json", "kubeconfig*", "*.kubeconfig",
    "token", ".token", "*_token", "*.token", ".*_history",
)  # fmt: skip


def list_folder(folder: Path, run: str, include: Iterable[str] = (), required: Iterable[str] = ()) -> SentFiles:
    """List the files of a job's folder that are sent.

    What may hold secrets is not sent, nor links that lead out of the folder, environments and caches, the run and
    other runs, what the ignore files name, and what is neither a file nor a folder.

    Args:
        run: the run's folder or URL.
        include: names of files and folders that are sent even if they are ignored.
        required: names of files that the job cannot run without; they are sent even if they are ignored.

    Raises:
        JobError: a file of `include` or `required` cannot be sent, or all files are more than can be shipped.
    """
    root = folder.resolve()
    walk = _Walk(root, _inside(run, folder, root), SentFiles(folder))
    walk.add_folder(root, "", (), frozenset({root}), ignoring=True)
    return walk.with_named(include, required)


def list_files(folder: Path, run: str, names: Iterable[str]) -> SentFiles:
    """List these files of a folder and no others.

    Args:
        run: the run's folder or URL.

    Raises:
        JobError: one cannot be sent, or they are more than can be shipped.
    """
    root = folder.resolve()
    walk = _Walk(root, _inside(run, folder, root), SentFiles(folder))
    return walk.with_named((), names)


def _inside(run: str, folder: Path, root: Path) -> str:
    """The run's name in the folder, '' where it lies elsewhere."""
    if "://" in run:
        return ""
    for place, above in ((Path(run), folder.absolute()), (Path(run).resolve(), root)):
        if place.is_relative_to(above) and place != above:
            return place.relative_to(above).as_posix()
    return ""


@dataclass
class _Walk:
    """The listing of a folder while it grows; `run` is the run's name in the folder, '' where it lies elsewhere."""

    root: Path
    run: str
    listing: SentFiles
    entries: int = 0  # counted so far

    def add_folder(
        self, place: Path, below: str, rules: tuple[IgnoreFile, ...], above: frozenset[Path], ignoring: bool
    ) -> None:
        """List the entries of a folder.

        Args:
            below: the folder's own name in the job's folder.
            above: it and the folders that contain it, with links resolved: a link back to one of them is a circle.
        """
        try:
            names = sorted(os.listdir(place))
        except OSError:
            self.listing.omitted[f"{below}/"] = UNREADABLE
            return
        if ignoring:
            rules = (*rules, *_ignore_files_in(place, below))
        if not names and below:
            self.listing.empty.add(f"{below}/")
        for entry in names:
            self.add_entry(place / entry, f"{below}/{entry}" if below else entry, rules, above, ignoring)

    def add_entry(
        self, path: Path, name: str, rules: tuple[IgnoreFile, ...], above: frozenset[Path], ignoring: bool = True
    ) -> None:
        """List one entry of a folder, or note why it is not sent."""
        omitted = self.listing.omitted
        self.entries += 1
        if self.entries > MOST_ENTRIES:  # links may lead to the same folder in many ways
            raise JobError(
                f"job: the folder {quoted(str(self.listing.folder))} is shipped to the cluster and holds more than "
                f"{MOST_ENTRIES} files; move the job file and its callback to a folder of their own"
            )
        try:
            source = path.resolve(strict=True)
            status = source.stat()
        except (OSError, RuntimeError):
            omitted[name] = BROKEN if path.is_symlink() else UNREADABLE
            return
        is_folder = stat.S_ISDIR(status.st_mode)
        listed = f"{name}/" if is_folder else name
        reason = self._reason(source, name, is_folder, rules, ignoring)
        if not reason and not is_folder and not stat.S_ISREG(status.st_mode):
            reason = SPECIAL
        if not reason and is_folder and source in above:
            reason = CIRCLE
        if not reason and not os.access(source, os.R_OK):
            reason = UNREADABLE
        if reason:
            omitted[listed] = reason
            return
        omitted.pop(listed, None)
        if is_folder:
            self.add_folder(source, name, rules, above | {source}, ignoring)
        else:
            mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            self.listing.files[name] = ListedFile(name, source, status.st_size, mode)

    def _reason(self, source: Path, name: str, is_folder: bool, rules: tuple[IgnoreFile, ...], ignoring: bool) -> str:
        """Why the name or the resolved path of an entry keep it from being sent; '' where they do not."""
        if not source.is_relative_to(self.root):
            return LEAVES
        if is_secret(name) or is_secret(source.relative_to(self.root).as_posix()):
            return SECRET
        if not _can_be_packed(name):
            return UNNAMED
        if name.count("/") >= DEEPEST:
            return DEEP
        last = name.rpartition("/")[2]
        if last in CACHES:
            return USUAL
        if not ignoring:
            return ""
        if self.run and name == self.run:
            return THE_RUN
        if last in IGNORED_UPLOADS or (is_folder and _is_run(source)):
            return USUAL
        return ignored_by(rules, name, is_folder)

    def with_named(self, include: Iterable[str], required: Iterable[str]) -> SentFiles:
        """The listing, with the ignored files that the user and the job name.

        Raises:
            JobError: one of these cannot be sent, or all files are more than can be shipped.
        """
        for name in include:
            self.add_although_ignored(name, "include")
        for name in required:
            self.add_although_ignored(name, "job")
        _refuse_large(self.listing)
        return self.listing

    def add_although_ignored(self, name: str, field_name: str) -> None:
        """List a file or folder that the user or the job names.

        Raises:
            JobError: it does not exist, or cannot be sent; `field_name` is the field that names it.
        """
        named = Path(name)
        if named.is_absolute() or ".." in named.parts or not named.parts:
            raise JobError(f"{field_name}: must be a file in the job file's folder, not {quoted(name)}")
        plain, path = named.as_posix(), self.root / named
        if plain in self.listing.files or (path.is_dir() and not self.listing.why_omitted(plain)):
            return
        if not os.path.lexists(path):
            folder = quoted(str(self.listing.folder))
            raise JobError(f"{field_name}: the file {quoted(name)} does not exist in {folder}; mend its path")
        self.add_entry(path, plain, (), frozenset({self.root}), ignoring=False)
        reason = self.listing.why_omitted(plain) if plain not in self.listing.files else ""
        if reason:
            raise JobError(f"{field_name}: {quoted(name)} cannot be sent ({in_singular(reason)}); {_remedy(reason)}")


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, by the files that mark one, whatever it is called."""
    from landscape.store.runs import MARKS  # knows Zarr, which the help of a command need not load

    return any((folder / mark).exists() for mark in MARKS)


def _ignore_files_in(place: Path, below: str) -> Iterator[IgnoreFile]:
    for name in IGNORE_FILES:
        if (place / name).is_file():  # reading a pipe would never end
            with contextlib.suppress(OSError):
                text = (place / name).read_text(errors="replace")
                yield read_ignore_file(text, f"{below}/{name}" if below else name)


def is_secret(name: str) -> bool:
    """Whether any part of a path looks like a key, a password or a token."""
    return any(fnmatch(part, pattern) for part in name.lower().split("/") for pattern in SECRETS)


def _can_be_packed(name: str) -> bool:
    """Whether an archive can hold the name, and Ray unpacks it: Ray skips names with a backslash or a drive."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\\" not in name and not ntpath.splitdrive(name)[0] and name.isprintable()


def _remedy(reason: str) -> str:
    return {
        SECRET: "give keys to the driver in its environment, or rename what holds none",
        LEAVES: "copy in what it names",
        BROKEN: "mend the link",
        UNREADABLE: "mend its rights",
    }.get(reason, "put a plain file in its place")


def _refuse_large(listing: SentFiles) -> None:
    if listing.size <= LARGEST_UPLOAD:
        return
    largest = sorted(listing.files.values(), key=lambda file: -file.size)[:3]
    raise JobError(
        f"job: the folder {quoted(str(listing.folder))} is shipped to the cluster and holds more than "
        f"{LARGEST_UPLOAD >> 20} MiB; move the job file and its callback to a folder of their own (largest: "
        f"{', '.join(f'{quoted(file.name)} {bytes_text(file.size)}' for file in largest)})"
    )


def read_file(listed: ListedFile, root: Path) -> bytes:
    """The content of a file that was listed.

    Args:
        root: the job's folder, with links resolved; a file that no longer lies in it is refused.

    Raises:
        JobError: the file cannot be read, was replaced since it was listed, or is being written.
    """
    for _ in range(2):
        content = _read_once(listed, root)
        if content is not None:
            return content
    raise JobError(
        f"job: {quoted(listed.name)} changes while it is packed; send the job when it is written, or move it elsewhere"
    )


def _read_once(listed: ListedFile, root: Path) -> bytes | None:
    """The content; None where the file changed while it was read."""
    refused = f"job: {quoted(listed.name)} cannot be packed: "
    # Links were resolved when it was listed: a link that is here now may lead out of the folder.
    if listed.source.resolve() != listed.source or not listed.source.is_relative_to(root):
        raise JobError(f"{refused}it has become a link; give the command again")
    try:
        handle = os.open(listed.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise JobError(f"{refused}{error.strerror}; mend its rights or move it elsewhere") from None
    with open(handle, "rb") as file:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            raise JobError(f"{refused}it is no file any more; give the command again")
        if before.st_size > LARGEST_UPLOAD:
            raise JobError(f"{refused}it has grown to more than {LARGEST_UPLOAD >> 20} MiB; move it elsewhere")
        content = file.read(before.st_size + 1)
        after = os.fstat(handle)
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    return content if same and len(content) == before.st_size else None


def archive(listing: SentFiles) -> bytes:
    """The listed files as a zip archive; the same files give the same bytes, so that a cluster keeps one copy."""
    root, content = listing.folder.resolve(), io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for name in sorted(listing.empty):
            packed.writestr(_entry(name, 0o755), b"")
        for name, listed in sorted(listing.files.items()):
            packed.writestr(_entry(name, listed.mode), read_file(listed, root))
    return content.getvalue()


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = mode << 16
    return entry


@contextlib.contextmanager
def write_archive(listing: SentFiles) -> Iterator[Path]:
    """Within the block, the archive as a file that only its owner may read.

    Raises:
        JobError: a listed file cannot be packed.
    """
    with temporary_folder() as folder:
        path = folder / "job.zip"
        path.write_bytes(archive(listing))
        yield path


# ----------------------------------------------------------------------------------------------------
# A portable problem on its way to a cluster, of which only the file travels; and the files of any job.


def travelling_folder(folder: Path) -> Path:
    """The folder from which a job's files travel: its own, or the one that holds the file of a packed job."""
    return folder.parent if is_packed(folder) else folder


def is_packed(folder: Path) -> bool:
    """Whether a job's folder is the file of a portable problem, which holds everything that the job names."""
    from landscape.model.packed_file import names_a_file

    return names_a_file(str(folder))


def packed_listing(file: Path, run: str, include: Iterable[str] = ()) -> SentFiles:
    """The listing of a packed job: its file, and the files that `include` names.

    Raises:
        JobError: one of these cannot be sent, or is too large.
    """
    return list_files(file.parent, run, [file.name, *include])


@contextlib.contextmanager
def upload(job: Shipped) -> Iterator[dict[str, Any]]:
    """The runtime environment of an attached cluster: the job file's folder, from which its callback is imported.

    It is empty where the callback is installed, and inside a Ray job, which has a working directory already.

    Raises:
        JobError: the folder holds more than can be shipped.
    """
    required = callback_files(job)
    if not required or IN_A_RAY_JOB in os.environ:
        yield {}
        return
    if is_packed(job.folder):
        listing = packed_listing(job.folder, job.run_path)
    else:
        listing = list_folder(job.folder, job.run_path, required=required)
    if line := omitted_line(listing):
        write_remark(line, "files")
    with write_archive(listing) as path:
        yield {"working_dir": str(path)}


def callback_files(job: Shipped) -> list[str]:
    """The callback's module or package, or the portable problem, in the job's folder; empty where it is installed."""
    from landscape.job.job import module_files
    from landscape.model.packed_file import names_a_file, onnx_files

    if not isinstance(job.problem, str):
        return []
    if names_a_file(job.problem):
        inside = not Path(job.problem).is_absolute() or is_packed(job.folder)
        return [Path(job.problem).name if is_packed(job.folder) else job.problem] if inside else []
    if files := onnx_files(job.problem):
        return [name for name in files if not Path(name).is_absolute()]
    return module_files(job.problem, job.folder)

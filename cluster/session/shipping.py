"""What of a job's folder travels to a cluster, file by file, what stays and why, and the archive of what travels.

The archive is made here and not by Ray, whose own follows links out of the folder and takes keys along: so the list
that a person is shown is what is sent.
"""

from __future__ import annotations

import contextlib
import io
import ntpath
import os
import stat
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cluster.process.logs import say
from cluster.session.attach import IN_A_RAY_JOB
from cluster.session.gitignore import FILES, Rule, ignored_by, read_rules
from landscape.errors import JobError, shown
from landscape.spec.job import Job

LARGEST_UPLOAD = 200 << 20
MOST_ENTRIES = 100_000
DEEPEST = 60
CACHES = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints")
IGNORED_UPLOADS = (".venv", "venv", "runs", "node_modules", *CACHES)
# Any part of a path, in lower case. What one of them fits is sent to nobody, whoever asks for it.
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
class Traveller:
    """A file that travels: its name in the folder, where it truly lies, and what it was when it was listed."""

    name: str
    source: Path
    size: int
    mode: int


@dataclass
class Listing:
    """What of a folder travels, by name, and why the rest stays, by name; a name that ends in / is a folder."""

    folder: Path
    files: dict[str, Traveller] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.files.values())

    def only(self, names: Collection[str], why: str) -> Listing:
        """The same folder where only these files travel, the others staying for one reason."""
        stay = {name: why for name in self.files if name not in names}
        return Listing(self.folder, {name: self.files[name] for name in self.files if name in names}, self.left | stay)

    def why_left(self, name: str) -> str:
        """Why `name` stays: its own reason, or that of a folder above it; '' where nothing is known of it."""
        parts = name.split("/")
        above = ["/".join(parts[:k]) + "/" for k in range(1, len(parts))]
        return next((self.left[each] for each in (name, f"{name}/", *above) if each in self.left), "")


def list_folder(folder: Path, run: str, include: Iterable[str] = (), required: Iterable[str] = ()) -> Listing:
    """Look through a job's folder.

    Left behind are: what may hold secrets, links that lead out, environments and caches, the run, what the ignore files
    name, and what is no file.

    Args:
        include: files and folders that travel though they are ignored.
        required: files without which the job cannot run; they travel though they are ignored.

    Raises:
        JobError: what is included or required cannot travel, or all is more than can be shipped.
    """
    root = folder.resolve()
    walk = _Walk(root, _inside(run, folder, root), Listing(folder))
    walk.enter(root, "", (), frozenset({root}), ignoring=True)
    for name in include:
        walk.force(name, "include")
    for name in required:
        walk.force(name, "job")
    _refuse_large(walk.listing)
    return walk.listing


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
    root: Path
    run: str
    listing: Listing
    taken: int = 0

    def enter(self, place: Path, below: str, rules: tuple[Rule, ...], above: frozenset[Path], ignoring: bool) -> None:
        """List a folder; `above` are the true places of the folders on the way, so that no link leads back."""
        try:
            names = sorted(os.listdir(place))
        except OSError:
            self.listing.left[f"{below}/"] = UNREADABLE
            return
        if ignoring:
            rules = (*rules, *_rules_in(place, below))
        if not names and below:
            self.listing.empty.add(f"{below}/")
        for each in names:
            self.take(place / each, f"{below}/{each}" if below else each, rules, above, ignoring)

    def take(
        self, path: Path, name: str, rules: tuple[Rule, ...], above: frozenset[Path], ignoring: bool = True
    ) -> None:
        """List one entry of a folder."""
        left = self.listing.left
        self.taken += 1
        if self.taken > MOST_ENTRIES:  # links may lead to the same folder on many ways
            raise JobError(
                f"job: the folder {shown(str(self.listing.folder))} is shipped to the cluster and holds more than "
                f"{MOST_ENTRIES} files; move the job file and its callback to a folder of their own"
            )
        try:
            source = path.resolve(strict=True)
            status = source.stat()
        except (OSError, RuntimeError):
            left[name] = BROKEN if path.is_symlink() else UNREADABLE
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
            left[listed] = reason
            return
        left.pop(listed, None)
        if is_folder:
            self.enter(source, name, rules, above | {source}, ignoring)
        else:
            mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
            self.listing.files[name] = Traveller(name, source, status.st_size, mode)

    def _reason(self, source: Path, name: str, is_folder: bool, rules: tuple[Rule, ...], ignoring: bool) -> str:
        """Why an entry stays, as its name and its true place tell."""
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
        if last in IGNORED_UPLOADS:
            return USUAL
        return ignored_by(rules, name, is_folder)

    def force(self, name: str, field_name: str) -> None:
        """List a file or folder that somebody asks for, ignored or not."""
        given = Path(name)
        if given.is_absolute() or ".." in given.parts or not given.parts:
            raise JobError(f"{field_name}: must be a file in the job file's folder, not {shown(name)}")
        plain, path = given.as_posix(), self.root / given
        if plain in self.listing.files or (path.is_dir() and not self.listing.why_left(plain)):
            return
        if not os.path.lexists(path):
            folder = shown(str(self.listing.folder))
            raise JobError(f"{field_name}: the file {shown(name)} does not exist in {folder}; mend its path")
        self.take(path, plain, (), frozenset({self.root}), ignoring=False)
        reason = self.listing.why_left(plain) if plain not in self.listing.files else ""
        if reason:
            raise JobError(f"{field_name}: {shown(name)} cannot travel ({_singular(reason)}); {_remedy(reason)}")


def _rules_in(place: Path, below: str) -> Iterator[Rule]:
    for name in FILES:
        if (place / name).is_file():  # and no pipe, which would not end
            with contextlib.suppress(OSError):
                text = (place / name).read_text(errors="replace")
                yield from read_rules(text, below, f"{below}/{name}" if below else name)


def is_secret(name: str) -> bool:
    """Whether any part of a path looks like a key, a password or a token."""
    return any(fnmatch(part, pattern) for part in name.lower().split("/") for pattern in SECRETS)


def _can_be_packed(name: str) -> bool:
    """Ray passes over, in silence, a name with a backslash or a drive; an archive holds no bytes that are no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\\" not in name and not ntpath.splitdrive(name)[0] and name.isprintable()


def _singular(reason: str) -> str:
    return {LEAVES: "a link that leaves the job file's folder", CIRCLE: "a link that runs in a circle"}.get(
        reason, reason
    )


def _remedy(reason: str) -> str:
    return {
        SECRET: "give keys to the driver in its environment, or rename what holds none",
        LEAVES: "copy in what it names",
        BROKEN: "mend the link",
        UNREADABLE: "mend its rights",
    }.get(reason, "put a plain file in its place")


def _refuse_large(listing: Listing) -> None:
    if listing.size <= LARGEST_UPLOAD:
        return
    largest = sorted(listing.files.values(), key=lambda each: -each.size)[:3]
    raise JobError(
        f"job: the folder {shown(str(listing.folder))} is shipped to the cluster and holds more than "
        f"{LARGEST_UPLOAD >> 20} MiB; move the job file and its callback to a folder of their own (largest: "
        f"{', '.join(f'{shown(each.name)} {size_text(each.size)}' for each in largest)})"
    )


# -- for people -------------------------------------------------------------------------------------------------


def size_text(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def listing_lines(listing: Listing) -> list[str]:
    """Every file that travels with its size, then everything that stays with its reason."""
    lines = [f"travels: {each.name}, {each.size} bytes" for _, each in sorted(listing.files.items())]
    lines += [f"travels: {name}, an empty folder" for name in sorted(listing.empty)]
    lines += [f"stays: {shown(name)[1:-1]} ({_singular(why)})" for name, why in sorted(listing.left.items())]
    return [*lines, f"{len(listing.files)} files travel, {size_text(listing.size)}"]


def left_line(listing: Listing, most: int = 6) -> str:
    """What stays, by its reason, in one line; '' where there is nothing that anybody would miss."""
    by_reason: dict[str, list[str]] = {}
    for name, why in sorted(listing.left.items()):
        if why != THE_RUN and name.rstrip("/").rpartition("/")[2] not in CACHES:
            by_reason.setdefault(why, []).append(shown(name)[1:-1])
    if not by_reason:
        return ""
    parts = []
    for why, names in by_reason.items():
        more = f" and {len(names) - most} more" if len(names) > most else ""
        parts.append(f"{', '.join(names[:most])}{more} ({why})")
    return f"not sent with the job: {'; '.join(parts)}"


# -- the archive ------------------------------------------------------------------------------------------------


def read_file(traveller: Traveller, root: Path) -> bytes:
    """The content of a file as it was listed.

    Raises:
        JobError: it cannot be read, is another one by now, or is being written.
    """
    for _ in range(2):
        content = _read_once(traveller, root)
        if content is not None:
            return content
    raise JobError(
        f"job: {shown(traveller.name)} changes while it is packed; "
        "send the job when it is written, or move it elsewhere"
    )


def _read_once(traveller: Traveller, root: Path) -> bytes | None:
    """The content; None where the file changed meanwhile."""
    refused = f"job: {shown(traveller.name)} cannot be packed: "
    # The place was resolved when it was listed: a link there now leads where nobody has looked.
    if traveller.source.resolve() != traveller.source or not traveller.source.is_relative_to(root):
        raise JobError(f"{refused}it has become a link; give the command again")
    try:
        handle = os.open(traveller.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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


def archive(listing: Listing) -> bytes:
    """The listed files as a zip; the same files give the same bytes, of which a cluster keeps one copy."""
    root, held = listing.folder.resolve(), io.BytesIO()
    with zipfile.ZipFile(held, "w") as packed:
        for name in sorted(listing.empty):
            packed.writestr(_entry(name, 0o755), b"")
        for name, traveller in sorted(listing.files.items()):
            packed.writestr(_entry(name, traveller.mode), read_file(traveller, root))
    return held.getvalue()


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = mode << 16
    return entry


@contextlib.contextmanager
def archived(listing: Listing) -> Iterator[Path]:
    """The archive as a file, for as long as the block runs; only its owner may read it."""
    with tempfile.TemporaryDirectory(prefix="landscape-") as folder:
        path = Path(folder) / "job.zip"
        path.write_bytes(archive(listing))
        yield path


@contextlib.contextmanager
def upload(job: Job) -> Iterator[dict[str, Any]]:
    """The runtime environment of an attached cluster: the job file's folder, so that its callback imports there.

    Empty where the callback is installed, and inside a Ray job, which has a working directory already.

    Raises:
        JobError: the folder holds more than can be shipped.
    """
    required = callback_files(job)
    if not required or IN_A_RAY_JOB in os.environ:
        yield {}
        return
    listing = list_folder(job.folder, job.run_path, required=required)
    if line := left_line(listing):
        say(line, "files")
    with archived(listing) as path:
        yield {"working_dir": str(path)}


def callback_files(job: Job) -> list[str]:
    """The callback's module or package in the job file's folder; empty where it is installed."""
    if not isinstance(job.problem, str):
        return []
    top = job.problem.partition(":")[0].partition(".")[0]
    return [name for name in (f"{top}.py", top) if (job.folder / name).is_file() or (job.folder / name).is_dir()]

"""The walk through a job's folder that decides what of it is sent."""

from __future__ import annotations

import contextlib
import ntpath
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from cluster.runtime.gitignore import FILES, Rule, ignored_by, read_rules
from cluster.runtime.listing import (
    BROKEN,
    CACHES,
    CIRCLE,
    DEEP,
    DEEPEST,
    LARGEST_UPLOAD,
    LEAVES,
    SECRET,
    SPECIAL,
    THE_RUN,
    UNNAMED,
    UNREADABLE,
    USUAL,
    ListedFile,
    Listing,
    in_singular,
    size_text,
)
from landscape.core.errors import JobError, shown

MOST_ENTRIES = 100_000
IGNORED_UPLOADS = (".venv", "venv", "runs", "node_modules", *CACHES)
# Compared with every part of a path, in lower case. A file that one of them matches is never sent, whoever asks for it.
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


def list_folder(folder: Path, run: str, include: Iterable[str] = (), required: Iterable[str] = ()) -> Listing:
    """List what of a job's folder is sent.

    Not sent are: what may hold secrets, links that lead out of the folder, environments and caches, the run, what the
    ignore files name, and what is neither a file nor a folder.

    Args:
        run: the run's folder or URL.
        include: names of files and folders that are sent although they are ignored.
        required: names of files without which the job cannot run; they are sent although they are ignored.

    Raises:
        JobError: a file of `include` or `required` cannot be sent, or all files are more than can be shipped.
    """
    root = folder.resolve()
    walk = _Walk(root, _inside(run, folder, root), Listing(folder))
    walk.add_folder(root, "", (), frozenset({root}), ignoring=True)
    for name in include:
        walk.add_although_ignored(name, "include")
    for name in required:
        walk.add_although_ignored(name, "job")
    _refuse_large(walk.listing)
    return walk.listing


def list_files(folder: Path, run: str, names: Iterable[str]) -> Listing:
    """List files of a folder by their names, and nothing else of it.

    Args:
        run: the run's folder or URL.

    Raises:
        JobError: one cannot be sent, or they are more than can be shipped.
    """
    root = folder.resolve()
    walk = _Walk(root, _inside(run, folder, root), Listing(folder))
    for name in names:
        walk.add_although_ignored(name, "job")
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
    """The listing of a folder while it grows; `run` is the run's name in the folder, '' where it lies elsewhere."""

    root: Path
    run: str
    listing: Listing
    entries: int = 0  # counted so far

    def add_folder(
        self, place: Path, below: str, rules: tuple[Rule, ...], above: frozenset[Path], ignoring: bool
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
            rules = (*rules, *_rules_in(place, below))
        if not names and below:
            self.listing.empty.add(f"{below}/")
        for entry in names:
            self.add_entry(place / entry, f"{below}/{entry}" if below else entry, rules, above, ignoring)

    def add_entry(
        self, path: Path, name: str, rules: tuple[Rule, ...], above: frozenset[Path], ignoring: bool = True
    ) -> None:
        """List one entry of a folder, or note why it is not sent."""
        omitted = self.listing.omitted
        self.entries += 1
        if self.entries > MOST_ENTRIES:  # links may lead to the same folder in many ways
            raise JobError(
                f"job: the folder {shown(str(self.listing.folder))} is shipped to the cluster and holds more than "
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

    def _reason(self, source: Path, name: str, is_folder: bool, rules: tuple[Rule, ...], ignoring: bool) -> str:
        """Why an entry is not sent, as far as its name and its resolved path tell; '' where it may be."""
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

    def add_although_ignored(self, name: str, field_name: str) -> None:
        """List a file or folder that the user or the job names.

        Raises:
            JobError: it does not exist, or cannot be sent; `field_name` is the field that names it.
        """
        given = Path(name)
        if given.is_absolute() or ".." in given.parts or not given.parts:
            raise JobError(f"{field_name}: must be a file in the job file's folder, not {shown(name)}")
        plain, path = given.as_posix(), self.root / given
        if plain in self.listing.files or (path.is_dir() and not self.listing.why_omitted(plain)):
            return
        if not os.path.lexists(path):
            folder = shown(str(self.listing.folder))
            raise JobError(f"{field_name}: the file {shown(name)} does not exist in {folder}; mend its path")
        self.add_entry(path, plain, (), frozenset({self.root}), ignoring=False)
        reason = self.listing.why_omitted(plain) if plain not in self.listing.files else ""
        if reason:
            raise JobError(f"{field_name}: {shown(name)} cannot be sent ({in_singular(reason)}); {_remedy(reason)}")


def _rules_in(place: Path, below: str) -> Iterator[Rule]:
    for name in FILES:
        if (place / name).is_file():  # reading a pipe would never end
            with contextlib.suppress(OSError):
                text = (place / name).read_text(errors="replace")
                yield from read_rules(text, below, f"{below}/{name}" if below else name)


def is_secret(name: str) -> bool:
    """Whether any part of a path looks like a key, a password or a token."""
    return any(fnmatch(part, pattern) for part in name.lower().split("/") for pattern in SECRETS)


def _can_be_packed(name: str) -> bool:
    """Whether an archive can hold the name, and Ray unpacks it: it silently skips names with a backslash or a drive."""
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


def _refuse_large(listing: Listing) -> None:
    if listing.size <= LARGEST_UPLOAD:
        return
    largest = sorted(listing.files.values(), key=lambda each: -each.size)[:3]
    raise JobError(
        f"job: the folder {shown(str(listing.folder))} is shipped to the cluster and holds more than "
        f"{LARGEST_UPLOAD >> 20} MiB; move the job file and its callback to a folder of their own (largest: "
        f"{', '.join(f'{shown(each.name)} {size_text(each.size)}' for each in largest)})"
    )

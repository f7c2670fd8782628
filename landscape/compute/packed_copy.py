"""The packed copy of a job's problem that its run keeps, so that any machine can ask about its landscapes.

It is what `landscape pack` writes, without the snapshots of the run, which lie beside it. It is made for a job that was
sent to a cluster, whose folder there ends with it; `callback_place.py` takes it where the callback is not found.
"""

from __future__ import annotations

import logging
import shutil

from landscape.compute.callback_place import manifest_digest
from landscape.compute.pack import PackResult, pack_prepared
from landscape.compute.prepared import PreparedJob
from landscape.core.errors import Interrupted, JobError, message_of
from landscape.core.files import temporary_folder
from landscape.core.folders import open_folder
from landscape.core.progress import stage
from landscape.core.system import sent_from
from landscape.core.text import bytes_text
from landscape.model.packed_file import SUFFIX
from landscape.store.landscape import LandscapeStore
from landscape.store.runs import COPIES
from landscape.surface.record_parts import PackedCopyRecord

LARGEST_COPY = 1 << 30  # bytes, unless the job asks for a copy

log = logging.getLogger("landscape")


def keep_packed_copy(prepared: PreparedJob) -> None:
    """Keep a copy in the run of a job that was sent, or asks for one; the caller holds the run's lock.

    A problem that cannot be packed gives a line that says why, and no error: the landscapes are computed.
    """
    job = prepared.job
    wanted = sent_from() is not None if job.packed_copy is None else job.packed_copy
    if not wanted or job.level is not None or (job.extends is not None and not job.packed_copy):
        return
    try:
        stores = [LandscapeStore.open(prepared.run, landscape.name, write=True) for landscape in prepared.landscapes]
        kept = set(open_folder(prepared.run).names(COPIES))
        if all(store.record.packed and store.record.packed.file.rpartition("/")[2] in kept for store in stores):
            return
        stage("keeping a packed copy of the problem in the run")
        copy = _keep(prepared, None if job.packed_copy else LARGEST_COPY)
        for store in stores:
            store.update_attributes(packed=copy)
            store.consolidate()
    except Interrupted:
        raise
    except Exception as error:  # of the user's code, of its export, or of the disk
        log.warning("the run keeps no packed copy of the problem: %s", message_of(error))


def _keep(prepared: PreparedJob, most: int | None) -> PackedCopyRecord:
    """Write the copy into the run, named by its digest.

    Args:
        most: bytes that it may have; None for any number.

    Raises:
        JobError: the problem cannot be packed, or is too large.
    """
    model = prepared.problem.model
    tensors = [*model.parameters(), *model.buffers()]
    _refuse_large(sum(tensor.nbytes for tensor in tensors) + prepared.samples.nbytes, most)
    with temporary_folder() as folder:
        packed = pack_prepared(prepared, folder / f"problem{SUFFIX}", prepared.run)
        _refuse_large(packed.size, most)
        return _copy_into(prepared.run, packed)


def _copy_into(run: str, packed: PackResult) -> PackedCopyRecord:
    digest = manifest_digest(packed.path)
    file = f"{COPIES}/{digest[:16]}{SUFFIX}"
    with open_folder(run).whole(file) as target:
        shutil.copyfile(packed.path, target)
    return PackedCopyRecord(
        file=file, digest=digest, files=packed.named.files, runs=packed.named.runs,
        difference=packed.compared.difference,
    )  # fmt: skip


def _refuse_large(size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise JobError(
            f"it would take {bytes_text(size)}, more than {bytes_text(most)}; write packed_copy: true in the job to "
            "keep it, or packed_copy: false for none"
        )

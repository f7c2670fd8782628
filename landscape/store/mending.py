"""Damaged documents of a landscape, replaced by their copies in the root when a driver opens it."""

from __future__ import annotations

from zarr.abc.store import Store

from landscape.store import commit
from landscape.store.arrays import LandscapeArrays
from landscape.store.documents import METADATA, Documents
from landscape.store.writing import write_document


def mend_arrays(arrays: LandscapeArrays, path: str, store: Store, documents: Documents) -> None:
    """Write the document of each array anew for which the root's copy stands in.

    Args:
        path: of the landscape in the store.
    """
    for name in arrays.names:
        array = arrays.describe(name)
        if array.problem:
            write_document(store, f"{path}/{name}/{METADATA}", documents.text(array.document))
    commit.flush(store)

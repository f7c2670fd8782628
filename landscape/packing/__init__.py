"""Portable problems, written: a job, its problem exported, its samples and snapshots, in one file for `landscape run`.

packing      `pack`: from a job to the file
exported     functions of a model and a batch, exported by torch as graphs
refusals     what is said where something does not export: which operation, where, and what to do
described    graphs of torch as the plain values of `landscape.model.packed_graph`
tree         the model's modules, parameters and buffers as plain values
inlined      layers whose calls became plain operations
writing      the zip: members aligned, with digests
compared     the packed problem beside its source, on samples of the job
"""

from __future__ import annotations

from landscape.packing.packing import Packed, pack

__all__ = ["Packed", "pack"]

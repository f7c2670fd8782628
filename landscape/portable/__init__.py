"""Portable problems, read: a model's graph, tensors, samples and a job in one file; no code of its sender runs.

archive      the file: a zip of stored members, each with its digest; what is damaged or foreign is refused
tensors      named tensors of a member, mapped from the file
structure    batches of tensors in tuples, lists and dicts, as plain values
operations   the list of operations that a graph may hold, each group with the reason why
indices      indices compared with their dimension before an operation uses them
rules        what torch does not check of shapes and numbers that operations are given
bounds       what a graph would take in memory and work, found before it is computed
graph        a graph from JSON, checked and made into a function
modules      the tree of modules that hold the parameters, some of them layers of torch
model        the model that runs graphs
manifest     what the file says of itself, as typed values
"""

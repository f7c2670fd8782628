"""Portable problems, read: a model's graph, tensors, samples and a job in one file; no code of its sender runs.

archive      the file: a zip of stored members, each with its digest; what is damaged or foreign is refused
tensors      named tensors of a member, mapped from the file
structure    batches of tensors in tuples, lists and dicts, as plain values
operations   which operations a graph may hold
graph        a graph from JSON, checked and made into a function
modules      the tree of modules that hold the parameters, some of them layers of torch
model        the model that runs graphs
manifest     what the file says of itself, as typed values
"""

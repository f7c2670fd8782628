"""Ray Train around a function of a `Training`: its workers, what becomes of those that are lost, its logs, its pace.

function        what is trained: a recipe, 'module:function' or a callable; its options, checked by its signature
job             a training as it is asked for
rank            one rank of it, with Ray and without
rank_log        stdout, stderr and logging of a rank, in the run
pace            samples per second, and the share of time spent in communication
board           the actor to which ranks and controller tell what happens
failures        what of it is tried again, decided beside Ray Train's controller
trainer         Ray Train itself
train           `cluster.train`
scaling         the same global batch with several numbers of workers
"""

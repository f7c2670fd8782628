"""Ray Train around a function of a `Training`: its workers, what becomes of those that are lost, its logs, its pace.

function, options   what is trained, by its name or itself; its options, checked by its signature
job                 a training as it is asked for, and what each rank is told
rank                one rank of it, with Ray and without
rank_log, reading   what a rank prints and logs, written to the run and read from there
pace                samples per second, and the share of time spent in communication
board               the actor to which ranks and controller tell what happens
failures            what of it is tried again, decided in Ray Train's controller
settings, trainer   what Ray Train is told, and Ray Train itself
report              what the user is told
train               `cluster.train`
scaling             the same global batch with several numbers of workers
"""

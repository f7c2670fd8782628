"""Ray Train around a function of a `Training`: its workers, what becomes of those that are lost, its logs, its pace.

options   what is trained, by its name or itself; its options, checked by its signature
rank      a training as it is asked for, and one rank of it, with Ray and without
logs      what a rank prints and logs, written to the run and read from there
trainer   Ray Train itself, and what of a failure is tried again
report    what ranks and controller tell the driver, and the driver the user
train     `cluster.train`, and the same global batch with several numbers of workers
"""

"""The weights that a training passed through, on disk: written, imported, replaced and read back.

    run_files       the names of a run's files, and run.json
    history         history.jsonl: one line per recorded step and epoch
    snapshots       one file of weights per epoch or step; all of them are the trajectory
    replacement     puts another trajectory in place of the one that a run holds
    importing       makes existing checkpoints the trajectory; `numbering` tells their epochs or steps
    checkpoint_names   the names of a training's checkpoints
    launch          how `landscape train` last began a training, and how that ended
    training_state  how far a training is
    weight_files    reads weights from files that other programs wrote

`landscape.collector` writes a trajectory during training.
"""

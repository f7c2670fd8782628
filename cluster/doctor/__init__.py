"""What this machine, a cluster and a run have, what is wrong, and how to mend it."""

"""What the user's callback returns, and the samples of it that a landscape is computed on.

The value:
    terms           `Problem`: model, data and what to observe; its classmethods build the common kinds, among them
                    losses of several terms, each at points of its own
    supervised      what `Problem.supervised` observes: a criterion and metrics; the check of all that is observed
    language        what `Problem.causal_lm` observes: the cross entropy of tokens, which are read and padded
The user's code:
    callback        importing and calling it; problems in files instead: packed ones, and models of ONNX
    network         what training tells the callback of the network that it made
    user_code       running any code of the user's, with errors that name its line
The samples:
    batches         tensors with one first dimension, and batches of any other structure; the samples that a job chooses
                    once: their number, batches, digest and size; `collated` those of any shape
    sources         the kinds of data, and how they are read; data without an end are refused
    selection       which samples are chosen, by the seed alone
    disk_buffer     tensors that are too large for memory
    randomness      whether reading the data draws random numbers
"""

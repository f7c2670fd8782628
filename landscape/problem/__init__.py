"""What the user's callback returns, and the samples of it that a landscape is computed on.

The value:
    problem         `Problem`: model, data and what to observe; its classmethods build the common kinds
    supervised      what `Problem.supervised` observes: a criterion and metrics
    language        what `Problem.causal_lm` observes: the cross entropy of tokens; `tokens` reads and pads these
    terms           what `Problem.terms` observes: several losses, at the sets of `points`
    observables     the values that `observe` may return; `names` says how these may be called
    derived         surfaces that follow from means
The user's code:
    callback        importing and calling it; `network` says how training made the network
    user_code       running any code of the user's, with errors that name its line
The samples:
    samples         what a job chooses once: their number, batches, digest and size; `collated` of any shape
    batches         the structure of tensors with one first dimension, joined and split
    structure       batches of any other structure; `contents` says what a sample holds
    sources         the kinds of data; `reading` reads them, `endless` refuses data without an end
    selection       which samples are chosen, by the seed alone; `choice` says of what, `streams` of an iterable
    kept_rows       tensors that are kept while data are read; `tensor_files` where they are too large for memory
    items           samples of any kind as bytes, for disk and other processes
    randomness      whether reading the data draws random numbers
"""

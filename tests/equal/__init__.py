"""The machine of equalities: whatever way a training takes, it ends with the bits of the plain way.

A `Task` decides what bits a run has: data, model, optimizers, order, types of weights, and whether it is
on the host, on a device, or on two ranks. An `Arm` is the way there: where rows are, which leave, how far
ahead is planned, how checkpoints are written. The machine draws a task, and goes its way in pieces, each
with an arm of its own, that end by an interruption or a kill; it looks at the weights and evaluates in
between. After each look, and at the end, it has the bits of a run in one piece with all rows in memory.
"""

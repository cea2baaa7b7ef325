"""Steps in order: the model with its tables, a step, evaluation, the run of all steps."""

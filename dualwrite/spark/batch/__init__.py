"""Whole batches as one atomic write: a run of a job, its tasks, its decision."""

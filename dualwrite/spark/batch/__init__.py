"""Whole batches as one act: a run of a job, its tasks, its decision."""

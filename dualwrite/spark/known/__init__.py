"""What is known of a job's earlier batches: their targets, and which numbers were forgotten."""

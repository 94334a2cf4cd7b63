"""Writers for foreachPartition and foreachBatch: each partition is one unit of work, and is written once."""

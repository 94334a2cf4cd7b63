"""Writers for foreachPartition and foreachBatch: each partition is one dual write, and written once."""

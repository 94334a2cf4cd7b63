"""Records as bytes and partitions of keys, without I/O."""

"""What the broker needs of its process and its machine: files, locks, clocks, threads, and the end of the process."""

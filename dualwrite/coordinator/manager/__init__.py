"""The object behind DualWrite and AsyncDualWrite: it begins and ends units of work, and recovers."""

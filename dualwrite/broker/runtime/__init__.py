"""The only place where the core meets the log: decide, append, apply, one fsync for many, send replies, run effects."""

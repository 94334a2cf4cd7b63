"""The command line: one small file per verb. Each calls plain functions that a library user can call too."""

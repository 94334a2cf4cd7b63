"""The command line: one small file per verb, over plain functions that a library user can call too."""

"""Loads a file into a table and a topic: each batch is one unit of work, and the input position is part of it."""

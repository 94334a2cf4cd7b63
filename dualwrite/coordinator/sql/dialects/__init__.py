"""The databases that can hold the decision, and the differences between them.

docs/decisions/0011-databases.md says how to add one.
"""

"""Operators' functions: list open transactions, show what recovery would do, check the setup.

Plain functions over an engine and a Kafka configuration; ``dualwrite transactions``, ``recover`` and ``doctor`` call
them.
"""

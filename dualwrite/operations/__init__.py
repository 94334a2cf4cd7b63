"""Functions for operators: list open transactions, show the plan of recovery, check the setup.

Plain functions over an engine and a Kafka configuration; ``dualwrite transactions``, ``recover`` and ``doctor`` call
them.
"""

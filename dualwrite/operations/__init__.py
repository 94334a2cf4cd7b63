"""What an operator asks and does: which transactions are open, what recovery would do, whether all is set up.

Plain functions over an engine and a Kafka configuration; ``dualwrite transactions``, ``recover`` and ``doctor`` are
thin shells over them.
"""

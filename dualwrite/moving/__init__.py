"""Moves topics, consumer groups and applications from one Kafka cluster to another: ``dualwrite move``.

Plain functions over two Kafka configurations (``move.py``); the state of a move is in a topic of the target cluster
(decision 0038).
"""

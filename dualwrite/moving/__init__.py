"""Moves topics, consumer groups and applications from one Kafka cluster to another: ``dualwrite move``.

``ClusterMove`` (``move.py``) has a method for each verb. The state of a move is in a topic of the target cluster
(decision 0038).
"""

"""Compares a table with a topic, key by key: for ``dualwrite compare`` and for the demo.

It reads the topic by confluent-kafka's consumer and the table by plain SQL, so it does not depend on the parts of the
library that wrote them.
"""

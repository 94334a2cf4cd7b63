"""The code of the producer in which no interrupt is tried.

Python looks for signals at calls and in loops, not between a flag and the ``try`` that takes it back. A trace function
knows code by its code object, and the method is not public: an application's own calls report.
"""

from dualwrite.client.producer.base_producer import BaseProducer

REPORT = BaseProducer._report.__code__
"""Calls the delivery callbacks that are due."""

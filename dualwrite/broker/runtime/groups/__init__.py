"""Groups of consumers and their offsets, over the state machines of ``core``: what they decide goes into
``__consumer_offsets``."""

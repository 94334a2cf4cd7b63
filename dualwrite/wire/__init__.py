"""Kafka's protocol on the wire: frames, the table of APIs, and codecs. Knows no broker and no socket."""

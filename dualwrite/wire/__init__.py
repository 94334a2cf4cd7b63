"""Kafka's protocol on the wire: frames, the table of APIs, and codecs. Knows no broker and no socket."""

import warnings

with warnings.catch_warnings():
    # How kafka-python reads schema files is deprecated in Python 3.11, and not any more in 3.13. That is said when a
    # class of messages is made, so all are made here: programs that make errors of warnings import this package too.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    import kafka  # noqa: F401

    from dualwrite.wire import newer  # noqa: F401

"""Kafka's protocol on the wire: frames, the table of APIs, and codecs. Independent of brokers and sockets."""

import warnings

with warnings.catch_warnings():
    # kafka-python reads schema files in a way that was deprecated in Python 3.11, and is not any more in 3.13. The
    # warning comes when a message class is made. So all are made here, with the warning silenced, for programs that
    # turn warnings into errors.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    import kafka  # noqa: F401

    from dualwrite.wire import newer  # noqa: F401

"""Kafka's protocol on the wire: frames, the table of APIs, and codecs, without brokers and sockets."""

import warnings

with warnings.catch_warnings():
    # kafka-python reads schema files by functions that are deprecated in Python 3.11 and 3.12. The warning comes when
    # a message class is created. So all classes are created here, with the warning silenced, for programs that turn
    # warnings into errors.
    warnings.filterwarnings("ignore", ".*_text is deprecated", DeprecationWarning)
    import kafka  # noqa: F401

    from dualwrite.wire import newer  # noqa: F401

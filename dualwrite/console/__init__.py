"""The console: one page for operators that answers "is anything wrong?", and offers what `dualwrite transactions` does.

It stands on the functions of ``operations`` and ``admin``, as the command line does, and adds none of its own that
changes data. ``console_app`` in ``app.py`` makes the ASGI application; ``dualwrite console`` serves it.
"""

"""The examples are tested as their readers would test theirs: with the fixtures of the pytest plugin."""

# pytest brings them by itself, unless this checkout was installed before it had a plugin.
from dualwrite.testing.pytest_plugin import *  # noqa: F403

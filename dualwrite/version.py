"""The version, in the one place that the build and ``dualwrite --version`` read."""

__version__ = "0.1.0"

"""The interface to a database, in one module for each concern. ``base.Database`` puts them together."""

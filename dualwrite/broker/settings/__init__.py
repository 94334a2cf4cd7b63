"""The settings of the broker and of topics: their names, types and allowed values. Pure."""

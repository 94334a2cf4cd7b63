"""A unit of work for user code: its block, ``tx`` and its offsets; and its transaction in SQLAlchemy."""

"""Records that are kept in the database, so that they can be produced again."""

"""The target table in the database, and bulk writes to it."""

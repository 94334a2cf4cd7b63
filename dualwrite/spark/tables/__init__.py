"""The target table as the database has it, and rows into it in bulk."""

"""The database's side of the recipe: tables, decisions, leases, offsets, outcomes, dialects."""

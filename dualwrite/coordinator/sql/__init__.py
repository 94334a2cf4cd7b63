"""The database side: tables, decisions, leases, offsets, outcomes, dialects."""

"""What administrators did and what they were refused, for the audit log."""

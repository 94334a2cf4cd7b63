"""The record batch format v2 (KIP-98): headers, control records, checksums, compression, and batches with fewer
records."""

"""The record batch format v2 (KIP-98), as a broker and recovery need it: headers, control records, checksums."""

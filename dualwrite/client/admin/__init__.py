"""The control plane of transactions, and what people ask a cluster."""

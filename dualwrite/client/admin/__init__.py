"""The control plane of transactions, and the requests of an operator's commands."""

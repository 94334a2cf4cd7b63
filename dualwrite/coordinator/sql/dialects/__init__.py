"""The databases that can hold the decision: which they are, and what each does in a way of its own."""

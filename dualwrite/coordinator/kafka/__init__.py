"""Kafka's side of the recipe: the two producers as participants, and the choice between them."""

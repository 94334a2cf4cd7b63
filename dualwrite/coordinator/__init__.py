"""The recipe: one unit of work on a SQL database and on Kafka, committed on both or on neither, through any crash."""

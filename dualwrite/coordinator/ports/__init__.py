"""The recipe's interfaces to Kafka, the database, the leases and the process: Protocols, so that a simulation can
replace them and make them fail on purpose."""

"""Kafka's APIs about the cluster: brokers, coordinators, topics and log directories, one file each."""

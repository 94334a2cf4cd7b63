"""The daily work on a Kafka cluster as functions over a Kafka configuration: topics, records, groups and ACLs.

``dualwrite topics``, ``consume``, ``groups``, ``acls`` and ``move`` call them. Each function takes ``kafka``, a
configuration by librdkafka's keys as DualWrite takes it, and makes connections of its own. ``timeout`` is how many
seconds a request may take, with all attempts. The functions need no database, and work on the bundled broker and on
Apache Kafka. All of them raise:

- InputError, if an argument has a wrong type, which it names;
- ConfigurationError, if a setting is missing, malformed, or cannot be honoured;
- KafkaUnavailableError, if the cluster gives no usable answer in time;
- KafkaRefusedError, with Kafka's code, if the cluster refuses a request for good: a topic does not exist, or a right is
  not granted.
"""

"""What a client with few rights is answered, by the bundled broker and by Apache Kafka's StandardAuthorizer."""

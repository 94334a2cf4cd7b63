import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Consume, transform, produce: offsets in transactions, fenced by the group (KIP-447), and two cooperating members.
 * The last argument is the group's protocol.
 */
public class Groups {
    private static final String STRING = "org.apache.kafka.common.serialization.String";
    private static final Duration TICK = Duration.ofMillis(50);

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String source = arguments[1];
        String target = arguments[2];
        String group = arguments[3];
        String protocol = arguments[4];
        var places = Set.of(new TopicPartition(source, 0), new TopicPartition(source, 1));
        try (var producer = producer(bootstrap, group); var first = consumer(bootstrap, group, source, protocol)) {
            producer.initTransactions();
            copy(producer, first, target, 10);
            producer.abortTransaction();
            System.out.println("aborted: committed " + first.committed(places).get(new TopicPartition(source, 0)));
            first.seekToBeginning(first.assignment());
            copy(producer, first, target, 10);
            var metadata = first.groupMetadata();
            try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
                var seen = admin.listConsumerGroupOffsets(group, stable()).partitionsToOffsetAndMetadata().get();
                System.out.println("while open: " + seen.get(new TopicPartition(source, 0)));
            }
            producer.commitTransaction();
            var offsets = first.committed(places);
            System.out.println("committed: 10 records, offsets " + offsets.get(new TopicPartition(source, 0)).offset()
                + " and " + offsets.get(new TopicPartition(source, 1)).offset());
            try (var second = consumer(bootstrap, group, source, protocol)) {
                while (first.assignment().size() != 1 || second.assignment().size() != 1) {
                    first.poll(TICK);
                    second.poll(TICK);
                }
                System.out.println("members 2, one partition each");
            }
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target, "never"));
            try {
                var back = Map.of(new TopicPartition(source, 1), new OffsetAndMetadata(1));
                producer.sendOffsetsToTransaction(back, metadata);
                producer.commitTransaction();
                System.out.println("the zombie got through");
            } catch (CommitFailedException error) {
                producer.abortTransaction();
                System.out.println("the zombie is fenced");
            }
        }
    }

    private static org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions stable() {
        return new org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions().requireStable(true).timeoutMs(500);
    }

    /** Begin a transaction, copy so many records in it, and hand over the offsets; the caller ends it. */
    private static void copy(
            KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer, String target, int number) {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (int seen = 0; seen < number; ) {
            for (ConsumerRecord<String, String> record : consumer.poll(TICK)) {
                producer.send(new ProducerRecord<>(target, record.value()));
                var place = new TopicPartition(record.topic(), record.partition());
                offsets.put(place, new OffsetAndMetadata(record.offset() + 1));
                seen++;
            }
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String transactionalId) {
        return new KafkaProducer<>(Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", transactionalId,
            "key.serializer", STRING + "Serializer",
            "value.serializer", STRING + "Serializer"));
    }

    private static KafkaConsumer<String, String> consumer(
            String bootstrap, String group, String topic, String protocol) {
        var settings = new HashMap<String, Object>(Map.of(
            "group.protocol", protocol,
            "bootstrap.servers", bootstrap,
            "group.id", group,
            "enable.auto.commit", "false",
            "auto.offset.reset", "earliest",
            "isolation.level", "read_committed",
            "key.deserializer", STRING + "Deserializer",
            "value.deserializer", STRING + "Deserializer"));
        if (protocol.equals("classic")) {
            settings.put("heartbeat.interval.ms", "100");
            settings.put(
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
        }
        var consumer = new KafkaConsumer<String, String>(settings);
        consumer.subscribe(List.of(topic));
        return consumer;
    }
}

import java.io.FileReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;

/**
 * Transactions of the second version, fencing, both isolations, and what Admin says of them: one line for each.
 * Arguments: bootstrap servers, topic, and optionally a file with more settings of every client.
 */
public class Transactions {
    private static final String STRING = "org.apache.kafka.common.serialization.String";
    private static final Properties MORE = new Properties();

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        if (arguments.length > 2) {
            MORE.load(new FileReader(arguments[2]));
        }
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Admin.create(with(Map.of("bootstrap.servers", bootstrap)))) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
            var feature = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("transaction.version");
            System.out.println("transaction.version " + feature.maxVersionLevel());
            try (var producer = producer(bootstrap, topic)) {
                producer.initTransactions();
                transaction(producer, topic, true, "a", "b");
                transaction(producer, topic, false, "aborted");
                transaction(producer, topic, true, "c");
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "open")).get();
                System.out.println("state " + admin.describeTransactions(List.of(topic)).all().get().get(topic).state());
                var active = admin.describeProducers(List.of(partition)).all().get().get(partition).activeProducers();
                System.out.println("open at " + active.get(0).currentTransactionStartOffset().getAsLong());
                var latest = Map.of(partition, OffsetSpec.latest());
                for (IsolationLevel isolation : IsolationLevel.values()) {
                    var options = new org.apache.kafka.clients.admin.ListOffsetsOptions(isolation);
                    System.out.println(isolation + " " + admin.listOffsets(latest, options).all().get().get(partition).offset());
                }
                try (var second = producer(bootstrap, topic)) {
                    second.initTransactions();
                    transaction(second, topic, true, "d");
                }
                try {
                    producer.commitTransaction();
                    System.out.println("not fenced");
                } catch (ProducerFencedException error) {
                    System.out.println("fenced");
                }
            }
        }
        System.out.println("committed " + read(bootstrap, partition, "read_committed"));
        System.out.println("all " + read(bootstrap, partition, "read_uncommitted"));
    }

    private static KafkaProducer<String, String> producer(String bootstrap, String transactionalId) {
        return new KafkaProducer<>(with(Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", transactionalId,
            "key.serializer", STRING + "Serializer",
            "value.serializer", STRING + "Serializer")));
    }

    private static Map<String, Object> with(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        MORE.forEach((key, value) -> all.put((String) key, value));
        return all;
    }

    private static void transaction(KafkaProducer<String, String> producer, String topic, boolean commit, String... values) {
        producer.beginTransaction();
        for (String value : values) {
            producer.send(new ProducerRecord<>(topic, 0, null, value));
            producer.send(new ProducerRecord<>(topic, 1, null, value));
        }
        if (commit) {
            producer.commitTransaction();
        } else {
            producer.flush();
            producer.abortTransaction();
        }
    }

    private static List<String> read(String bootstrap, TopicPartition partition, String isolation) {
        List<String> values = new ArrayList<>();
        try (var consumer = new KafkaConsumer<String, String>(with(Map.of(
            "bootstrap.servers", bootstrap,
            "isolation.level", isolation,
            "key.deserializer", STRING + "Deserializer",
            "value.deserializer", STRING + "Deserializer")))) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(record.value()));
            }
        }
        return values;
    }
}

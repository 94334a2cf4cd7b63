import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer whose transaction times out aborts it, and goes on: one line for each thing that happens.
 * Arguments: bootstrap servers and topic.
 */
public class TimedOut {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        Map<String, Object> settings = Map.of("bootstrap.servers", arguments[0]);
        Map<String, Object> transactional =
            Map.of("bootstrap.servers", arguments[0], "transactional.id", topic, "transaction.timeout.ms", 1000);
        try (Admin admin = Admin.create(settings);
             var producer = new KafkaProducer<>(transactional, new StringSerializer(), new StringSerializer())) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "too late")).get();
            while (state(admin, topic) != TransactionState.COMPLETE_ABORT) {
                Thread.sleep(20);
            }
            try {
                producer.send(new ProducerRecord<>(topic, "later still")).get();
                System.out.println("sent");
            } catch (ExecutionException error) {
                System.out.println("not sent: " + error.getCause().getClass().getSimpleName());
            }
            producer.abortTransaction();
            try {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "in time"));
                producer.commitTransaction();
                System.out.println("committed");
            } catch (KafkaException error) {
                System.out.println("not committed: " + error);
            }
        }
    }

    private static TransactionState state(Admin admin, String id) throws Exception {
        return admin.describeTransactions(List.of(id)).all().get().get(id).state();
    }
}

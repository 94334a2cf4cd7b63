import java.io.FileInputStream;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;

/** Transactions by a client that authenticates as its settings say, for some time; prints how many, or the error. */
public class Login {
    private static final String STRING = "org.apache.kafka.common.serialization.StringSerializer";

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        String topic = arguments[1];
        long millis = Long.parseLong(arguments[2]);
        settings.put("transactional.id", topic);
        settings.put("key.serializer", STRING);
        settings.put("value.serializer", STRING);
        settings.put("max.block.ms", "15000");
        int committed = 0;
        try (var producer = new KafkaProducer<String, String>(settings)) {
            producer.initTransactions();
            long began = System.currentTimeMillis();
            do {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "value " + committed)).get();
                producer.commitTransaction();
                committed++;
            } while (System.currentTimeMillis() - began < millis);
            System.out.println("committed " + committed);
        } catch (KafkaException error) {
            System.out.println(error.getClass().getSimpleName() + ": " + error.getMessage());
        }
    }
}

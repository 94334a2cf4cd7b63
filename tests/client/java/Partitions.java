import java.util.HexFormat;
import java.util.Scanner;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

/** Which partition the Java producer gives a key: takes lines of a key in hexadecimal and a number of partitions. */
public class Partitions {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] line = lines.nextLine().split(",");
            byte[] key = HexFormat.of().parseHex(line[0]);
            System.out.println(BuiltInPartitioner.partitionForKey(key, Integer.parseInt(line[1])));
        }
    }
}

import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialAlteration;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;

/** Sets, describes and deletes a user's credential by the requests that kafka-configs sends: one line for each. */
public class Users {
    public static void main(String[] arguments) throws Exception {
        String user = arguments[1];
        ScramMechanism mechanism = ScramMechanism.SCRAM_SHA_512;
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            if (arguments[2].equals("set")) {
                var info = new ScramCredentialInfo(mechanism, Integer.parseInt(arguments[3]));
                alter(admin, new UserScramCredentialUpsertion(user, info, arguments[4]));
            } else {
                alter(admin, new UserScramCredentialDeletion(user, mechanism));
            }
            try {
                System.out.println(admin.describeUserScramCredentials(List.of(user)).description(user).get());
            } catch (ExecutionException error) {
                System.out.println(error.getCause().getMessage());
            }
        }
    }

    private static void alter(Admin admin, UserScramCredentialAlteration change) throws Exception {
        try {
            admin.alterUserScramCredentials(List.of(change)).all().get();
            System.out.println("done");
        } catch (ExecutionException error) {
            System.out.println(error.getCause().getMessage());
        }
    }
}

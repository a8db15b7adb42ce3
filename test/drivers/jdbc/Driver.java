// JDBC: see ../README.md.  In the simple mode the driver writes parameters into the statement.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

public class Driver {
    private static final String[] NAMES = {"account:1", "account:2"};
    private static final String[] ODD = {"a,b", "quote\"", "back\\slash", "{x", "\u00e4"};

    public static void main(String[] args) throws SQLException {
        for (String mode : new String[] {"extended", "simple"}) {
            String url = "jdbc:postgresql://" + args[0] + ":" + args[1] + "/" + args[3] + "?user=" + args[2]
                + "&preferQueryMode=" + mode;
            try (Connection connection = DriverManager.getConnection(url)) {
                cases(mode, connection);
            }
        }
    }

    private static void cases(String mode, Connection connection) throws SQLException {
        for (String name : new String[] {"acquire", "try"}) {
            one(mode, name, connection, "SELECT redlock_" + name + "(?)", (Object) NAMES);
        }
        one(mode, "acquire_all", connection, "SELECT cardinality(redlock_acquire_all(?, scope => 'session'))",
            (Object) NAMES);
        one(mode, "held", connection, "SELECT count(redlock_token(n)) FROM unnest(?::text[]) n", (Object) NAMES);
        one(mode, "try_all", connection, "SELECT redlock_try_all(?)::int", (Object) NAMES);
        one(mode, "odd", connection, "SELECT count(redlock_token(n)) FROM unnest(?::text[]) n,"
            + " (SELECT redlock_acquire_all(?, scope => 'session') OFFSET 0) t", ODD, ODD);
        one(mode, "wait", connection, "SELECT redlock_try(?, wait => ?::interval)::int", "free", "1 s");
    }

    private static void one(String mode, String name, Connection connection, String sql, Object... parameters)
        throws SQLException {
        String outcome;
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < parameters.length; i++) {
                if (parameters[i] instanceof String[] list) {
                    statement.setArray(i + 1, connection.createArrayOf("text", list));
                } else {
                    statement.setString(i + 1, (String) parameters[i]);
                }
            }
            try (ResultSet result = statement.executeQuery()) {
                result.next();
                outcome = result.getString(1);
            }
        } catch (SQLException error) {
            outcome = error.getSQLState();
        }
        System.out.println(mode + "\t" + name + "\t" + outcome);
    }
}

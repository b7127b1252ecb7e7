import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import io.debezium.engine.format.Json;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs Debezium's engine in this process, once for each line of the input: the form of the events ("connect", "json", or
 * "upserts" into the table that the properties name), the number of events to read, and a file of the engine's
 * properties. For each it writes the seconds from the start of the engine to the last event.
 */
public final class DebeziumReader {
    private final long expected;
    private final CompletableFuture<Long> lastEvent = new CompletableFuture<>();
    private long seen;

    private DebeziumReader(long expected) {
        this.expected = expected;
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            var words = line.split(" ", 3);
            var properties = new Properties();
            try (Reader file = Files.newBufferedReader(Path.of(words[2]))) {
                properties.load(file);
            }
            System.out.println(new DebeziumReader(Long.parseLong(words[1])).read(words[0], properties));
        }
    }

    private double read(String form, Properties properties) throws Exception {
        ExecutorService executor = Executors.newSingleThreadExecutor();
        long begin = System.nanoTime();
        try (DebeziumEngine<?> engine =
                switch (form) {
                    case "json" -> json(properties);
                    case "upserts" -> upserts(properties);
                    default -> connect(properties);
                }) {
            executor.execute(engine);
            return (lastEvent.get() - begin) / 1e9;
        } finally {
            executor.shutdown();
        }
    }

    private DebeziumEngine<?> connect(Properties properties) {
        return DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(properties)
                .using(this::ended)
                .notifying((records, committer) -> {
                    for (RecordChangeEvent<SourceRecord> each : records) {
                        count(each.record().value() != null);
                        committer.markProcessed(each);
                    }
                    committer.markBatchFinished();
                })
                .build();
    }

    private DebeziumEngine<?> json(Properties properties) {
        return DebeziumEngine.create(Json.class)
                .using(properties)
                .using(this::ended)
                .notifying((records, committer) -> {
                    for (ChangeEvent<String, String> each : records) {
                        count(each.value() != null);
                        committer.markProcessed(each);
                    }
                    committer.markBatchFinished();
                })
                .build();
    }

    /** Puts the orders of each batch into a table, in one transaction. */
    private DebeziumEngine<?> upserts(Properties properties) throws Exception {
        Connection target = DriverManager.getConnection(properties.getProperty("bench.target"));
        target.setAutoCommit(false);
        PreparedStatement upsert = target.prepareStatement(properties.getProperty("bench.upsert"));
        return DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
                .using(properties)
                .using(this::ended)
                .notifying((records, committer) -> {
                    int changes = 0;
                    try {
                        for (RecordChangeEvent<SourceRecord> each : records) {
                            if (each.record().value() instanceof Struct event) {
                                Struct row = event.getStruct("after");
                                upsert.setString(1, row.getString("UserId"));
                                upsert.setLong(2, row.getInt64("OrderId"));
                                upsert.setDouble(3, row.getFloat64("price"));
                                upsert.setLong(4, row.getInt64("timestamp"));
                                upsert.addBatch();
                                changes++;
                            }
                        }
                        upsert.executeBatch();
                        target.commit();
                    } catch (SQLException error) {
                        throw new IllegalStateException(error);
                    }
                    for (RecordChangeEvent<SourceRecord> each : records) {
                        committer.markProcessed(each);
                    }
                    committer.markBatchFinished();
                    for (; changes > 0; changes--) {
                        count(true);
                    }
                })
                .build();
    }

    private void count(boolean isChange) {
        if (isChange && ++seen == expected) {
            lastEvent.complete(System.nanoTime());
        }
    }

    /** An engine that ends by itself, after an error or a snapshot, must have read everything. */
    private void ended(boolean success, String message, Throwable error) {
        lastEvent.completeExceptionally(new IllegalStateException(seen + " events: " + message, error));
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Runs a job of Flink SQL in this process for each line of the input: the state backend ("hashmap" or "rocksdb"), the
 * port of PostgreSQL and the directory of checkpoints. It keeps the sums of a join of three tables in a fourth one. A
 * line "end" ends the job. For each line it writes a number when that is done.
 */
public final class FlinkJoin {
    private static final Map<String, String> COLUMNS = Map.of(
            "facts", "id BIGINT, dim BIGINT, amount BIGINT",
            "dims", "id BIGINT, kind BIGINT, name STRING",
            "kinds", "id BIGINT, label STRING");

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        TableResult job = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (line.equals("end")) {
                job.getJobClient().orElseThrow().cancel().get();
            } else {
                var words = line.split(" ");
                job = start(words[0], Integer.parseInt(words[1]), words[2]);
            }
            System.out.println(0);
        }
    }

    private static TableResult start(String backend, int port, String directory) {
        var settings = new Configuration();
        settings.setString("parallelism.default", "2");
        settings.setString("state.backend.type", backend);
        settings.setString("state.checkpoint-storage", "filesystem");
        settings.setString("state.checkpoints.dir", "file://" + directory);
        settings.setString("execution.checkpointing.interval", "5 s");
        settings.setString("taskmanager.memory.managed.size", "512m");
        settings.setString("pipeline.object-reuse", "true");
        var tables = TableEnvironment.create(
                EnvironmentSettings.newInstance().withConfiguration(settings).build());
        COLUMNS.forEach((table, columns) -> tables.executeSql(
                "CREATE TABLE " + table + " (" + columns + ", PRIMARY KEY (id) NOT ENFORCED) WITH ("
                        + "'connector' = 'postgres-cdc', 'hostname' = '127.0.0.1', 'port' = '" + port + "',"
                        + "'username' = 'postgres', 'password' = 'unused', 'database-name' = 'postgres',"
                        + "'schema-name' = 'public', 'table-name' = '" + table + "',"
                        + "'slot.name' = 'flink_" + table + "', 'decoding.plugin.name' = 'pgoutput',"
                        + "'scan.incremental.snapshot.enabled' = 'true',"
                        + "'scan.incremental.snapshot.chunk.size' = '100000', 'scan.snapshot.fetch.size' = '20000',"
                        + "'debezium.publication.name' = 'flink', 'debezium.publication.autocreate.mode' = 'disabled',"
                        + "'debezium.poll.interval.ms' = '10')"));
        tables.executeSql("CREATE TABLE sums (label STRING, n BIGINT, s BIGINT, PRIMARY KEY (label) NOT ENFORCED) WITH ("
                + "'connector' = 'jdbc', 'url' = 'jdbc:postgresql://127.0.0.1:" + port + "/postgres',"
                + "'username' = 'postgres', 'password' = 'unused', 'table-name' = 'flink_sums', 'sink.buffer-flush.interval' = '50 ms')");
        return tables.executeSql("INSERT INTO sums SELECT label, count(*), sum(amount)"
                + " FROM facts JOIN dims ON dim = dims.id JOIN kinds ON kind = kinds.id GROUP BY label");
    }
}

package headrace;

import com.alicloud.openservices.tablestore.SyncClient;
import com.alicloud.openservices.tablestore.TableStoreException;
import com.alicloud.openservices.tablestore.TunnelClient;
import com.alicloud.openservices.tablestore.model.*;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;

/**
 * Uses Tablestore's official Java client, unchanged, with the endpoint.
 *
 * <p>Arguments: endpoint, instance, then either "worker" with a table and a tunnel, or the names of scenarios. Each
 * scenario prints its name and "ok", or the unexpected result. The access key comes from the environment.
 */
public final class Main {
    static SyncClient client;
    static TunnelClient tunnelClient;
    private static String scenario;
    private static int failures;

    interface Scenario {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        String key = System.getenv("HEADRACE_ACCESS_KEY_ID");
        String secret = System.getenv("HEADRACE_ACCESS_KEY_SECRET");
        client = new SyncClient(arguments[0], key, secret, arguments[1]);
        tunnelClient = new TunnelClient(arguments[0], key, secret, arguments[1]);
        if (arguments[2].equals("worker")) {
            Tunnels.work(arguments[3], arguments[4]);
            return;
        }
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("tables", Tables::tables);
        scenarios.put("errors", Tables::errors);
        scenarios.put("rows", Rows::rows);
        scenarios.put("conditions", Rows::conditions);
        scenarios.put("batches", Rows::batches);
        scenarios.put("ranges", Rows::ranges);
        scenarios.put("numbered", Rows::numbered);
        scenarios.put("times", Rows::times);
        scenarios.put("writer", Rows::writer);
        scenarios.put("timeseries", () -> Tables.timeseries(arguments[0], key, secret, arguments[1]));
        scenarios.put("tunnels", Tunnels::tunnels);
        for (Map.Entry<String, Scenario> each : scenarios.entrySet()) {
            scenario = each.getKey();
            int before = failures;
            try {
                each.getValue().run();
            } catch (Exception error) {
                fail("raised " + error);
                error.printStackTrace();
            }
            if (failures == before) {
                System.out.println(scenario + ": ok");
            }
        }
        client.shutdown();
        tunnelClient.shutdown();
        System.exit(0);
    }

    static void fail(String problem) {
        failures++;
        System.out.println(scenario + ": " + problem);
    }

    static void same(String what, Object got, Object wanted) {
        if (!Objects.deepEquals(got, wanted)) {
            fail(what + ": " + got + " instead of " + wanted);
        }
    }

    static void refused(String what, String code, String message, Scenario call) throws Exception {
        try {
            call.run();
            fail(what + " is not refused");
        } catch (TableStoreException error) {
            same(what + ", code", error.getErrorCode(), code);
            if (message != null) {
                same(what + ", message", error.getMessage(), message);
            }
            same(what + " has a request id", error.getRequestId() != null, true);
        }
    }

    /** Creates a table with the key (p STRING, k INTEGER). */
    static void create(String table, boolean numbered) {
        TableMeta meta = new TableMeta(table);
        meta.addPrimaryKeyColumn("p", PrimaryKeyType.STRING);
        if (numbered) {
            meta.addAutoIncrementPrimaryKeyColumn("k");
        } else {
            meta.addPrimaryKeyColumn("k", PrimaryKeyType.INTEGER);
        }
        client.createTable(new CreateTableRequest(meta, new TableOptions(-1, 1)));
    }

    static PrimaryKey key(PrimaryKeyValue p, PrimaryKeyValue k) {
        return PrimaryKeyBuilder.createPrimaryKeyBuilder()
                .addPrimaryKeyColumn("p", p)
                .addPrimaryKeyColumn("k", k)
                .build();
    }

    static PrimaryKey key(String p, long k) {
        return key(PrimaryKeyValue.fromString(p), PrimaryKeyValue.fromLong(k));
    }

    private Main() {}
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.BasicTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.cdc.connectors.base.options.StartupOptions;
import org.apache.flink.cdc.connectors.postgres.source.PostgresSourceBuilder.PostgresIncrementalSource;
import org.apache.flink.cdc.debezium.DebeziumDeserializationSchema;
import org.apache.flink.cdc.debezium.JsonDebeziumDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Runs a Flink job with Flink CDC's incremental source in this process, once for each line of the input: the form of the
 * events ("count" or "json"), the start ("committed" or "snapshot"), the number of events to read, the slot and the port.
 * For each it writes the seconds from the start of the job to the last event.
 */
public final class FlinkCdcReader {
    private static final AtomicLong SEEN = new AtomicLong();
    private static volatile long expected;
    private static volatile CompletableFuture<Long> lastEvent;

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            var words = line.split(" ");
            SEEN.set(0);
            expected = Long.parseLong(words[2]);
            lastEvent = new CompletableFuture<>();
            var start = words[1].equals("snapshot") ? StartupOptions.snapshot() : StartupOptions.committed();
            int port = Integer.parseInt(words[4]);
            System.out.println(
                    words[0].equals("json")
                            ? read(new JsonDebeziumDeserializationSchema(), start, words[3], port)
                            : read(new Ones(), start, words[3], port));
        }
    }

    private static <T> double read(
            DebeziumDeserializationSchema<T> events, StartupOptions start, String slot, int port) throws Exception {
        var properties = new Properties();
        properties.put("publication.name", "flink");
        properties.put("publication.autocreate.mode", "disabled");
        properties.put("max.batch.size", "16384");
        properties.put("max.queue.size", "131072");
        properties.put("poll.interval.ms", "10");
        var source = PostgresIncrementalSource.<T>builder()
                .hostname("127.0.0.1")
                .port(port)
                .database("postgres")
                .schemaList("public")
                .tableList("public.orders")
                .username("postgres")
                .password("unused")
                .slotName(slot)
                .decodingPluginName("pgoutput")
                .startupOptions(start)
                .splitSize(100_000)
                .fetchSize(20_000)
                .debeziumProperties(properties)
                .deserializer(events)
                .build();
        var environment = StreamExecutionEnvironment.createLocalEnvironment(2);
        environment.enableCheckpointing(5000);
        environment.getConfig().enableObjectReuse();
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "orders")
                .addSink(new Counter<>());
        long begin = System.nanoTime();
        JobClient job = environment.executeAsync();
        job.getJobExecutionResult().whenComplete((result, error) -> {
            // A job that ends by itself, after an error or a snapshot, must have read everything.
            lastEvent.completeExceptionally(new IllegalStateException(SEEN.get() + " events", error));
        });
        try {
            return (lastEvent.get() - begin) / 1e9;
        } finally {
            end(job);
        }
    }

    private static void end(JobClient job) throws InterruptedException {
        try {
            job.cancel().get();
            job.getJobExecutionResult().get();
        } catch (ExecutionException error) {
            // It has ended, or was cancelled.
        }
    }

    /** Makes one number of each event, the least that a job can do with it. */
    private static final class Ones implements DebeziumDeserializationSchema<Integer> {
        @Override
        public void deserialize(SourceRecord record, Collector<Integer> collector) {
            collector.collect(1);
        }

        @Override
        public TypeInformation<Integer> getProducedType() {
            return BasicTypeInfo.INT_TYPE_INFO;
        }
    }

    private static final class Counter<T> implements SinkFunction<T> {
        @Override
        public void invoke(T value, Context context) {
            if (SEEN.incrementAndGet() == expected) {
                lastEvent.complete(System.nanoTime());
            }
        }
    }
}

package headrace;

import static headrace.Main.*;

import com.alicloud.openservices.tablestore.DefaultTableStoreWriter;
import com.alicloud.openservices.tablestore.AsyncClient;
import com.alicloud.openservices.tablestore.model.*;
import com.alicloud.openservices.tablestore.model.condition.CompositeColumnValueCondition;
import com.alicloud.openservices.tablestore.model.condition.SingleColumnValueCondition;
import com.alicloud.openservices.tablestore.model.filter.ColumnPaginationFilter;
import com.alicloud.openservices.tablestore.model.filter.SingleColumnValueFilter;
import com.alicloud.openservices.tablestore.writer.WriterConfig;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

final class Rows {
    /** Returns the cells of a row as text, null if there is none. */
    static Map<String, String> get(SingleRowQueryCriteria wanted) {
        Row row = client.getRow(new GetRowRequest(wanted)).getRow();
        return row == null ? null : named(row);
    }

    static Map<String, String> get(String table, PrimaryKey key) {
        return get(one(table, key));
    }

    private static SingleRowQueryCriteria one(String table, PrimaryKey key) {
        SingleRowQueryCriteria wanted = new SingleRowQueryCriteria(table, key);
        wanted.setMaxVersions(1);
        return wanted;
    }

    private static Map<String, String> named(Row row) {
        Map<String, String> cells = new TreeMap<>();
        for (Column column : row.getColumns()) {
            cells.put(column.getName(), column.getValue().toString());
        }
        return cells;
    }

    private static Map<String, String> cells(String... parts) {
        Map<String, String> cells = new TreeMap<>();
        for (int place = 0; place < parts.length; place += 2) {
            cells.put(parts[place], parts[place + 1]);
        }
        return cells;
    }

    private static RowPutChange put(String table, PrimaryKey key, String... parts) {
        RowPutChange change = new RowPutChange(table, key);
        for (int place = 0; place < parts.length; place += 2) {
            change.addColumn(parts[place], ColumnValue.fromString(parts[place + 1]));
        }
        return change;
    }

    static void rows() throws Exception {
        create("rows", false);
        RowPutChange change = new RowPutChange("rows", key("a", 1));
        change.addColumn("i", ColumnValue.fromLong(-1));
        change.addColumn("d", ColumnValue.fromDouble(0.5));
        change.addColumn("t", ColumnValue.fromBoolean(true));
        change.addColumn("s", ColumnValue.fromString("é"));
        change.addColumn("b", ColumnValue.fromBinary(new byte[] {0, -1}));
        change.setReturnType(ReturnType.RT_PK);
        PutRowResponse answer = client.putRow(new PutRowRequest(change));
        same("the key", answer.getRow().getPrimaryKey(), key("a", 1));
        same("units", answer.getConsumedCapacity().getCapacityUnit(), new CapacityUnit(0, 1));
        Row row = client.getRow(new GetRowRequest(one("rows", key("a", 1)))).getRow();
        same("an integer", row.getLatestColumn("i").getValue().asLong(), -1L);
        same("a double", row.getLatestColumn("d").getValue().asDouble(), 0.5);
        same("a boolean", row.getLatestColumn("t").getValue().asBoolean(), true);
        same("a text", row.getLatestColumn("s").getValue().asString(), "é");
        same("bytes", row.getLatestColumn("b").getValue().asBinary(), new byte[] {0, -1});
        same("no row", get("rows", key("a", 2)), null);

        SingleRowQueryCriteria wanted = one("rows", key("a", 1));
        wanted.addColumnsToGet(new String[] {"i", "nothing"});
        same("columns", get(wanted), cells("i", "-1"));
        wanted = one("rows", key("a", 1));
        wanted.addColumnsToGet("nothing");
        same("other columns", get(wanted), null);
        wanted.addColumnsToGet("p");
        same("a key column", get(wanted), cells());
        wanted = one("rows", key("a", 1));
        wanted.setStartColumn("d");
        wanted.setEndColumn("s");
        same("a range of columns", get(wanted), cells("d", "0.5", "i", "-1"));
        wanted = one("rows", key("a", 1));
        wanted.setFilter(new ColumnPaginationFilter(2, 1));
        same("a page of columns", get(wanted), cells("d", "0.5", "i", "-1"));

        RowUpdateChange update = new RowUpdateChange("rows", key("a", 1));
        update.put("s", ColumnValue.fromLong(7));
        update.deleteColumns("d");
        update.deleteColumns("b");
        update.increment(new Column("n", ColumnValue.fromLong(5)));
        update.addReturnColumn("n");
        update.setReturnType(ReturnType.RT_AFTER_MODIFY);
        same("the new count", named(client.updateRow(new UpdateRowRequest(update)).getRow()), cells("n", "5"));
        same("an updated row", get("rows", key("a", 1)), cells("i", "-1", "t", "true", "s", "7", "n", "5"));
        client.deleteRow(new DeleteRowRequest(new RowDeleteChange("rows", key("a", 1))));
        same("a deleted row", get("rows", key("a", 1)), null);
    }

    static void conditions() throws Exception {
        create("conditions", false);
        String failed = "OTSConditionCheckFail";
        RowPutChange put = put("conditions", key("a", 1), "s", "x");
        put.setCondition(new Condition(RowExistenceExpectation.EXPECT_EXIST));
        refused("a row that must exist", failed, "Condition check failed.",
                () -> client.putRow(new PutRowRequest(put)));
        put.setCondition(new Condition(RowExistenceExpectation.EXPECT_NOT_EXIST));
        client.putRow(new PutRowRequest(put));
        refused("a row that must not exist", failed, null, () -> client.putRow(new PutRowRequest(put)));

        CompositeColumnValueCondition both =
                new CompositeColumnValueCondition(CompositeColumnValueCondition.LogicOperator.AND);
        both.addCondition(is("s", "x"));
        both.addCondition(is("s", "y"));
        RowUpdateChange update = new RowUpdateChange("conditions", key("a", 1));
        update.put("s", ColumnValue.fromString("z"));
        Condition condition = new Condition(RowExistenceExpectation.IGNORE);
        condition.setColumnCondition(both);
        update.setCondition(condition);
        refused("a condition that is false", failed, null, () -> client.updateRow(new UpdateRowRequest(update)));
        CompositeColumnValueCondition not =
                new CompositeColumnValueCondition(CompositeColumnValueCondition.LogicOperator.NOT);
        not.addCondition(both);
        condition.setColumnCondition(not);
        client.updateRow(new UpdateRowRequest(update));
        same("after a condition that is true", get("conditions", key("a", 1)), cells("s", "z"));

        SingleRowQueryCriteria wanted = one("conditions", key("a", 1));
        wanted.setFilter(new SingleColumnValueFilter(
                "s", SingleColumnValueFilter.CompareOperator.EQUAL, ColumnValue.fromString("other")));
        same("a row that a filter omits", get(wanted), null);
        both.clear();
        both.addCondition(is("s", "x"));
        condition.setColumnCondition(both);
        refused("an AND of one", "OTSParameterInvalid",
                "Invalid AND/OR operator: the number of sub-filters must be more than 1.",
                () -> client.updateRow(new UpdateRowRequest(update)));
    }

    private static SingleColumnValueCondition is(String column, String value) {
        return new SingleColumnValueCondition(
                column, SingleColumnValueCondition.CompareOperator.EQUAL, ColumnValue.fromString(value));
    }

    static void batches() throws Exception {
        create("one", false);
        create("two", false);
        BatchWriteRowRequest write = new BatchWriteRowRequest();
        for (int number = 0; number < 20; number++) {
            write.addRowChange(put("one", key("a", number), "s", "text " + number));
        }
        RowUpdateChange update = new RowUpdateChange("two", key("a", 1));
        update.put("s", ColumnValue.fromString("x"));
        write.addRowChange(update);
        RowPutChange expected = put("two", key("a", 2), "s", "x");
        expected.setCondition(new Condition(RowExistenceExpectation.EXPECT_EXIST));
        write.addRowChange(expected);
        write.addRowChange(new RowDeleteChange("two", key("a", 3)));
        BatchWriteRowResponse written = client.batchWriteRow(write);
        same("rows written", written.getSucceedRows().size(), 22);
        same("rows that failed", written.getFailedRows().size(), 1);
        same("the error", written.getFailedRows().get(0).getError().getCode(), "OTSConditionCheckFail");
        refused("an empty batch", "OTSParameterInvalid", "No row is specified in BatchWriteRow.",
                () -> client.batchWriteRow(new BatchWriteRowRequest()));

        BatchGetRowRequest read = new BatchGetRowRequest();
        MultiRowQueryCriteria many = new MultiRowQueryCriteria("one");
        many.setMaxVersions(1);
        for (long number : new long[] {4, 4, 100, 5}) {
            many.addRow(key("a", number));
        }
        read.addMultiRowQueryCriteria(many);
        List<BatchGetRowResponse.RowResult> got = client.batchGetRow(read).getBatchGetRowResult("one");
        same("a row", named(got.get(0).getRow()), cells("s", "text 4"));
        same("the same row again", named(got.get(1).getRow()), cells("s", "text 4"));
        same("a missing row", got.get(2).getRow(), null);
        same("another row", got.get(3).getRow().getPrimaryKey(), key("a", 5));

        BatchWriteRowRequest atomic = new BatchWriteRowRequest();
        atomic.setAtomic(true);
        atomic.addRowChange(put("two", key("0", 1), "s", "x"));
        atomic.addRowChange(put("two", key("1", 1), "s", "x"));
        written = client.batchWriteRow(atomic);
        same("rows of several partition keys", written.getFailedRows().size(), 2);
        for (BatchWriteRowResponse.RowResult row : written.getFailedRows()) {
            same("code", row.getError().getCode(), "OTSDataOutOfRange");
            same("message", row.getError().getMessage(),
                    "Data out of scope of atomic. Atomic PartKey:0. Data PartKey:1");
        }
        BulkImportRequest bulk = new BulkImportRequest("two");
        for (int number = 0; number < 10; number++) {
            bulk.addRowChange(put("two", key("bulk", number), "s", "x"));
        }
        same("imported rows", client.bulkImport(bulk).getSucceedRows().size(), 10);
    }

    static void ranges() throws Exception {
        create("ranges", false);
        List<Long> upwards = new ArrayList<>();
        for (int number = 0; number < 30; number++) {
            client.putRow(new PutRowRequest(put("ranges", key("a", number), "s", "" + number % 3)));
            upwards.add((long) number);
        }
        List<Long> downwards = new ArrayList<>(upwards);
        Collections.reverse(downwards);
        PrimaryKey low = key(PrimaryKeyValue.INF_MIN, PrimaryKeyValue.INF_MIN);
        PrimaryKey high = key(PrimaryKeyValue.INF_MAX, PrimaryKeyValue.INF_MAX);
        same("forward", numbers(low, high, Direction.FORWARD), upwards);
        same("backward", numbers(high, low, Direction.BACKWARD), downwards);
        same("a part", numbers(key("a", 3), key("a", 14), Direction.FORWARD), upwards.subList(3, 14));
        same("a part backward", numbers(key("a", 14), key("a", 3), Direction.BACKWARD), downwards.subList(15, 26));
        String forward = "Begin key must less than end key in FORWARD";
        refused("equal bounds", "OTSParameterInvalid", forward,
                () -> numbers(key("a", 3), key("a", 3), Direction.FORWARD));
        refused("reversed bounds", "OTSParameterInvalid", forward, () -> numbers(high, low, Direction.FORWARD));
        refused("equal bounds backward", "OTSParameterInvalid", "Begin key must more than end key in BACKWARD",
                () -> numbers(key("a", 3), key("a", 3), Direction.BACKWARD));
        RangeRowQueryCriteria filtered = new RangeRowQueryCriteria("ranges");
        filtered.setInclusiveStartPrimaryKey(low);
        filtered.setExclusiveEndPrimaryKey(high);
        filtered.setMaxVersions(1);
        filtered.setFilter(new SingleColumnValueFilter(
                "s", SingleColumnValueFilter.CompareOperator.EQUAL, ColumnValue.fromString("1")));
        same("rows that pass a filter", client.getRange(new GetRangeRequest(filtered)).getRows().size(), 10);
    }

    private static List<Long> numbers(PrimaryKey start, PrimaryKey end, Direction direction) {
        RangeIteratorParameter parameter = new RangeIteratorParameter("ranges");
        parameter.setInclusiveStartPrimaryKey(start);
        parameter.setExclusiveEndPrimaryKey(end);
        parameter.setDirection(direction);
        parameter.setMaxVersions(1);
        parameter.setBufferSize(7);
        List<Long> found = new ArrayList<>();
        for (Iterator<Row> rows = client.createRangeIterator(parameter); rows.hasNext(); ) {
            found.add(rows.next().getPrimaryKey().getPrimaryKeyColumn("k").getValue().asLong());
        }
        return found;
    }

    static void numbered() throws Exception {
        create("numbered", true);
        PrimaryKey key = key(PrimaryKeyValue.fromString("a"), PrimaryKeyValue.AUTO_INCREMENT);
        RowPutChange put = put("numbered", key, "s", "put");
        put.setReturnType(ReturnType.RT_PK);
        PrimaryKey given = client.putRow(new PutRowRequest(put)).getRow().getPrimaryKey();
        same("the row of a number", get("numbered", given), cells("s", "put"));
        RowUpdateChange update = new RowUpdateChange("numbered", key);
        update.put("s", ColumnValue.fromString("updated"));
        update.setReturnType(ReturnType.RT_PK);
        PrimaryKey other = client.updateRow(new UpdateRowRequest(update)).getRow().getPrimaryKey();
        same("the row of another number", get("numbered", other), cells("s", "updated"));
        same("numbers grow", given.compareTo(other) < 0, true);
        same("the key option of the table",
                client.describeTable(new DescribeTableRequest("numbered")).getTableMeta().getPrimaryKeyList().get(1)
                        .getOption(), PrimaryKeyOption.AUTO_INCREMENT);
    }

    static void times() throws Exception {
        create("times", false);
        long now = System.currentTimeMillis();
        RowPutChange put = new RowPutChange("times", key("a", 1));
        put.addColumn("old", ColumnValue.fromLong(1), now - 5000);
        put.addColumn("new", ColumnValue.fromLong(2), now);
        client.putRow(new PutRowRequest(put));
        SingleRowQueryCriteria wanted = new SingleRowQueryCriteria("times", key("a", 1));
        wanted.setTimeRange(new TimeRange(now - 6000, now - 4000));
        same("a time range", get(wanted), cells("old", "1"));
        wanted.setTimestamp(now);
        same("an instant", get(wanted), cells("new", "2"));
        wanted.setTimeRange(new TimeRange(now + 1, now + 2));
        same("no cell of that time", get(wanted), cells());
        wanted.addColumnsToGet("old");
        same("no such cell of that time", get(wanted), null);
        RowUpdateChange update = new RowUpdateChange("times", key("a", 1));
        update.put("new", ColumnValue.fromLong(0), now - 100);
        update.deleteColumn("old", now - 5000);
        client.updateRow(new UpdateRowRequest(update));
        same("an older version changes nothing", get("times", key("a", 1)), cells("new", "2"));
        RowPutChange late = new RowPutChange("times", key("a", 2));
        late.addColumn("new", ColumnValue.fromLong(0), Long.MAX_VALUE / 1000);
        refused("a timestamp out of range", "OTSParameterInvalid", "Timestamp must be in range [0, INT64_MAX/1000).",
                () -> client.putRow(new PutRowRequest(late)));
    }

    static void writer() throws Exception {
        create("writer", false);
        AsyncClient asynchronous = (AsyncClient) client.asAsyncClient();
        List<String> problems = Collections.synchronizedList(new ArrayList<>());
        DefaultTableStoreWriter writer = new DefaultTableStoreWriter(
                asynchronous, "writer", new WriterConfig(),
                new com.alicloud.openservices.tablestore.TableStoreCallback<RowChange, ConsumedCapacity>() {
                    @Override
                    public void onCompleted(RowChange change, ConsumedCapacity units) {}

                    @Override
                    public void onFailed(RowChange change, Exception error) {
                        problems.add(error.toString());
                    }
                },
                java.util.concurrent.Executors.newSingleThreadExecutor());
        for (int number = 0; number < 500; number++) {
            writer.addRowChange(put("writer", key("a", number), "s", "text"));
        }
        writer.flush();
        writer.close();
        same("problems of the writer", problems, Arrays.asList());
        RangeRowQueryCriteria all = new RangeRowQueryCriteria("writer");
        all.setInclusiveStartPrimaryKey(key(PrimaryKeyValue.INF_MIN, PrimaryKeyValue.INF_MIN));
        all.setExclusiveEndPrimaryKey(key(PrimaryKeyValue.INF_MAX, PrimaryKeyValue.INF_MAX));
        all.setMaxVersions(1);
        same("rows of the writer", client.getRange(new GetRangeRequest(all)).getRows().size(), 500);
    }

    private Rows() {}
}

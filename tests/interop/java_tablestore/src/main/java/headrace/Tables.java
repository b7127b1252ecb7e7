package headrace;

import static headrace.Main.*;

import com.alicloud.openservices.tablestore.TimeseriesClient;
import com.alicloud.openservices.tablestore.model.*;
import com.alicloud.openservices.tablestore.model.search.ListSearchIndexRequest;
import java.util.Collections;

final class Tables {
    static void tables() throws Exception {
        TableMeta meta = new TableMeta("life");
        meta.addPrimaryKeyColumn("p", PrimaryKeyType.STRING);
        meta.addPrimaryKeyColumn("b", PrimaryKeyType.BINARY);
        meta.addDefinedColumn("d", DefinedColumnType.DOUBLE);
        TableOptions options = new TableOptions(2 * 86400, 1, 1000);
        options.setAllowUpdate(false);
        CreateTableRequest request = new CreateTableRequest(meta, options);
        request.setStreamSpecification(new StreamSpecification(true, 24));
        client.createTable(request);
        refused("an existing table", "OTSObjectAlreadyExist", "Requested table already exists.",
                () -> client.createTable(request));
        same("tables", client.listTable().getTableNames(), Collections.singletonList("life"));

        DescribeTableResponse described = client.describeTable(new DescribeTableRequest("life"));
        same("name", described.getTableMeta().getTableName(), "life");
        same("key", described.getTableMeta().getPrimaryKeyList(), meta.getPrimaryKeyList());
        same("defined columns", described.getTableMeta().getDefinedColumnsList().get(0).getName(), "d");
        same("time to live", described.getTableOptions().getTimeToLive(), 2 * 86400);
        same("deviation", described.getTableOptions().getMaxTimeDeviation(), 1000L);
        same("versions", described.getTableOptions().getMaxVersions(), 1);
        same("allow update", described.getTableOptions().getAllowUpdate(), false);
        same("stream", described.getStreamDetails().isEnableStream(), true);
        same("stream hours", described.getStreamDetails().getExpirationTime(), 24);
        same("creation", described.getCreationTime() > 0, true);
        same("throughput", described.getReservedThroughputDetails().getCapacityUnit().getReadCapacityUnit(), 0);

        UpdateTableRequest update = new UpdateTableRequest("life");
        update.setTableOptionsForUpdate(new TableOptions(-1));
        update.setStreamSpecification(new StreamSpecification(false));
        UpdateTableResponse updated = client.updateTable(update);
        same("new time to live", updated.getTableOptions().getTimeToLive(), -1);
        same("stream afterwards", updated.getStreamDetails().isEnableStream(), false);
        AddDefinedColumnRequest added = new AddDefinedColumnRequest();
        added.setTableName("life");
        added.addDefinedColumn("s", DefinedColumnType.STRING);
        client.addDefinedColumn(added);
        DeleteDefinedColumnRequest deleted = new DeleteDefinedColumnRequest();
        deleted.setTableName("life");
        deleted.addDefinedColumn("d");
        client.deleteDefinedColumn(deleted);
        described = client.describeTable(new DescribeTableRequest("life"));
        same("columns", described.getTableMeta().getDefinedColumnsList().size(), 1);
        same("column", described.getTableMeta().getDefinedColumnsList().get(0).getType(), DefinedColumnType.STRING);

        ComputeSplitsBySizeRequest splits = new ComputeSplitsBySizeRequest();
        splits.setTableName("life");
        splits.setSplitSizeIn100MB(1);
        same("splits", client.computeSplitsBySize(splits).getSplits().size(), 1);
        splits.setSplitSizeIn100MB(0);
        refused("empty splits", "OTSParameterInvalid", "The split_size should be greater than 0.",
                () -> client.computeSplitsBySize(splits));

        ListSearchIndexRequest indexes = new ListSearchIndexRequest();
        indexes.setTableName("life");
        same("search indexes", client.listSearchIndex(indexes).getIndexInfos().size(), 0);
        client.deleteTable(new DeleteTableRequest("life"));
        refused("a dropped table", "OTSObjectNotExist", "Requested table does not exist.",
                () -> client.describeTable(new DescribeTableRequest("life")));
    }

    static void errors() throws Exception {
        create("errors", false);
        PrimaryKey wrong = PrimaryKeyBuilder.createPrimaryKeyBuilder()
                .addPrimaryKeyColumn("k", PrimaryKeyValue.fromLong(1))
                .addPrimaryKeyColumn("p", PrimaryKeyValue.fromString("a"))
                .build();
        RowPutChange put = new RowPutChange("errors", wrong);
        refused("another order", "OTSInvalidPK", "Validate PK name fail. Input: k, Meta: p.",
                () -> client.putRow(new PutRowRequest(put)));
        RowDeleteChange delete =
                new RowDeleteChange("errors", key(PrimaryKeyValue.fromLong(1), PrimaryKeyValue.fromLong(1)));
        refused("another type", "OTSInvalidPK", "Validate PK type fail. Input: VT_INTEGER, Meta: VT_STRING.",
                () -> client.deleteRow(new DeleteRowRequest(delete)));
        RowUpdateChange infinite =
                new RowUpdateChange("errors", key(PrimaryKeyValue.INF_MIN, PrimaryKeyValue.fromLong(1)));
        infinite.put("a", ColumnValue.fromLong(1));
        refused("an infinity", "OTSParameterInvalid", "VT_INF_MIN is an invalid type for the primary key.",
                () -> client.updateRow(new UpdateRowRequest(infinite)));
        StringBuilder text = new StringBuilder();
        for (int number = 0; number < 1025; number++) {
            text.append('x');
        }
        BatchWriteRowRequest batch = new BatchWriteRowRequest();
        batch.addRowChange(new RowPutChange("errors", key("a", 1)).addColumn("a", ColumnValue.fromLong(1)));
        batch.addRowChange(new RowPutChange("errors", key(text.toString(), 1)).addColumn("a", ColumnValue.fromLong(1)));
        refused("a long key fails a whole batch", "OTSParameterInvalid",
                "The length of primary key column: 'p' exceeds the MaxLength:1024 with CurrentLength:1025.",
                () -> client.batchWriteRow(batch));
        same("no row of the batch is written", Rows.get("errors", key("a", 1)), null);
        SingleRowQueryCriteria unversioned = new SingleRowQueryCriteria("errors", key("a", 1));
        refused("no version", "OTSParameterInvalid", "No version condition is specified.",
                () -> client.getRow(new GetRowRequest(unversioned)));
        refused("a bad name", "OTSParameterInvalid", "Invalid table name: '#'.",
                () -> client.deleteTable(new DeleteTableRequest("#")));
        client.deleteTable(new DeleteTableRequest("errors"));
    }

    static void timeseries(String endpoint, String key, String secret, String instance) {
        TimeseriesClient series = new TimeseriesClient(endpoint, key, secret, instance);
        same("time series tables", series.listTimeseriesTable().getTimeseriesTableMetas().size(), 0);
        series.shutdown();
    }

    private Tables() {}
}

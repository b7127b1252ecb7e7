package main

import (
	"sort"

	"github.com/aliyun/aliyun-tablestore-go-sdk/tablestore"
)

func tables() {
	meta := &tablestore.TableMeta{TableName: "life"}
	meta.AddPrimaryKeyColumn("p", tablestore.PrimaryKeyType_STRING)
	meta.AddPrimaryKeyColumn("k", tablestore.PrimaryKeyType_INTEGER)
	meta.AddPrimaryKeyColumn("b", tablestore.PrimaryKeyType_BINARY)
	meta.AddDefinedColumn("d", tablestore.DefinedColumn_DOUBLE)
	forbidden := false
	request := &tablestore.CreateTableRequest{
		TableMeta: meta,
		TableOption: &tablestore.TableOption{
			TimeToAlive: 86400 * 2, MaxVersion: 1, DeviationCellVersionInSec: 1000, AllowUpdate: &forbidden,
		},
		ReservedThroughput: &tablestore.ReservedThroughput{},
		StreamSpec:         &tablestore.StreamSpecification{EnableStream: true, ExpirationTime: 24},
	}
	_, err := client.CreateTable(request)
	must(err)
	_, err = client.CreateTable(request)
	refused("a table that is there", err, "OTSObjectAlreadyExist", "Requested table already exists.")
	listed, err := client.ListTable()
	must(err)
	same("tables", listed.TableNames, []string{"life"})

	described, err := client.DescribeTable(&tablestore.DescribeTableRequest{TableName: "life"})
	must(err)
	same("name", described.TableMeta.TableName, "life")
	same("key columns", len(described.TableMeta.SchemaEntry), 3)
	same("key type", *described.TableMeta.SchemaEntry[2].Type, tablestore.PrimaryKeyType_BINARY)
	same("defined column", described.TableMeta.DefinedColumns[0].Name, "d")
	same("time to live", described.TableOption.TimeToAlive, 86400*2)
	same("deviation", described.TableOption.DeviationCellVersionInSec, int64(1000))
	same("allow update", *described.TableOption.AllowUpdate, false)
	same("stream", described.StreamDetails.EnableStream, true)
	same("stream hours", described.StreamDetails.ExpirationTime, int32(24))
	same("indexes", len(described.IndexMetas), 0)

	updated, err := client.UpdateTable(&tablestore.UpdateTableRequest{
		TableName: "life", TableOption: &tablestore.TableOption{TimeToAlive: -1, MaxVersion: 1},
		StreamSpec: &tablestore.StreamSpecification{EnableStream: false},
	})
	must(err)
	same("new time to live", updated.TableOption.TimeToAlive, -1)
	same("stream afterwards", updated.StreamDetails.EnableStream, false)

	column := &tablestore.DefinedColumnSchema{Name: "s", ColumnType: tablestore.DefinedColumn_STRING}
	_, err = client.AddDefinedColumn(&tablestore.AddDefinedColumnRequest{
		TableName: "life", DefinedColumns: []*tablestore.DefinedColumnSchema{column},
	})
	must(err)
	_, err = client.DeleteDefinedColumn(
		&tablestore.DeleteDefinedColumnRequest{TableName: "life", DefinedColumns: []string{"d"}})
	must(err)
	described, err = client.DescribeTable(&tablestore.DescribeTableRequest{TableName: "life"})
	must(err)
	same("defined columns", len(described.TableMeta.DefinedColumns), 1)
	same("the other defined column", described.TableMeta.DefinedColumns[0].Name, "s")

	unit, most := int64(1), int32(3)
	splits, err := client.ComputeSplitPointsBySize(&tablestore.ComputeSplitPointsBySizeRequest{
		TableName: "life", SplitSize: 1, SplitSizeUnitInByte: &unit, SplitPointLimit: &most,
	})
	must(err)
	same("splits of an empty table", len(splits.Splits), 1)
	same("lower bound", splits.Splits[0].LowerBound.PrimaryKeys[0].PrimaryKeyOption, tablestore.MIN)

	indexes, err := client.ListSearchIndex(&tablestore.ListSearchIndexRequest{TableName: "life"})
	must(err)
	same("search indexes", len(indexes.IndexInfo), 0)

	_, err = client.DeleteTable(&tablestore.DeleteTableRequest{TableName: "life"})
	must(err)
	_, err = client.DescribeTable(&tablestore.DescribeTableRequest{TableName: "life"})
	refused("a table that was dropped", err, "OTSObjectNotExist", "Requested table does not exist.")
}

func errors() {
	create("errors", false, nil)
	wrong := &tablestore.PrimaryKey{}
	wrong.AddPrimaryKeyColumn("p2", "a")
	wrong.AddPrimaryKeyColumn("k", int64(1))
	_, err := put(putChange("errors", wrong, cells{"a": int64(1)}))
	refused("another key name", err, "OTSInvalidPK", "Validate PK name fail. Input: p2, Meta: p.")
	short := &tablestore.PrimaryKey{}
	short.AddPrimaryKeyColumn("p", "a")
	_, err = find(criteria("errors", short))
	refused("a short key", err, "OTSInvalidPK", "Validate PK size fail. Input: 1, Meta: 2.")
	other := &tablestore.PrimaryKey{}
	other.AddPrimaryKeyColumn("p", "a")
	other.AddPrimaryKeyColumn("k", "1")
	refused("another type", remove(deleteChange("errors", other)),
		"OTSInvalidPK", "Validate PK type fail. Input: VT_STRING, Meta: VT_INTEGER.")
	_, err = update(updateChange("errors", pair("a", 1)))
	refused("an empty update", err, "OTSParameterInvalid", "Attribute column is missing.")
	_, err = put(putChange("errors", pair("a", 1), cells{"#name": int64(1)}))
	refused("a bad name", err, "OTSParameterInvalid", "Invalid column name: '#name'.")
	_, err = put(putChange("1st", pair("a", 1), cells{"a": int64(1)}))
	refused("a bad table", err, "OTSParameterInvalid", "Invalid table name: '1st'.")
	_, err = client.BatchWriteRow(&tablestore.BatchWriteRowRequest{})
	refused("an empty batch", err, "OTSParameterInvalid", "No row is specified in BatchWriteRow.")
	table := "errors"
	_, err = client.ListStream(&tablestore.ListStreamRequest{TableName: &table})
	refused("a stream without a tunnel", err, "OTSParameterInvalid",
		"the endpoint does not have this operation; received: /ListStream; "+
			"valid: the endpoint's streams are read through tunnels: create one (/tunnel/create) and read its channels")
}

func numbered() {
	create("numbered", true, nil)
	key := func() *tablestore.PrimaryKey {
		key := &tablestore.PrimaryKey{}
		key.AddPrimaryKeyColumn("p", "a")
		key.AddPrimaryKeyColumnWithAutoIncrement("k")
		return key
	}
	change := putChange("numbered", key(), cells{"a": int64(1)})
	change.SetReturnPk()
	answer, err := put(change)
	must(err)
	number, ok := answer.PrimaryKey.PrimaryKeys[1].Value.(int64)
	same("a number is given", ok && number > 0, true)
	changed := updateChange("numbered", key())
	changed.PutColumn("a", int64(2))
	_, err = update(changed)
	must(err)
	batch := &tablestore.BatchWriteRowRequest{}
	for value := int64(3); value < 6; value++ {
		row := updateChange("numbered", key())
		row.PutColumn("a", value)
		batch.AddRowChange(row)
	}
	written, err := client.BatchWriteRow(batch)
	must(err)
	for _, row := range written.TableToRowsResult["numbered"] {
		same("a numbered row", row.IsSucceed, true)
	}
	low, high := &tablestore.PrimaryKey{}, &tablestore.PrimaryKey{}
	for _, name := range []string{"p", "k"} {
		low.AddPrimaryKeyColumnWithMinValue(name)
		high.AddPrimaryKeyColumnWithMaxValue(name)
	}
	page, err := scan("numbered", low, high, tablestore.FORWARD)
	must(err)
	values, numbers := []int{}, map[int64]bool{}
	for _, row := range page.Rows {
		values = append(values, int(named(row.Columns)["a"].(int64)))
		numbers[row.PrimaryKey.PrimaryKeys[1].Value.(int64)] = true
	}
	sort.Ints(values)
	same("rows with numbers", values, []int{1, 2, 3, 4, 5})
	same("different numbers", len(numbers), 5)
	same("the first number", named(page.Rows[0].Columns)["a"], int64(1))
	same("the number that was given", page.Rows[0].PrimaryKey.PrimaryKeys[1].Value, interface{}(number))
}

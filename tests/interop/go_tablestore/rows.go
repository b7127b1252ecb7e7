package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/aliyun/aliyun-tablestore-go-sdk/tablestore"
)

func rows() {
	create("rows", false, nil)
	all := cells{"i": int64(-1), "d": 0.5, "t": true, "s": "é\x00", "b": []byte{0, 255}}
	answer, err := put(putChange("rows", pair("a", 1), all))
	must(err)
	same("units", *answer.ConsumedCapacityUnit, tablestore.ConsumedCapacityUnit{Read: 0, Write: 1})
	same("a row", get(criteria("rows", pair("a", 1))), all)
	same("no row", get(criteria("rows", pair("a", 2))), cells(nil))
	_, err = put(putChange("rows", pair("a", 3), nil))
	must(err)
	same("a row without cells", get(criteria("rows", pair("a", 3))), cells{})

	wanted := criteria("rows", pair("a", 1))
	wanted.ColumnsToGet = []string{"i", "s", "nothing"}
	same("columns", get(wanted), cells{"i": int64(-1), "s": "é\x00"})
	wanted.ColumnsToGet = []string{"nothing"}
	same("other columns", get(wanted), cells(nil))
	wanted.ColumnsToGet = []string{"p", "nothing"}
	same("a key column", get(wanted), cells{})
	wanted.ColumnsToGet = nil
	start, end := "d", "s"
	wanted.StartColumn, wanted.EndColumn = &start, &end
	same("a range of columns", get(wanted), cells{"d": 0.5, "i": int64(-1)})
	wanted = criteria("rows", pair("a", 1))
	wanted.Filter = &tablestore.PaginationFilter{Offset: 1, Limit: 2}
	same("a page of columns", get(wanted), cells{"d": 0.5, "i": int64(-1)})

	change := updateChange("rows", pair("a", 1))
	change.PutColumn("i", "text")
	change.DeleteColumn("d")
	change.IncrementColumn("n", 5)
	change.SetReturnIncrementValue()
	change.AppendIncrementColumnToReturn("n")
	updated, err := update(change)
	must(err)
	same("the new count", named(updated.Columns), cells{"n": int64(5)})
	same("an updated row", get(criteria("rows", pair("a", 1))),
		cells{"i": "text", "t": true, "s": "é\x00", "b": []byte{0, 255}, "n": int64(5)})
	change = updateChange("rows", pair("new", 1))
	change.IncrementColumn("n", -2)
	_, err = update(change)
	must(err)
	same("a row that an update made", get(criteria("rows", pair("new", 1))), cells{"n": int64(-2)})

	must(remove(deleteChange("rows", pair("a", 1))))
	same("a deleted row", get(criteria("rows", pair("a", 1))), cells(nil))
	must(remove(deleteChange("rows", pair("a", 1))))
	_, err = put(putChange("rows", pair("large", 1), cells{"s": strings.Repeat("x", 10000)}))
	must(err)
	found, err := find(criteria("rows", pair("large", 1)))
	must(err)
	same("units of a large row", found.ConsumedCapacityUnit.Read, int32(3))
}

func conditions() {
	create("conditions", false, nil)
	const failed, text = "OTSConditionCheckFail", "Condition check failed."
	change := putChange("conditions", pair("a", 1), cells{"n": int64(5), "s": "x"})
	change.SetCondition(tablestore.RowExistenceExpectation_EXPECT_EXIST)
	_, err := put(change)
	refused("a row that must exist", err, failed, text)
	change.SetCondition(tablestore.RowExistenceExpectation_EXPECT_NOT_EXIST)
	_, err = put(change)
	must(err)
	_, err = put(change)
	refused("a row that must not exist", err, failed, text)

	both := tablestore.NewCompositeColumnCondition(tablestore.LO_AND)
	both.AddFilter(equals("s", "x"))
	both.AddFilter(tablestore.NewSingleColumnCondition("n", tablestore.CT_GREATER_THAN, int64(7)))
	changed := updateChange("conditions", pair("a", 1))
	changed.PutColumn("s", "y")
	changed.SetColumnCondition(both)
	_, err = update(changed)
	refused("a condition that is false", err, failed, text)
	neither := tablestore.NewCompositeColumnCondition(tablestore.LO_NOT)
	neither.AddFilter(both)
	changed.SetColumnCondition(neither)
	_, err = update(changed)
	must(err)
	same("after a condition that holds", get(criteria("conditions", pair("a", 1))), cells{"n": int64(5), "s": "y"})
	gone := deleteChange("conditions", pair("a", 1))
	gone.SetColumnCondition(equals("s", "x"))
	refused("a deletion whose condition is false", remove(gone), failed, text)

	wanted := criteria("conditions", pair("a", 1))
	wanted.Filter = equals("n", int64(6))
	same("a row that a filter leaves out", get(wanted), cells(nil))
	missing := equals("nothing", int64(6))
	missing.FilterIfMissing = true
	wanted.Filter = missing
	same("a row without the column", get(wanted), cells(nil))
	missing.FilterIfMissing = false
	same("a row without the column that may be", get(wanted), cells{"n": int64(5), "s": "y"})
	rule := tablestore.NewValueTransferRule("v([0-9]+)", tablestore.Variant_INTEGER)
	regex := tablestore.NewSingleColumnValueRegexFilter("s", tablestore.CT_GREATER_EQUAL, rule, int64(10))
	_, err = put(putChange("conditions", pair("a", 2), cells{"s": "v12"}))
	must(err)
	wanted = criteria("conditions", pair("a", 2))
	wanted.Filter = regex
	same("a part of a text", get(wanted), cells{"s": "v12"})
}

func batches() {
	create("one", false, nil)
	create("two", false, nil)
	write := &tablestore.BatchWriteRowRequest{}
	for number := int64(0); number < 20; number++ {
		write.AddRowChange(putChange("one", pair(fmt.Sprint(number%2), number), cells{"n": number}))
	}
	change := updateChange("two", pair("a", 1))
	change.PutColumn("s", "x")
	write.AddRowChange(change)
	expected := putChange("two", pair("a", 2), cells{"n": int64(1)})
	expected.SetCondition(tablestore.RowExistenceExpectation_EXPECT_EXIST)
	write.AddRowChange(expected)
	write.AddRowChange(deleteChange("two", pair("a", 3)))
	written, err := client.BatchWriteRow(write)
	must(err)
	for _, row := range written.TableToRowsResult["one"] {
		same("a row of a batch", row.IsSucceed, true)
	}
	second := written.TableToRowsResult["two"]
	same("rows of the second table", []bool{second[0].IsSucceed, second[1].IsSucceed, second[2].IsSucceed},
		[]bool{true, false, true})
	same("the error of a row", second[1].Error.Code, "OTSConditionCheckFail")

	read := &tablestore.BatchGetRowRequest{}
	first := &tablestore.MultiRowQueryCriteria{TableName: "one", MaxVersion: 1, ColumnsToGet: []string{"n"}}
	for _, number := range []int64{4, 4, 100, 5} {
		first.AddRow(pair(fmt.Sprint(number%2), number))
	}
	wrong := &tablestore.PrimaryKey{}
	wrong.AddPrimaryKeyColumn("p", "a")
	first.AddRow(wrong)
	absent := &tablestore.MultiRowQueryCriteria{TableName: "absent", MaxVersion: 1}
	absent.AddRow(pair("a", 1))
	read.MultiRowQueryCriteria = []*tablestore.MultiRowQueryCriteria{first, absent}
	answer, err := client.BatchGetRow(read)
	must(err)
	got := answer.TableToRowsResult["one"]
	same("a row", named(got[0].Columns), cells{"n": int64(4)})
	same("the same row again", named(got[1].Columns), cells{"n": int64(4)})
	same("a row that is not there", len(got[2].PrimaryKey.PrimaryKeys), 0)
	same("another row", got[3].PrimaryKey.PrimaryKeys[1].Value, interface{}(int64(5)))
	same("a wrong key", got[4].Error.Message, "Validate PK size fail. Input: 1, Meta: 2.")
	same("no table", answer.TableToRowsResult["absent"][0].Error.Code, "OTSObjectNotExist")

	atomic := func(keys ...*tablestore.PrimaryKey) []tablestore.RowResult {
		request := &tablestore.BatchWriteRowRequest{IsAtomic: true}
		for _, key := range keys {
			request.AddRowChange(putChange("two", key, cells{"n": int64(1)}))
		}
		response, err := client.BatchWriteRow(request)
		must(err)
		return response.TableToRowsResult["two"]
	}
	for _, row := range atomic(pair("x", 1), pair("x", 2)) {
		same("an atomic row", row.IsSucceed, true)
	}
	for _, row := range atomic(pair("y", 1), pair("z", 2)) {
		same("a row of another partition key", row.IsSucceed, false)
		same("its error", row.Error.Code, "OTSDataOutOfRange")
	}
	same("a refused atomic row", get(criteria("two", pair("y", 1))), cells(nil))
}

func scan(table string, start, end *tablestore.PrimaryKey, direction tablestore.Direction) (
	*tablestore.GetRangeResponse, error,
) {
	return client.GetRange(&tablestore.GetRangeRequest{RangeRowQueryCriteria: &tablestore.RangeRowQueryCriteria{
		TableName: table, StartPrimaryKey: start, EndPrimaryKey: end, Direction: direction, MaxVersion: 1, Limit: 7,
	}})
}

// numbers reads a range page by page.
func numbers(table string, start, end *tablestore.PrimaryKey, direction tablestore.Direction) []int64 {
	found := []int64{}
	for start != nil {
		page, err := scan(table, start, end, direction)
		must(err)
		for _, row := range page.Rows {
			found = append(found, row.PrimaryKey.PrimaryKeys[1].Value.(int64))
		}
		start = page.NextStartPrimaryKey
	}
	return found
}

func ranges() {
	create("ranges", false, nil)
	for number := int64(0); number < 30; number++ {
		_, err := put(putChange("ranges", pair("a", number), cells{"n": number, "s": fmt.Sprint(number % 3)}))
		must(err)
	}
	upwards, downwards := []int64{}, []int64{}
	for number := int64(0); number < 30; number++ {
		upwards, downwards = append(upwards, number), append([]int64{number}, downwards...)
	}
	low, high := &tablestore.PrimaryKey{}, &tablestore.PrimaryKey{}
	for _, name := range []string{"p", "k"} {
		low.AddPrimaryKeyColumnWithMinValue(name)
		high.AddPrimaryKeyColumnWithMaxValue(name)
	}
	same("forward", numbers("ranges", low, high, tablestore.FORWARD), upwards)
	same("backward", numbers("ranges", high, low, tablestore.BACKWARD), downwards)
	same("a part", numbers("ranges", pair("a", 3), pair("a", 14), tablestore.FORWARD), upwards[3:14])
	same("a part backward", numbers("ranges", pair("a", 14), pair("a", 3), tablestore.BACKWARD), downwards[15:26])
	const forward, backward = "Begin key must less than end key in FORWARD", "Begin key must more than end key in BACKWARD"
	for _, each := range []struct {
		start, end *tablestore.PrimaryKey
		direction  tablestore.Direction
		message    string
	}{
		{pair("a", 3), pair("a", 3), tablestore.FORWARD, forward},
		{pair("a", 3), pair("a", 3), tablestore.BACKWARD, backward},
		{pair("a", 4), pair("a", 3), tablestore.FORWARD, forward},
		{pair("a", 3), pair("a", 4), tablestore.BACKWARD, backward},
		{high, low, tablestore.FORWARD, forward},
		{low, low, tablestore.BACKWARD, backward},
	} {
		_, err := scan("ranges", each.start, each.end, each.direction)
		refused("bounds", err, "OTSParameterInvalid", each.message)
	}
	page, err := client.GetRange(&tablestore.GetRangeRequest{RangeRowQueryCriteria: &tablestore.RangeRowQueryCriteria{
		TableName: "ranges", StartPrimaryKey: low, EndPrimaryKey: high, Direction: tablestore.FORWARD, MaxVersion: 1,
		Filter: equals("s", "1"), ColumnsToGet: []string{"s"}, DataBlockType: tablestore.SimpleRowMatrix,
	}})
	must(err)
	same("rows that a filter leaves", len(page.Rows), 10)
	same("their cells", named(page.Rows[0].Columns), cells{"s": "1"})
}

func times() {
	create("times", false, nil)
	now := time.Now().UnixNano() / 1000000
	change := putChange("times", pair("a", 1), nil)
	change.AddColumnWithTimestamp("old", int64(1), now-5000)
	change.AddColumnWithTimestamp("new", int64(2), now)
	_, err := put(change)
	must(err)
	found, err := find(criteria("times", pair("a", 1)))
	must(err)
	same("a timestamp", found.Columns[1].Timestamp, now-5000)
	wanted := criteria("times", pair("a", 1))
	wanted.MaxVersion = 0
	wanted.TimeRange = &tablestore.TimeRange{Start: now - 6000, End: now - 4000}
	same("a time range", get(wanted), cells{"old": int64(1)})
	wanted.TimeRange = &tablestore.TimeRange{Specific: now}
	same("an instant", get(wanted), cells{"new": int64(2)})
	later := &tablestore.TimeRange{Start: now + 1, End: now + 2}
	wanted.TimeRange = later
	same("no cell of that time", get(wanted), cells{})
	wanted.ColumnsToGet = []string{"old"}
	same("no such cell of that time", get(wanted), cells(nil))
	many := &tablestore.MultiRowQueryCriteria{TableName: "times", MaxVersion: 1, TimeRange: later}
	many.AddRow(pair("a", 1))
	batch, err := client.BatchGetRow(
		&tablestore.BatchGetRowRequest{MultiRowQueryCriteria: []*tablestore.MultiRowQueryCriteria{many}})
	must(err)
	row := batch.TableToRowsResult["times"][0]
	same("the key of a row of a batch", []int{len(row.PrimaryKey.PrimaryKeys), len(row.Columns)}, []int{2, 0})
	page, err := client.GetRange(&tablestore.GetRangeRequest{RangeRowQueryCriteria: &tablestore.RangeRowQueryCriteria{
		TableName: "times", StartPrimaryKey: pair("a", 0), EndPrimaryKey: pair("a", 9), MaxVersion: 1, TimeRange: later,
	}})
	must(err)
	same("the key of a row of a range", []int{len(page.Rows), len(page.Rows[0].Columns)}, []int{1, 0})

	older := updateChange("times", pair("a", 1))
	older.PutColumnWithTimestamp("new", int64(0), now-100)
	older.DeleteColumnWithTimestamp("old", now-5000)
	_, err = update(older)
	must(err)
	same("an older version changes nothing", get(criteria("times", pair("a", 1))), cells{"new": int64(2)})
	far := updateChange("times", pair("a", 1))
	far.PutColumnWithTimestamp("new", int64(0), 1)
	_, err = update(far)
	refused("a timestamp that is far off", err, "OTSParameterInvalid", "")
}

// versions reads and deletes versions of cells, in a table that keeps three.
func versions() {
	client.DeleteTable(&tablestore.DeleteTableRequest{TableName: "versions"})
	meta := &tablestore.TableMeta{TableName: "versions"}
	meta.AddPrimaryKeyColumn("p", tablestore.PrimaryKeyType_STRING)
	meta.AddPrimaryKeyColumn("k", tablestore.PrimaryKeyType_INTEGER)
	option := &tablestore.TableOption{TimeToAlive: -1, MaxVersion: 3}
	_, err := client.CreateTable(&tablestore.CreateTableRequest{
		TableMeta: meta, TableOption: option, ReservedThroughput: &tablestore.ReservedThroughput{},
	})
	must(err)
	described, err := client.DescribeTable(&tablestore.DescribeTableRequest{TableName: "versions"})
	must(err)
	same("versions of the table", described.TableOption.MaxVersion, 3)
	now := time.Now().UnixNano() / 1000000
	for number := int64(0); number < 5; number++ {
		change := updateChange("versions", pair("a", 1))
		change.PutColumnWithTimestamp("c", number, now-100+number)
		_, err = update(change)
		must(err)
	}
	values := func(wanted *tablestore.SingleRowQueryCriteria) []int64 {
		found, err := find(wanted)
		must(err)
		numbers := []int64{}
		for _, column := range found.Columns {
			same("timestamp", column.Timestamp, now-100+column.Value.(int64))
			numbers = append(numbers, column.Value.(int64))
		}
		return numbers
	}
	wanted := criteria("versions", pair("a", 1))
	same("the newest version", values(wanted), []int64{4})
	wanted.MaxVersion = 9
	same("all versions", values(wanted), []int64{4, 3, 2})
	wanted.MaxVersion = 0
	wanted.TimeRange = &tablestore.TimeRange{Start: now - 98, End: now - 96}
	same("versions of a time range", values(wanted), []int64{3, 2})
	wanted.MaxVersion = 1
	same("the newest of a time range", values(wanted), []int64{3})
	change := updateChange("versions", pair("a", 1))
	change.DeleteColumnWithTimestamp("c", now-97)
	_, err = update(change)
	must(err)
	wanted.MaxVersion, wanted.TimeRange = 9, nil
	same("without the deleted version", values(wanted), []int64{4, 2})
}

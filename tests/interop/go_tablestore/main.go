// Uses Tablestore's official Go client, unchanged, with the endpoint. Each name in the arguments is a scenario; the
// program fails with a list of unexpected results.
//
// Arguments: endpoint, instance, scenario. The access key comes from the environment. Scenario "worker" is in worker.go.
package main

import (
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/aliyun/aliyun-tablestore-go-sdk/tablestore"
)

var (
	client   *tablestore.TableStoreClient
	failures []string
)

var scenarios = map[string]func(){
	"tables": tables, "rows": rows, "conditions": conditions, "batches": batches, "ranges": ranges,
	"numbered": numbered, "times": times, "versions": versions, "errors": errors, "tunnels": tunnels,
}

func main() {
	endpoint, instance := os.Args[1], os.Args[2]
	key, secret := os.Getenv("HEADRACE_ACCESS_KEY_ID"), os.Getenv("HEADRACE_ACCESS_KEY_SECRET")
	client = tablestore.NewClient(endpoint, instance, key, secret)
	openTunnels(endpoint, instance, key, secret)
	if os.Args[3] == "worker" {
		work(os.Args[4], os.Args[5])
		return
	}
	scenarios[os.Args[3]]()
	if len(failures) > 0 {
		fmt.Println(strings.Join(failures, "\n"))
		os.Exit(1)
	}
	fmt.Println("ok")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func same(what string, got, wanted interface{}) {
	if !reflect.DeepEqual(got, wanted) {
		failures = append(failures, fmt.Sprintf("%s: %#v instead of %#v", what, got, wanted))
	}
}

func refused(what string, err error, code, message string) {
	got, ok := err.(*tablestore.OtsError)
	if !ok {
		failures = append(failures, fmt.Sprintf("%s: %v is not an error of the service", what, err))
		return
	}
	same(what+", code", got.Code, code)
	if message != "" {
		same(what+", message", got.Message, message)
	}
	same(what+" has a request id", got.RequestId != "", true)
}

// pair makes a key of the tables of these scenarios: (p STRING, k INTEGER).
func pair(p string, n int64) *tablestore.PrimaryKey {
	key := &tablestore.PrimaryKey{}
	key.AddPrimaryKeyColumn("p", p)
	key.AddPrimaryKeyColumn("k", n)
	return key
}

func create(table string, numbered bool, stream *tablestore.StreamSpecification) {
	client.DeleteTable(&tablestore.DeleteTableRequest{TableName: table})
	meta := &tablestore.TableMeta{TableName: table}
	meta.AddPrimaryKeyColumn("p", tablestore.PrimaryKeyType_STRING)
	if numbered {
		meta.AddPrimaryKeyColumnOption("k", tablestore.PrimaryKeyType_INTEGER, tablestore.AUTO_INCREMENT)
	} else {
		meta.AddPrimaryKeyColumn("k", tablestore.PrimaryKeyType_INTEGER)
	}
	_, err := client.CreateTable(&tablestore.CreateTableRequest{
		TableMeta:          meta,
		TableOption:        tablestore.NewTableOptionWithMaxVersion(1),
		ReservedThroughput: &tablestore.ReservedThroughput{},
		StreamSpec:         stream,
	})
	must(err)
}

type cells map[string]interface{}

func putChange(table string, key *tablestore.PrimaryKey, values cells) *tablestore.PutRowChange {
	change := &tablestore.PutRowChange{TableName: table, PrimaryKey: key}
	for name, value := range values {
		change.AddColumn(name, value)
	}
	change.SetCondition(tablestore.RowExistenceExpectation_IGNORE)
	return change
}

func updateChange(table string, key *tablestore.PrimaryKey) *tablestore.UpdateRowChange {
	change := &tablestore.UpdateRowChange{TableName: table, PrimaryKey: key}
	change.SetCondition(tablestore.RowExistenceExpectation_IGNORE)
	return change
}

func deleteChange(table string, key *tablestore.PrimaryKey) *tablestore.DeleteRowChange {
	change := &tablestore.DeleteRowChange{TableName: table, PrimaryKey: key}
	change.SetCondition(tablestore.RowExistenceExpectation_IGNORE)
	return change
}

func put(change *tablestore.PutRowChange) (*tablestore.PutRowResponse, error) {
	return client.PutRow(&tablestore.PutRowRequest{PutRowChange: change})
}

func update(change *tablestore.UpdateRowChange) (*tablestore.UpdateRowResponse, error) {
	return client.UpdateRow(&tablestore.UpdateRowRequest{UpdateRowChange: change})
}

func remove(change *tablestore.DeleteRowChange) error {
	_, err := client.DeleteRow(&tablestore.DeleteRowRequest{DeleteRowChange: change})
	return err
}

func criteria(table string, key *tablestore.PrimaryKey) *tablestore.SingleRowQueryCriteria {
	return &tablestore.SingleRowQueryCriteria{TableName: table, PrimaryKey: key, MaxVersion: 1}
}

func find(wanted *tablestore.SingleRowQueryCriteria) (*tablestore.GetRowResponse, error) {
	return client.GetRow(&tablestore.GetRowRequest{SingleRowQueryCriteria: wanted})
}

// get returns the cells of a row, nil if there is none.
func get(wanted *tablestore.SingleRowQueryCriteria) cells {
	answer, err := find(wanted)
	must(err)
	if len(answer.PrimaryKey.PrimaryKeys) == 0 {
		return nil
	}
	return named(answer.Columns)
}

func named(columns []*tablestore.AttributeColumn) cells {
	found := cells{}
	for _, column := range columns {
		found[column.ColumnName] = column.Value
	}
	return found
}

func equals(column string, value interface{}) *tablestore.SingleColumnCondition {
	return tablestore.NewSingleColumnCondition(column, tablestore.CT_EQUAL, value)
}

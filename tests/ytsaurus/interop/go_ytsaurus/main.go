// Programs with YTsaurus' official Go client in its default configuration. Each program checks the responses.
//
// Arguments: the name of a program, and a directory of Cypress that it may use. The proxy and the token come from the
// environment. The exit status is 0 if all results are as expected.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
)

const patience = 90 * time.Second

type program func(ctx context.Context, yc yt.Client, home ypath.Path)

var programs = map[string]program{
	"cypress":             cypress,
	"batch":               batch,
	"locks":               locks,
	"master_transactions": masterTransactions,
	"files":               files,
	"static_tables":       staticTables,
	"codecs":              codecs,
	"sorted_tables":       sortedTables,
	"tablet_transactions": tabletTransactions,
	"timestamps":          timestamps,
	"ordered_tables":      orderedTables,
	"resharding":          resharding,
	"queues":              queues,
	"producers":           producers,
}

func main() {
	chosen, known := programs[os.Args[1]]
	if !known {
		panic("no such program: " + os.Args[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := ythttp.NewClient(&yt.Config{})
	must(err)
	defer client.Stop()
	chosen(ctx, client, ypath.Path(os.Args[2]))
	fmt.Println("done")
}

func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("%+v", err))
	}
}

func check(holds bool, what string, seen ...any) {
	if !holds {
		panic(fmt.Sprint(append([]any{what, ": "}, seen...)...))
	}
}

// all reads the rest of the rows of a reader, and closes it.
func all[Row any](reader yt.TableReader, err error) []Row {
	must(err)
	var rows []Row
	for reader.Next() {
		var row Row
		must(reader.Scan(&row))
		rows = append(rows, row)
	}
	must(reader.Err())
	must(reader.Close())
	return rows
}

func equal[Item comparable](what string, seen []Item, wanted ...Item) {
	check(len(seen) == len(wanted), what, seen)
	for place := range wanted {
		check(seen[place] == wanted[place], what, seen)
	}
}

func of[Value any](value Value) *Value {
	return &value
}

package main

import (
	"context"
	"fmt"
	"strings"

	"go.ytsaurus.tech/yt/go/migrate"
	"go.ytsaurus.tech/yt/go/schema"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yt/ythttp"
	"go.ytsaurus.tech/yt/go/yterrors"
)

type pair struct {
	Key   string `yson:"key,key"`
	Value int64  `yson:"value"`
}

type key struct {
	Key string `yson:"key"`
}

func write(ctx context.Context, yc yt.TableClient, path ypath.YPath, rows ...any) {
	writer, err := yc.WriteTable(ctx, path, nil)
	must(err)
	for _, row := range rows {
		must(writer.Write(row))
	}
	must(writer.Commit())
}

func staticTables(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("weak")
	_, err := yt.CreateTable(ctx, yc, path)
	must(err)
	reader, err := yc.ReadTable(ctx, path, nil)
	must(err)
	_, known := yt.StartRowIndex(reader)
	check(!known, "the first row of an empty table")
	check(len(all[pair](reader, nil)) == 0, "rows of an empty table")
	write(ctx, yc, path, pair{"a", 1}, map[string]any{"key": "b", "value": 2, "more": []any{1, "x"}})
	equal("rows", all[pair](yc.ReadTable(ctx, path, nil)), pair{"a", 1}, pair{"b", 2})
	write(ctx, yc, ypath.Rich{Path: path, Append: of(true)}, pair{"c", 3})
	reader, err = yc.ReadTable(ctx, path+"[#1:#3]", nil)
	must(err)
	first, known := yt.StartRowIndex(reader)
	check(known && first == 1, "start_row_index", first)
	equal("a range", all[pair](reader, nil), pair{"b", 2}, pair{"c", 3})
	equal("a column", all[key](yc.ReadTable(ctx, path+"{key}[#0]", nil)), key{"a"})
	equal("a smart read", all[pair](yc.ReadTable(ctx, path, &yt.ReadTableOptions{Smart: of(true)})),
		pair{"a", 1}, pair{"b", 2}, pair{"c", 3})

	typed := home.Child("typed")
	writer, err := yt.WriteTable(ctx, yc, typed, yt.WithCreateOptions(yt.WithInferredSchema(&pair{})))
	must(err)
	for number := range 1000 {
		must(writer.Write(pair{fmt.Sprintf("%04d", number), int64(number)}))
	}
	must(writer.Commit())
	rows := all[pair](yc.ReadTable(ctx, typed, nil))
	check(len(rows) == 1000 && rows[999] == pair{"0999", 999}, "many rows", len(rows))
	equal("a range of keys", all[pair](yc.ReadTable(ctx, typed+`["0998":]`, nil)), pair{"0998", 998}, pair{"0999", 999})
	exact := ypath.Rich{Path: typed, Ranges: []ypath.Range{ypath.Exact(ypath.Key("0007"))}}
	equal("a key", all[pair](yc.ReadTable(ctx, exact, nil)), pair{"0007", 7})
	var count int
	must(yc.GetNode(ctx, typed.Attr("row_count"), &count, nil))
	check(count == 1000, "row_count", count)
	refused, err := yc.WriteTable(ctx, typed, nil)
	must(err)
	must(refused.Write(map[string]any{"key": "x", "value": "no number"}))
	check(refused.Commit() != nil, "a row that does not fit the schema")

	big, err := yc.WriteTable(ctx, path, nil)
	must(err)
	must(big.Write(map[string]any{"key": strings.Repeat("x", 20<<20)}))
	check(big.Commit() != nil, "a row that is too long")
	limit := map[string]any{"max_row_weight": 32 << 20}
	big, err = yc.WriteTable(ctx, path, &yt.WriteTableOptions{TableWriter: limit})
	must(err)
	must(big.Write(map[string]any{"key": strings.Repeat("x", 20<<20)}))
	must(big.Commit())
	_, err = yc.ReadTable(ctx, home.Child("none"), nil)
	check(yterrors.ContainsResolveError(err), "a missing table", err)
}

// codecs writes and reads with every codec of the client.
func codecs(ctx context.Context, yc yt.Client, home ypath.Path) {
	for codec := yt.ClientCodecDefault; codec <= yt.ClientCodecBrotliDefault; codec++ {
		client, err := ythttp.NewClient(&yt.Config{CompressionCodec: codec})
		must(err)
		path := home.Child(fmt.Sprintf("table%d", codec))
		_, err = yt.CreateTable(ctx, client, path)
		must(err)
		var rows []any
		for number := range 5000 {
			rows = append(rows, pair{strings.Repeat("k", number%100), int64(number)})
		}
		write(ctx, client, path, rows...)
		read := all[pair](client.ReadTable(ctx, path, nil))
		check(len(read) == len(rows) && read[4999] == rows[4999], "rows", codec, len(read))
		client.Stop()
	}
}

func sorted(ctx context.Context, yc yt.Client, path ypath.Path) {
	must(migrate.Create(ctx, yc, path, schema.MustInfer(&pair{})))
	must(migrate.MountAndWait(ctx, yc, path))
}

func sortedTables(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("table")
	sorted(ctx, yc, path)
	must(yc.InsertRows(ctx, path, []any{pair{"b", 2}, pair{"a", 1}, pair{"c", 3}}, nil))
	keys := []any{key{"c"}, key{"none"}, key{"a"}}
	equal("lookup", all[pair](yc.LookupRows(ctx, path, keys, nil)), pair{"c", 3}, pair{"a", 1})
	found := all[*pair](yc.LookupRows(ctx, path, keys, &yt.LookupRowsOptions{KeepMissingRows: true}))
	check(len(found) == 3 && found[1] == nil && *found[2] == pair{"a", 1}, "missing rows", found)
	equal("columns", all[key](yc.LookupRows(ctx, path, keys[:1], &yt.LookupRowsOptions{Columns: []string{"key"}})), key{"c"})
	query := fmt.Sprintf("key, value from [%s] where value >= 2 order by key desc limit 10", path)
	equal("select", all[pair](yc.SelectRows(ctx, query, nil)), pair{"c", 3}, pair{"b", 2})
	type sum struct {
		Sum int64 `yson:"s"`
	}
	equal("a sum", all[sum](yc.SelectRows(ctx, fmt.Sprintf("sum(value) as s from [%s] group by 1", path), nil)), sum{6})
	equal("a placeholder", all[pair](yc.SelectRows(ctx, fmt.Sprintf("* from [%s] where key = {wanted}", path),
		&yt.SelectRowsOptions{PlaceholderValues: map[string]any{"wanted": "b"}})), pair{"b", 2})
	must(yc.InsertRows(ctx, path, []any{pair{"c", 3}}, &yt.InsertRowsOptions{Update: of(true)}))
	must(yc.DeleteRows(ctx, path, []any{key{"b"}}, nil))
	equal("remaining rows", all[pair](yc.SelectRows(ctx, fmt.Sprintf("* from [%s]", path), nil)), pair{"a", 1}, pair{"c", 3})
	batch := yc.NewRowBatchWriter()
	must(batch.Write(pair{"d", 4}))
	must(batch.Commit())
	must(yc.InsertRowBatch(ctx, path, batch.Batch(), nil))
	equal("a batch", all[pair](yc.LookupRows(ctx, path, []any{key{"d"}}, nil)), pair{"d", 4})
	must(migrate.FreezeAndWait(ctx, yc, path))
	check(yc.InsertRows(ctx, path, []any{pair{"e", 5}}, nil) != nil, "a write into a frozen table")
	must(migrate.UnfreezeAndWait(ctx, yc, path))
	must(migrate.UnmountAndWait(ctx, yc, path))
	wider := schema.MustInfer(&pair{})
	wider.Columns = append(wider.Columns, schema.Column{Name: "more", Type: schema.TypeString})
	must(yc.AlterTable(ctx, path, &yt.AlterTableOptions{Schema: &wider}))
	must(migrate.MountAndWait(ctx, yc, path))
	must(yc.InsertRows(ctx, path, []any{map[string]any{"key": "e", "value": 5, "more": "x"}}, nil))
}

func tabletTransactions(ctx context.Context, yc yt.Client, home ypath.Path) {
	path, other := home.Child("one"), home.Child("other")
	sorted(ctx, yc, path)
	sorted(ctx, yc, other)
	tx, err := yc.BeginTabletTx(ctx, nil)
	must(err)
	must(tx.InsertRows(ctx, path, []any{pair{"a", 1}}, nil))
	must(tx.InsertRows(ctx, other, []any{pair{"a", 1}}, nil))
	check(len(all[pair](yc.LookupRows(ctx, path, []any{key{"a"}}, nil))) == 0, "a row before its commit")
	must(tx.Commit())
	equal("committed", all[pair](yc.LookupRows(ctx, other, []any{key{"a"}}, nil)), pair{"a", 1})
	tx, err = yc.BeginTabletTx(ctx, nil)
	must(err)
	must(tx.DeleteRows(ctx, path, []any{key{"a"}}, nil))
	must(tx.Abort())
	equal("aborted", all[pair](yc.LookupRows(ctx, path, []any{key{"a"}}, nil)), pair{"a", 1})
	one, err := yc.BeginTabletTx(ctx, nil)
	must(err)
	two, err := yc.BeginTabletTx(ctx, nil)
	must(err)
	must(one.InsertRows(ctx, path, []any{pair{"a", 10}}, nil))
	must(two.InsertRows(ctx, path, []any{pair{"a", 20}}, nil))
	must(one.Commit())
	err = two.Commit()
	check(yterrors.ContainsErrorCode(err, yterrors.CodeTransactionLockConflict), "conflict", err)
	equal("the first one", all[pair](yc.LookupRows(ctx, path, []any{key{"a"}}, nil)), pair{"a", 10})
	must(yt.ExecTabletTx(ctx, yc, func(ctx context.Context, tx yt.TabletTx) error {
		rows := all[pair](tx.LookupRows(ctx, path, []any{key{"a"}}, nil))
		return tx.InsertRows(ctx, path, []any{pair{"a", rows[0].Value + 1}}, nil)
	}, nil))
	equal("read and written", all[pair](yc.LookupRows(ctx, path, []any{key{"a"}}, nil)), pair{"a", 11})
}

func timestamps(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("table")
	sorted(ctx, yc, path)
	must(yc.InsertRows(ctx, path, []any{pair{"a", 1}}, nil))
	before, err := yc.GenerateTimestamp(ctx, nil)
	must(err)
	must(yc.InsertRows(ctx, path, []any{pair{"a", 2}, pair{"b", 1}}, nil))
	between, err := yc.GenerateTimestamp(ctx, nil)
	must(err)
	check(between > before, "timestamps", before, between)
	must(yc.DeleteRows(ctx, path, []any{key{"a"}}, nil))
	keys := []any{key{"a"}, key{"b"}}
	equal("before", all[pair](yc.LookupRows(ctx, path, keys, &yt.LookupRowsOptions{Timestamp: &before})), pair{"a", 1})
	query := fmt.Sprintf("* from [%s]", path)
	equal("between", all[pair](yc.SelectRows(ctx, query, &yt.SelectRowsOptions{Timestamp: &between})),
		pair{"a", 2}, pair{"b", 1})
	equal("now", all[pair](yc.SelectRows(ctx, query, nil)), pair{"b", 1})
}

func resharding(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("table")
	sorted(ctx, yc, path)
	var rows []any
	for number := range 100 {
		rows = append(rows, pair{fmt.Sprintf("%03d", number), int64(number)})
	}
	must(yc.InsertRows(ctx, path, rows, nil))
	must(migrate.UnmountAndWait(ctx, yc, path))
	tablets := func() (count int) {
		must(yc.GetNode(ctx, path.Attr("tablet_count"), &count, nil))
		return
	}
	must(yc.ReshardTable(ctx, path, &yt.ReshardTableOptions{PivotKeys: []any{[]any{}, []any{"050"}}}))
	check(tablets() == 2, "tablets by pivot keys", tablets())
	must(yc.ReshardTable(ctx, path, &yt.ReshardTableOptions{TabletCount: of(5)}))
	check(tablets() == 5, "tablets by their number", tablets())
	must(migrate.MountAndWait(ctx, yc, path))
	check(len(all[pair](yc.SelectRows(ctx, fmt.Sprintf("* from [%s]", path), nil))) == 100, "rows")
	var config map[string]bool
	must(yc.GetNode(ctx, path.Attr("tablet_balancer_config"), &config, nil))
	check(config["enable_auto_reshard"], "tablet_balancer_config", config)
}

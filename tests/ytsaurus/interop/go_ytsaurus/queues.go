package main

import (
	"context"
	"fmt"

	"go.ytsaurus.tech/yt/go/migrate"
	"go.ytsaurus.tech/yt/go/schema"
	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

type message struct {
	Tablet int64  `yson:"$tablet_index"`
	Row    int64  `yson:"$row_index,omitempty"`
	Text   string `yson:"text"`
}

func queue(ctx context.Context, yc yt.Client, path ypath.Path, tablets int) {
	must(migrate.Create(ctx, yc, path, schema.MustInfer(&message{})))
	must(yc.ReshardTable(ctx, path, &yt.ReshardTableOptions{TabletCount: &tablets}))
	must(migrate.MountAndWait(ctx, yc, path))
}

func orderedTables(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("queue")
	queue(ctx, yc, path, 3)
	must(yc.InsertRows(ctx, path, []any{message{Tablet: 2, Text: "a"}, message{Tablet: 0, Text: "b"}}, nil))
	must(yc.InsertRows(ctx, path, []any{message{Tablet: 2, Text: "c"}}, nil))
	query := fmt.Sprintf("* from [%s] where [$tablet_index] = 2", path)
	equal("rows of a tablet", all[message](yc.SelectRows(ctx, query, nil)), message{2, 0, "a"}, message{2, 1, "c"})
}

func consume(ctx context.Context, yc yt.Client, consumer, path ypath.Path, offset int64) []message {
	reader, result, err := yc.PullQueueConsumer(ctx, consumer, path, &yt.PullQueueConsumerOptions{
		PartitionIndex: of(int32(1)), Offset: &offset, MaxRowCount: of(int64(2)),
	})
	must(err)
	check(result != nil, "the result of a pull")
	return all[message](reader, nil)
}

func queues(ctx context.Context, yc yt.Client, home ypath.Path) {
	path, consumer := home.Child("queue"), home.Child("consumer")
	queue(ctx, yc, path, 2)
	_, err := yc.CreateNode(ctx, consumer, yt.NodeQueueConsumer, nil)
	must(err)
	_, _, err = yc.PullQueueConsumer(ctx, consumer, path, &yt.PullQueueConsumerOptions{
		PartitionIndex: of(int32(1)), Offset: of(int64(0)),
	})
	check(err != nil, "a pull before the registration")
	must(yc.RegisterQueueConsumer(ctx, path, consumer, &yt.RegisterQueueConsumerOptions{Vital: of(true)}))
	var rows []any
	for number := range 5 {
		rows = append(rows, message{Tablet: 1, Text: fmt.Sprint(number)})
	}
	must(yc.InsertRows(ctx, path, rows, nil))
	equal("a pull", consume(ctx, yc, consumer, path, 0), message{1, 0, "0"}, message{1, 1, "1"})
	advance := func(client yt.TabletClient, from, to int64, tx *yt.TransactionOptions) error {
		return client.AdvanceQueueConsumer(ctx, consumer, path, &yt.AdvanceQueueConsumerOptions{
			PartitionIndex: of(int32(1)), OldOffset: &from, NewOffset: &to, TransactionOptions: tx,
		})
	}
	must(advance(yc, 0, 2, nil))
	check(advance(yc, 0, 2, nil) != nil, "an advance from an old offset")
	equal("the next pull", consume(ctx, yc, consumer, path, 2), message{1, 2, "2"}, message{1, 3, "3"})
	results := home.Child("results")
	sorted(ctx, yc, results)
	// Rows and offset are committed in one transaction.
	aborted, err := yc.BeginTabletTx(ctx, nil)
	must(err)
	must(aborted.InsertRows(ctx, results, []any{pair{"a", 2}}, nil))
	must(advance(aborted, 2, 4, &yt.TransactionOptions{TransactionID: aborted.ID()}))
	must(aborted.Abort())
	committed, err := yc.BeginTabletTx(ctx, nil)
	must(err)
	must(committed.InsertRows(ctx, results, []any{pair{"b", 2}}, nil))
	must(advance(committed, 2, 4, &yt.TransactionOptions{TransactionID: committed.ID()}))
	must(committed.Commit())
	equal("results", all[pair](yc.SelectRows(ctx, fmt.Sprintf("* from [%s]", results), nil)), pair{"b", 2})
	equal("the last pull", consume(ctx, yc, consumer, path, 4), message{1, 4, "4"})
	type offset struct {
		Partition uint64 `yson:"partition_index"`
		Offset    uint64 `yson:"offset"`
	}
	equal("the consumer", all[offset](yc.SelectRows(ctx,
		fmt.Sprintf("[partition_index], [offset] from [%s]", consumer), nil)), offset{1, 4})
	must(yc.UnregisterQueueConsumer(ctx, path, consumer, nil))
}

func producers(ctx context.Context, yc yt.Client, home ypath.Path) {
	path, producer := home.Child("queue"), home.Child("producer")
	queue(ctx, yc, path, 1)
	_, err := yc.CreateNode(ctx, producer, yt.NodeQueueProducer, nil)
	must(err)
	session, err := yc.CreateQueueProducerSession(ctx, producer, path, "s", nil)
	must(err)
	check(session.SequenceNumber == -1 && session.Epoch == 0, "a new session", session)
	push := func(epoch, first int64, texts ...string) (*yt.PushQueueProducerResult, error) {
		var rows []any
		for _, text := range texts {
			rows = append(rows, message{Text: text})
		}
		return yc.PushQueueProducer(ctx, producer, path, "s", epoch, rows, &yt.PushQueueProducerOptions{
			SequenceNumber: &first, UserMeta: map[string]any{"at": first},
		})
	}
	result, err := push(0, 0, "a", "b")
	must(err)
	check(result.LastSequenceNumber == 1 && result.SkippedRowCount == 0, "a push", result)
	result, err = push(0, 1, "b", "c")
	must(err)
	check(result.LastSequenceNumber == 2 && result.SkippedRowCount == 1, "a repeated push", result)
	session, err = yc.CreateQueueProducerSession(ctx, producer, path, "s", nil)
	must(err)
	check(session.SequenceNumber == 2 && session.Epoch == 1, "the session after it was opened again", session)
	_, err = push(0, 3, "d")
	check(yterrors.ContainsErrorCode(err, yterrors.CodeZombieEpoch), "a push of an old epoch", err)
	query := fmt.Sprintf("* from [%s]", path)
	equal("rows", all[message](yc.SelectRows(ctx, query, nil)), message{0, 0, "a"}, message{0, 1, "b"}, message{0, 2, "c"})
	must(yc.RemoveQueueProducerSession(ctx, producer, path, "s", nil))
}

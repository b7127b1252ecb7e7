package main

import (
	"bytes"
	"context"
	"io"
	"sort"
	"strings"

	"go.ytsaurus.tech/yt/go/ypath"
	"go.ytsaurus.tech/yt/go/yt"
	"go.ytsaurus.tech/yt/go/yterrors"
)

func cypress(ctx context.Context, yc yt.Client, home ypath.Path) {
	made, err := yc.CreateNode(ctx, home.Child("a").Child("b"), yt.NodeMap, &yt.CreateNodeOptions{
		Recursive: true, Attributes: map[string]any{"color": "red", "size": uint64(7)},
	})
	must(err)
	var id yt.NodeID
	must(yc.GetNode(ctx, home.Child("a").Child("b").Attr("id"), &id, nil))
	check(id == made, "id", id)
	_, err = yc.CreateNode(ctx, home.Child("a"), yt.NodeMap, nil)
	check(yterrors.ContainsAlreadyExistsError(err), "a second node of the same name", err)
	again, err := yc.CreateNode(ctx, home.Child("a").Child("b"), yt.NodeMap, &yt.CreateNodeOptions{IgnoreExisting: true})
	must(err)
	check(again == made, "ignore_existing", again)

	document := map[string]any{"text": "ж", "list": []any{int64(1), 2.5, true, nil}, "raw": "\xff\x00"}
	_, err = yc.CreateNode(ctx, home.Child("document"), yt.NodeDocument, nil)
	must(err)
	must(yc.SetNode(ctx, home.Child("document"), document, nil))
	var seen map[string]any
	must(yc.GetNode(ctx, home.Child("document"), &seen, nil))
	check(seen["text"] == "ж" && seen["raw"] == "\xff\x00" && len(seen["list"].([]any)) == 4, "document", seen)
	var number float64
	must(yc.GetNode(ctx, home.Child("document").Child("list").Child("1"), &number, nil))
	check(number == 2.5, "an item", number)

	must(yc.MultisetAttributes(ctx, home.Child("a").Attrs(), map[string]any{"one": 1, "two": "2"}, nil))
	var attributes struct {
		One int    `yson:"one,attr"`
		Two string `yson:"two,attr"`
	}
	must(yc.GetNode(ctx, home.Child("a"), &attributes, &yt.GetNodeOptions{Attributes: []string{"one", "two"}}))
	check(attributes.One == 1 && attributes.Two == "2", "attributes", attributes)

	var listed []struct {
		Name string `yson:",value"`
		Type string `yson:"type,attr"`
	}
	must(yc.ListNode(ctx, home, &listed, &yt.ListNodeOptions{Attributes: []string{"type"}}))
	var names []string
	for _, each := range listed {
		names = append(names, each.Name+" "+each.Type)
	}
	sort.Strings(names)
	equal("list", names, "a map_node", "document document")

	_, err = yc.CopyNode(ctx, home.Child("a"), home.Child("copy"), nil)
	must(err)
	_, err = yc.MoveNode(ctx, home.Child("copy"), home.Child("moved"), nil)
	must(err)
	_, err = yc.LinkNode(ctx, home.Child("moved"), home.Child("link"), nil)
	must(err)
	var color string
	must(yc.GetNode(ctx, home.Child("link").Child("b").Attr("color"), &color, nil))
	check(color == "red", "an attribute read through a link", color)
	there, err := yc.NodeExists(ctx, home.Child("copy"), nil)
	must(err)
	check(!there, "a moved node still exists at its old path")

	must(yc.RemoveNode(ctx, home.Child("moved"), &yt.RemoveNodeOptions{Recursive: true}))
	err = yc.GetNode(ctx, home.Child("moved").Attr("id"), &id, nil)
	check(yterrors.ContainsResolveError(err), "a removed node", err)
	must(yc.RemoveNode(ctx, home.Child("moved"), &yt.RemoveNodeOptions{Force: true}))
	raw := home.Child(`\xff\x01`)
	_, err = yc.CreateNode(ctx, raw, yt.NodeMap, nil)
	must(err)
	var children []string
	must(yc.ListNode(ctx, home, &children, nil))
	sort.Strings(children)
	check(children[len(children)-1] == "\xff\x01", "a name that is not UTF-8", children)
	there, err = yc.NodeExists(ctx, raw, nil)
	must(err)
	check(there, "a node whose name is not UTF-8")
	_, err = yc.CreateNode(ctx, home.Child("list"), "list_node", nil)
	must(err)
	must(yc.SetNode(ctx, home.Child("list"), []any{1, map[string]any{"a": 2}}, nil))
	must(yc.SetNode(ctx, home.Child("list").Child("1").Attr("color"), "red", nil))
	var kind string
	must(yc.GetNode(ctx, home.Child("list").Child("1").Attr("type"), &kind, nil))
	check(kind == "map_node", "the type of an item", kind)
	allowed, err := yc.CheckPermission(ctx, "root", yt.PermissionRead, home, nil)
	must(err)
	check(allowed.Action == yt.ActionAllow, "permission", allowed)
}

func batch(ctx context.Context, yc yt.Client, home ypath.Path) {
	request, err := yc.NewBatchRequest()
	must(err)
	made, err := request.CreateNode(ctx, home.Child("a"), yt.NodeMap, nil)
	must(err)
	wrong, err := request.CreateNode(ctx, home.Child("none").Child("b"), yt.NodeMap, nil)
	must(err)
	there, err := request.NodeExists(ctx, home, nil)
	must(err)
	must(request.ExecuteBatch(ctx, nil))
	must(made.Error())
	must(there.Error())
	check(there.Result(), "exists")
	check(yterrors.ContainsResolveError(wrong.Error()), "the error of one part", wrong.Error())
	var id yt.NodeID
	must(yc.GetNode(ctx, home.Child("a").Attr("id"), &id, nil))
	check(id == made.Result(), "id", id)
}

func locks(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("node")
	_, err := yc.CreateNode(ctx, path, yt.NodeMap, nil)
	must(err)
	one, err := yc.BeginTx(ctx, nil)
	must(err)
	other, err := yc.BeginTx(ctx, nil)
	must(err)
	taken, err := one.LockNode(ctx, path, yt.LockExclusive, nil)
	must(err)
	var state string
	must(yc.GetNode(ctx, ypath.Path("#"+taken.LockID.String()).Attr("state"), &state, nil))
	check(state == "acquired", "state of a lock", state)
	_, err = other.LockNode(ctx, path, yt.LockShared, nil)
	check(yterrors.ContainsErrorCode(err, yterrors.CodeConcurrentTransactionLockConflict), "conflict", err)
	waiting, err := other.LockNode(ctx, path, yt.LockExclusive, &yt.LockNodeOptions{Waitable: true})
	must(err)
	must(one.UnlockNode(ctx, path, nil))
	must(yc.GetNode(ctx, ypath.Path("#"+waiting.LockID.String()).Attr("state"), &state, nil))
	check(state == "acquired", "state of a lock after a wait", state)
	must(one.Abort())
	must(other.Abort())
	key := "child"
	one, err = yc.BeginTx(ctx, nil)
	must(err)
	other, err = yc.BeginTx(ctx, nil)
	must(err)
	_, err = one.LockNode(ctx, path, yt.LockShared, &yt.LockNodeOptions{ChildKey: &key})
	must(err)
	_, err = other.CreateNode(ctx, path.Child(key), yt.NodeMap, nil)
	check(err != nil, "a child whose name is locked")
	_, err = other.CreateNode(ctx, path.Child("more"), yt.NodeMap, nil)
	must(err)
	must(one.Commit())
	must(other.Commit())
}

func masterTransactions(ctx context.Context, yc yt.Client, home ypath.Path) {
	outer, err := yc.BeginTx(ctx, nil)
	must(err)
	inner, err := outer.BeginTx(ctx, nil)
	must(err)
	_, err = inner.CreateNode(ctx, home.Child("a"), yt.NodeMap, nil)
	must(err)
	exists := func(client yt.CypressClient, wanted bool) {
		there, err := client.NodeExists(ctx, home.Child("a"), nil)
		must(err)
		check(there == wanted, "exists", there)
	}
	exists(yc, false)
	exists(outer, false)
	exists(inner, true)
	must(inner.Commit())
	exists(outer, true)
	exists(yc, false)
	must(outer.Commit())
	exists(yc, true)
	gone, err := yc.BeginTx(ctx, nil)
	must(err)
	must(gone.RemoveNode(ctx, home.Child("a"), nil))
	exists(gone, false)
	must(gone.Abort())
	exists(yc, true)
	_, err = gone.CreateNode(ctx, home.Child("b"), yt.NodeMap, nil)
	check(err != nil, "a node in an ended transaction")
	must(yt.ExecTx(ctx, yc, func(ctx context.Context, tx yt.Tx) error {
		return tx.SetNode(ctx, home.Child("a").Attr("color"), "blue", nil)
	}, nil))
	attached, err := yc.BeginTx(ctx, nil)
	must(err)
	same, err := yc.AttachTx(ctx, attached.ID(), &yt.AttachTxOptions{AutoPingable: true})
	must(err)
	_, err = same.CreateNode(ctx, home.Child("c"), yt.NodeMap, nil)
	must(err)
	must(same.Commit())
	there, err := yc.NodeExists(ctx, home.Child("c"), nil)
	must(err)
	check(there, "a node created in an attached transaction")
}

func files(ctx context.Context, yc yt.Client, home ypath.Path) {
	path := home.Child("file")
	_, err := yc.CreateNode(ctx, path, yt.NodeFile, nil)
	must(err)
	content := []byte(strings.Repeat("some content ", 200_000) + "\x00\xff")
	write := func(path ypath.YPath, content []byte, options *yt.WriteFileOptions) error {
		writer, err := yc.WriteFile(ctx, path, options)
		must(err)
		if _, err = writer.Write(content); err != nil {
			return err
		}
		return writer.Close()
	}
	read := func(options *yt.ReadFileOptions) []byte {
		reader, err := yc.ReadFile(ctx, path, options)
		must(err)
		found, err := io.ReadAll(reader)
		must(err)
		must(reader.Close())
		return found
	}
	must(write(path, content, &yt.WriteFileOptions{ComputeMD5: true}))
	var digest string
	must(yc.GetNode(ctx, path.Attr("md5"), &digest, nil))
	cache := home.Child("cache")
	none, err := yc.GetFileFromCache(ctx, digest, &yt.GetFileFromCacheOptions{CachePath: cache})
	must(err)
	check(none == nil, "a file that is not in the cache", none)
	cached, err := yc.PutFileToCache(ctx, path, digest, &yt.PutFileToCacheOptions{CachePath: cache})
	must(err)
	found, err := yc.GetFileFromCache(ctx, digest, &yt.GetFileFromCacheOptions{CachePath: cache})
	must(err)
	check(found == cached, "a file in the cache", found, cached)
	_, err = yc.PutFileToCache(ctx, path, "00", &yt.PutFileToCacheOptions{CachePath: cache})
	check(err != nil, "a file with another MD5")
	check(bytes.Equal(read(nil), content), "the content of a file")
	check(bytes.Equal(read(&yt.ReadFileOptions{Offset: of(int64(100)), Length: of(int64(50))}), content[100:150]), "a part")
	must(write(ypath.Rich{Path: path, Append: of(true)}, []byte("more"), nil))
	check(bytes.Equal(read(nil), append(content, "more"...)), "appended content")
	err = write(home.Child("none"), []byte("x"), nil)
	check(yterrors.ContainsResolveError(err), "a missing file", err)
	must(write(path, nil, nil))
	check(len(read(nil)) == 0, "an empty file")
}

// A worker of Tablestore's official Go client. It prints the description of a tunnel, then each record as a line of
// JSON, until it is interrupted.
//
// Arguments: endpoint, instance, table, tunnel. The access key comes from the environment.
package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/aliyun/aliyun-tablestore-go-sdk/tunnel"
)

type object map[string]interface{}

var printing sync.Mutex

func say(value object) {
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(value); err != nil {
		panic(err)
	}
}

func process(ctx *tunnel.ChannelContext, records []*tunnel.Record) error {
	for _, record := range records {
		key := []interface{}{}
		for _, column := range record.PrimaryKey.PrimaryKeys {
			key = append(key, column.Value)
		}
		cells := object{}
		for _, column := range record.Columns {
			cells[*column.Name] = []interface{}{column.Type, column.Value}
		}
		say(object{
			"channel": ctx.ChannelId, "type": record.Type.String(), "key": key, "cells": cells,
			"sequence": record.SequenceInfo,
		})
	}
	return nil
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	client := tunnel.NewTunnelClient(
		os.Args[1], os.Args[2], os.Getenv("HEADRACE_ACCESS_KEY_ID"), os.Getenv("HEADRACE_ACCESS_KEY_SECRET"))
	described, err := client.DescribeTunnel(
		&tunnel.DescribeTunnelRequest{TableName: os.Args[3], TunnelName: os.Args[4]})
	must(err)
	listed, err := client.ListTunnel(&tunnel.ListTunnelRequest{TableName: os.Args[3]})
	must(err)
	rpo, err := client.GetRpo(&tunnel.GetRpoRequest{TunnelId: described.Tunnel.TunnelId})
	must(err)
	say(object{"tunnel": described.Tunnel, "channels": described.Channels, "listed": len(listed.Tunnels), "rpo": rpo})
	daemon := tunnel.NewTunnelDaemon(client, described.Tunnel.TunnelId, &tunnel.TunnelWorkerConfig{
		HeartbeatInterval: time.Second,
		HeartbeatTimeout:  4 * time.Second,
		ProcessorFactory:  &tunnel.SimpleProcessFactory{ProcessFunc: process, CpInterval: time.Second},
	})
	go func() { must(daemon.Run()) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	daemon.Close()
}

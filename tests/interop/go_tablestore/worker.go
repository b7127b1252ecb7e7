package main

import (
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/aliyun/aliyun-tablestore-go-sdk/tablestore"
	"github.com/aliyun/aliyun-tablestore-go-sdk/tunnel"
	"github.com/aliyun/aliyun-tablestore-go-sdk/tunnel/protocol"
)

var tunnelClient tunnel.TunnelClient

func openTunnels(endpoint, instance, key, secret string) {
	tunnelClient = tunnel.NewTunnelClient(endpoint, instance, key, secret)
}

func tunnels() {
	create("tunnels", false, nil)
	ids := map[string]string{}
	for name, kind := range map[string]tunnel.TunnelType{
		"base": tunnel.TunnelTypeBaseData, "stream": tunnel.TunnelTypeStream, "both": tunnel.TunnelTypeBaseStream,
	} {
		created, err := tunnelClient.CreateTunnel(
			&tunnel.CreateTunnelRequest{TableName: "tunnels", TunnelName: name, Type: kind})
		must(err)
		ids[name] = created.TunnelId
	}
	_, err := tunnelClient.CreateTunnel(&tunnel.CreateTunnelRequest{
		TableName: "tunnels", TunnelName: "early", Type: tunnel.TunnelTypeStream,
		StreamTunnelConfig: &tunnel.StreamTunnelConfig{Flag: protocol.StartOffsetFlag_EARLIEST},
	})
	must(err)
	_, err = tunnelClient.CreateTunnel(
		&tunnel.CreateTunnelRequest{TableName: "tunnels", TunnelName: "base", Type: tunnel.TunnelTypeStream})
	same("a tunnel that is there", err.(*tunnel.TunnelError).Code, "OTSTunnelExist")
	listed, err := tunnelClient.ListTunnel(&tunnel.ListTunnelRequest{TableName: "tunnels"})
	must(err)
	same("tunnels", len(listed.Tunnels), 4)
	described, err := tunnelClient.DescribeTunnel(&tunnel.DescribeTunnelRequest{TableName: "tunnels", TunnelName: "both"})
	must(err)
	same("id", described.Tunnel.TunnelId, ids["both"])
	same("type", described.Tunnel.TunnelType, "BaseAndStream")
	same("channels", len(described.Channels) > 0, true)
	rpo, err := tunnelClient.GetRpo(&tunnel.GetRpoRequest{TunnelId: ids["stream"]})
	must(err)
	same("lag of a tunnel", len(rpo.TunnelRpoInfos) > 0, true)
	_, err = tunnelClient.GetRpoByOffset(&tunnel.GetRpoRequest{TunnelId: ids["stream"]})
	must(err)
	stream, err := tunnelClient.DescribeTunnel(
		&tunnel.DescribeTunnelRequest{TableName: "tunnels", TunnelName: "stream"})
	must(err)
	channel := stream.Channels[0].ChannelId
	for _, step := range []*tunnel.ScheduleChannel{tunnel.SuspendChannel(channel), tunnel.OpenChannel(channel)} {
		_, err = tunnelClient.Schedule(
			&tunnel.ScheduleRequest{TunnelId: ids["stream"], Channels: []*tunnel.ScheduleChannel{step}})
		must(err)
	}
	for _, name := range []string{"base", "stream", "both", "early"} {
		_, err = tunnelClient.DeleteTunnel(&tunnel.DeleteTunnelRequest{TableName: "tunnels", TunnelName: name})
		must(err)
	}
	listed, err = tunnelClient.ListTunnel(&tunnel.ListTunnelRequest{TableName: "tunnels"})
	must(err)
	same("tunnels that are left", len(listed.Tunnels), 0)
	_, err = tunnelClient.DescribeTunnel(&tunnel.DescribeTunnelRequest{TableName: "tunnels", TunnelName: "base"})
	same("no tunnel", err.(*tunnel.TunnelError).Code, "OTSParameterInvalid")
	_, err = client.DeleteTable(&tablestore.DeleteTableRequest{TableName: "tunnels"})
	must(err)
}

// work prints each record of a tunnel as a line of JSON, until the process is asked to stop.
func work(table, name string) {
	described, err := tunnelClient.DescribeTunnel(&tunnel.DescribeTunnelRequest{TableName: table, TunnelName: name})
	must(err)
	var printing sync.Mutex
	lines := json.NewEncoder(os.Stdout)
	process := func(ctx *tunnel.ChannelContext, records []*tunnel.Record) error {
		printing.Lock()
		defer printing.Unlock()
		for _, record := range records {
			line := map[string]interface{}{
				"type": record.Type.String(), "k": record.PrimaryKey.PrimaryKeys[1].Value, "sequence": record.SequenceInfo,
			}
			for _, column := range record.Columns {
				line["value"] = column.Value
			}
			if err := lines.Encode(line); err != nil {
				return err
			}
		}
		return nil
	}
	daemon := tunnel.NewTunnelDaemon(tunnelClient, described.Tunnel.TunnelId, &tunnel.TunnelWorkerConfig{
		HeartbeatInterval: time.Second,
		HeartbeatTimeout:  3 * time.Second,
		ProcessorFactory:  &tunnel.SimpleProcessFactory{ProcessFunc: process, CpInterval: 500 * time.Millisecond},
	})
	go func() { must(daemon.Run()) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	daemon.Close()
}

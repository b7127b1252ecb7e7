package headrace;

import static headrace.Main.*;

import com.alicloud.openservices.tablestore.model.DeleteTableRequest;
import com.alicloud.openservices.tablestore.model.StreamRecord;
import com.alicloud.openservices.tablestore.model.tunnel.*;
import com.alicloud.openservices.tablestore.tunnel.worker.IChannelProcessor;
import com.alicloud.openservices.tablestore.tunnel.worker.ProcessRecordsInput;
import com.alicloud.openservices.tablestore.tunnel.worker.TunnelWorker;
import com.alicloud.openservices.tablestore.tunnel.worker.TunnelWorkerConfig;

final class Tunnels {
    static void tunnels() throws Exception {
        create("tunnels", false);
        for (TunnelType type : TunnelType.values()) {
            tunnelClient.createTunnel(new CreateTunnelRequest("tunnels", type.name(), type));
        }
        refused("an existing tunnel", "OTSTunnelExist", null,
                () -> tunnelClient.createTunnel(new CreateTunnelRequest("tunnels", "Stream", TunnelType.Stream)));
        same("tunnels", tunnelClient.listTunnel(new ListTunnelRequest("tunnels")).getTunnelInfos().size(),
                TunnelType.values().length);
        for (TunnelType type : TunnelType.values()) {
            DescribeTunnelResponse described =
                    tunnelClient.describeTunnel(new DescribeTunnelRequest("tunnels", type.name()));
            same("type", described.getTunnelInfo().getTunnelType(), type);
            for (ChannelInfo channel : described.getChannelInfos()) {
                same("kind of a channel", channel.getChannelType() != null, true);
                same("status of a channel", channel.getChannelStatus() != null, true);
            }
            tunnelClient.deleteTunnel(new DeleteTunnelRequest("tunnels", type.name()));
        }
        same("remaining tunnels", tunnelClient.listTunnel(new ListTunnelRequest("tunnels")).getTunnelInfos().size(), 0);
        refused("no tunnel", "OTSParameterInvalid", null,
                () -> tunnelClient.describeTunnel(new DescribeTunnelRequest("tunnels", "Stream")));
        client.deleteTable(new DeleteTableRequest("tunnels"));
    }

    /** Prints each record of a tunnel as a line of JSON, until the process is killed. */
    static void work(String table, String tunnel) throws Exception {
        String id = tunnelClient.describeTunnel(new DescribeTunnelRequest(table, tunnel)).getTunnelInfo().getTunnelId();
        TunnelWorkerConfig config = new TunnelWorkerConfig(new IChannelProcessor() {
            @Override
            public synchronized void process(ProcessRecordsInput input) {
                for (StreamRecord record : input.getRecords()) {
                    long number = record.getPrimaryKey().getPrimaryKeyColumn("k").getValue().asLong();
                    long value = record.getColumns().isEmpty()
                            ? -1 : record.getColumns().get(0).getColumn().getValue().asLong();
                    System.out.println("{\"type\": \"" + record.getRecordType() + "\", \"k\": " + number
                            + ", \"value\": " + value + "}");
                }
            }

            @Override
            public void shutdown() {}
        });
        config.setHeartbeatIntervalInSec(5);
        config.setHeartbeatTimeoutInSec(6);
        config.setCheckpointIntervalInMillis(1000);
        new TunnelWorker(id, tunnelClient, config).connectAndWorking();
        Thread.currentThread().join();
    }

    private Tunnels() {}
}

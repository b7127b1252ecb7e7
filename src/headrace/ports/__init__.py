"""The interfaces of a store: abstract classes that all stores implement and all other code uses.

Stores differ by their `Capabilities`. All methods may be called from any thread and any process. Objects are cheap to
create and have no state that other objects need.
"""

from headrace.ports.files import Content, Files, FileStatus, Upload
from headrace.ports.publication import Advance, Append, BadRows, Claim, Marker, Publisher, RetriedRows, Staged, Write
from headrace.ports.queues import Consumer, Producer, Queue, QueueDescription, QueuePartition, Registration
from headrace.ports.store import Capabilities, Disk, Store
from headrace.ports.tables import Partition, Rows, Table, TableDescription, TableSize, TrimReport
from headrace.ports.tunnels import BatchRecords, ChannelDescription, Tunnel, TunnelClient, TunnelDescription

__all__ = [
    "Advance",
    "Append",
    "BadRows",
    "BatchRecords",
    "Capabilities",
    "ChannelDescription",
    "Claim",
    "Consumer",
    "Content",
    "Disk",
    "FileStatus",
    "Files",
    "Marker",
    "Partition",
    "Producer",
    "Publisher",
    "Queue",
    "QueueDescription",
    "QueuePartition",
    "Registration",
    "RetriedRows",
    "Rows",
    "Staged",
    "Store",
    "Table",
    "TableDescription",
    "TableSize",
    "TrimReport",
    "Tunnel",
    "TunnelClient",
    "TunnelDescription",
    "Upload",
    "Write",
]

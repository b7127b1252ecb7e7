"""The table of all commands: the name, the handler and the properties of each."""

from __future__ import annotations

from headrace_ytsaurus.endpoint import batch_commands, system_commands, transaction_commands
from headrace_ytsaurus.endpoint.contents import (
    concatenation,
    file_cache_commands,
    file_commands,
    static_table_commands,
)
from headrace_ytsaurus.endpoint.context import Command
from headrace_ytsaurus.endpoint.cypress import node_commands, placing_commands
from headrace_ytsaurus.endpoint.queues import commands as queue_commands
from headrace_ytsaurus.endpoint.queues import producer_commands
from headrace_ytsaurus.endpoint.select import commands as select_commands
from headrace_ytsaurus.endpoint.tables import commands as table_commands
from headrace_ytsaurus.endpoint.tables import row_commands

_ALL = (
    Command("get", node_commands.get),
    Command("list", node_commands.list_),
    Command("exists", node_commands.exists, alone=("value",)),
    Command("set", node_commands.set_, input="structured", volatile=True),
    Command("multiset_attributes", node_commands.multiset_attributes, input="structured", volatile=True),
    Command("remove", node_commands.remove, volatile=True),
    Command("lock", node_commands.lock, volatile=True, alone=("lock_id",)),
    Command("unlock", node_commands.unlock, volatile=True),
    Command("check_permission", node_commands.check_permission),
    Command("parse_ypath", node_commands.parse_ypath, alone=("path",)),
    Command("create", placing_commands.create, volatile=True, alone=("node_id", "object_id")),
    Command("link", placing_commands.link, volatile=True, alone=("node_id",)),
    Command("copy", placing_commands.copy, volatile=True, alone=("node_id",)),
    Command("move", placing_commands.move, volatile=True, alone=("node_id",)),
    Command("start_transaction", transaction_commands.start_transaction, volatile=True, alone=("transaction_id",)),
    Command("start_tx", transaction_commands.start_transaction, volatile=True, alone=("transaction_id",)),
    Command("ping_transaction", transaction_commands.ping_transaction, volatile=True, own_transactions=True),
    Command("ping_tx", transaction_commands.ping_transaction, volatile=True, own_transactions=True),
    Command("commit_transaction", transaction_commands.commit_transaction, volatile=True),
    Command("commit_tx", transaction_commands.commit_transaction, volatile=True),
    Command("abort_transaction", transaction_commands.abort_transaction, volatile=True),
    Command("abort_tx", transaction_commands.abort_transaction, volatile=True),
    Command("write_file", file_commands.write_file, input="binary", volatile=True, heavy=True),
    Command("read_file", file_commands.read_file, output="binary", heavy=True),
    Command("put_file_to_cache", file_cache_commands.put_file_to_cache, volatile=True, alone=("path",)),
    Command("get_file_from_cache", file_cache_commands.get_file_from_cache, alone=("path",)),
    Command("write_table", static_table_commands.write_table, input="tabular", volatile=True, heavy=True),
    Command("read_table", static_table_commands.read_table, output="tabular", heavy=True),
    Command("concatenate", concatenation.concatenate, volatile=True),
    Command("mount_table", table_commands.mount_table, volatile=True),
    Command("unmount_table", table_commands.unmount_table, volatile=True),
    Command("freeze_table", table_commands.freeze_table, volatile=True),
    Command("unfreeze_table", table_commands.unfreeze_table, volatile=True),
    Command("remount_table", table_commands.remount_table, volatile=True),
    Command("reshard_table", table_commands.reshard_table, volatile=True),
    Command("alter_table", table_commands.alter_table, volatile=True),
    Command("get_table_pivot_keys", table_commands.get_table_pivot_keys),
    Command("get_tablet_infos", table_commands.get_tablet_infos, volatile=True, own_transactions=True),
    Command("get_tablet_errors", table_commands.get_tablet_errors, volatile=True, own_transactions=True),
    Command("insert_rows", row_commands.insert_rows, input="tabular", volatile=True, heavy=True),
    Command("delete_rows", row_commands.delete_rows, input="tabular", volatile=True, heavy=True),
    Command("lock_rows", row_commands.lock_rows, input="tabular", volatile=True, heavy=True),
    Command("lookup_rows", row_commands.lookup_rows, input="tabular", output="tabular", heavy=True),
    Command("trim_rows", row_commands.trim_rows, volatile=True, heavy=True),
    Command("select_rows", select_commands.select_rows, output="tabular", heavy=True),
    Command("explain_query", select_commands.explain_query, heavy=True),
    Command("register_queue_consumer", queue_commands.register_queue_consumer, volatile=True),
    Command("unregister_queue_consumer", queue_commands.unregister_queue_consumer, volatile=True),
    Command("list_queue_consumer_registrations", queue_commands.list_queue_consumer_registrations),
    Command("pull_queue", queue_commands.pull_queue, output="tabular", heavy=True),
    Command("pull_queue_consumer", queue_commands.pull_queue_consumer, output="tabular", heavy=True),
    Command("pull_consumer", queue_commands.pull_queue_consumer, output="tabular", heavy=True),
    Command("advance_queue_consumer", queue_commands.advance_queue_consumer, volatile=True),
    Command("advance_consumer", queue_commands.advance_queue_consumer, volatile=True),
    Command("create_queue_producer_session", producer_commands.create_queue_producer_session, volatile=True),
    Command("remove_queue_producer_session", producer_commands.remove_queue_producer_session, volatile=True),
    Command("push_queue_producer", producer_commands.push_queue_producer, input="tabular", volatile=True),
    Command("execute_batch", batch_commands.execute_batch, volatile=True, alone=("results",), own_transactions=True),
    Command("generate_timestamp", system_commands.generate_timestamp, alone=("timestamp",)),
    Command("get_version", system_commands.get_version, alone=("version",)),
    Command("get_supported_features", system_commands.get_supported_features, alone=("features",)),
    Command("get_current_user", system_commands.get_current_user),
)
COMMANDS: dict[str, Command] = {command.name: command for command in _ALL}

"""The options of format ``yt``."""

from __future__ import annotations

import re

from headrace.errors import OptionError
from headrace.formats.common_options import QUEUE_OPTIONS
from headrace.options.kinds import OptionKind, boolean, limit, name, one_of, positive, secret, tasks
from headrace.options.option import BATCH_READ, BATCH_WRITE, SINK, SOURCE, Option
from headrace_ytsaurus.wire.paths import PARTS, WHOLE, has_suffix

# In an attribute: the names that choose a part, but not texts of other attributes.
_CHOICE = re.compile(rf"""[<;]\s*"?(?:{"|".join(sorted(PARTS))})"?\s*=""")
_ATTRIBUTES = re.compile(r"""\s*<(?:"(?:[^"\\]|\\.)*"|[^">])*>""")


def _path(text: str) -> str:
    path = text
    while match := _ATTRIBUTES.match(path):
        if _CHOICE.search(match[0]):
            raise OptionError("a path names a part of a table or queue", received=repr(text), valid=WHOLE)
        path = path[match.end() :]
    if not path.strip():
        raise ValueError
    if path.strip().startswith("//") and has_suffix(path):
        raise OptionError("a path names a part of a table or queue", received=repr(text), valid=WHOLE)
    return path.strip()


PATH = OptionKind("a path such as //home/project/queue", _path, name="path")
_LAYOUT = one_of("scan", "lookup")
OPTIONS = (
    Option("path", "the queue or table; `load` and `save` set it. Attributes before the path (`<append=%true>//…`) are "
           "ignored, and a selection of columns or rows is an error", PATH),
    Option("store", "the store: a directory or a URL"),
    Option("proxy", "the proxy of a cluster (a name, host:port or URL), or a value of `store`. If neither option is "
           "set: the environment's YT_PROXY, then HEADRACE_STORE as it was when `headrace.session` was called, then "
           "the proxy in the configuration of YTsaurus' client"),
    Option("token", "the token for the cluster; by default the environment's YT_TOKEN, then the token that YTsaurus' "
           "client finds (`~/.yt/token`)", secret),
    Option("consumer_path", "the consumer, registered for the queue; a stream needs one", PATH, None,
           (SOURCE, BATCH_READ)),
    Option("max_rows_per_partition", "maximum number of rows of one partition of a queue in a batch; no limit by "
           "default", limit, None, (SOURCE,)),
    Option("include_service_columns", "add the columns `__spyt_streaming_src_tablet_index` and "
           "`__spyt_streaming_src_row_index` before the columns of a queue", boolean, "false", (SOURCE, BATCH_READ)),
    Option("parsing_type_v3", "read arrays, maps and structs as such. With `false` they are binary columns that hold "
           "JSON: a map is a list of pairs, a tuple or variant is an object of its fields", boolean, "true",
           (SOURCE, BATCH_READ)),
    Option("write_type_v3", "accepted without effect: composite values are written in the types of the table or queue",
           boolean, "true", (SINK, BATCH_WRITE)),
    Option("null_type_allowed", "accepted without effect: a column of nulls can be written into any column", boolean,
           "false"),
    Option("binary_strings", "read columns of the type `string` as binary, because they may hold any bytes; `utf8` "
           "and `json` stay strings. Without it, a `string` value that is not UTF-8 fails the task", boolean, "false"),
    Option("string_to_utf8", "accepted without effect: strings are UTF-8", boolean, "false", (SINK, BATCH_WRITE)),
    Option("inconsistent_dynamic_write", "accepted without effect: writes into dynamic tables are transactions",
           boolean, "false", (SINK, BATCH_WRITE)),
    Option("enable_inconsistent_read", "accepted without effect: each task reads one state of its rows", boolean,
           "false", (SOURCE, BATCH_READ)),
    Option("arrow_enabled", "accepted without effect: rows are always Arrow batches", boolean, "true",
           (SOURCE, BATCH_READ)),
    Option("optimize_for", "accepted without effect: a write does not create tables", _LAYOUT, None,
           (SINK, BATCH_WRITE)),
    Option("readParallelism", "accepted without effect: `splits` is the number of tasks of a batch read", tasks, None,
           (BATCH_READ,)),
    Option("maxSplitRows", "accepted without effect: `splits` is the number of tasks of a batch read", positive, None,
           (BATCH_READ,)),
    Option("source_path_column", "see `sourcePathColumn`", name, None, (SOURCE, BATCH_READ)),
    Option("dynBatchSize", "maximum number of rows in one write of a task; by default the session's setting "
           "`spark.yt.write.dynBatchSize`", positive, None, (SINK, BATCH_WRITE)),
    *QUEUE_OPTIONS,
    Option("synchronous", "see format `headrace`", one_of("full", "normal", "off"), "full"),
)  # fmt: skip

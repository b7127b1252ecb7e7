"""Endpoints in separate processes, for official clients, and databases of PostgreSQL."""

from tests.interop.own_database import few_rows as few_rows
from tests.interop.own_database import server as server
from tests.interop.own_database import store as store
from tests.interop.own_database import url as url
from tests.tablestore.interop.conftest import endpoint as endpoint
from tests.ytsaurus.interop.conftest import yt_server as yt_server

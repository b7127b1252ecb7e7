"""Encrypted connections to PostgreSQL: the modes of libpq with right and wrong certificates, in both drivers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

import headrace
from headrace.errors import HeadraceError, OptionError, StoreError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace_lake.iceberg.database_store import IcebergDatabaseStore
from tests.postgres_server import USER, PostgresServer, programs_with_tls

PROGRAMS = programs_with_tls()
pytestmark = pytest.mark.skipif(
    PROGRAMS is None or shutil.which("openssl") is None, reason="needs a server with TLS, and the program openssl"
)

PASSWORD = "t0p-secret of tls"
# Longer than the test may take: an error that a repetition cannot mend must not be repeated.
RETRY_SECONDS = 1e6


@dataclass
class TlsServer:
    """A server that accepts its user over TLS only.

    Attributes:
        port: the port.
        authority: the certificate of the authority that has signed the server's, whose name is ``localhost``.
        other: the certificate of another authority.
    """

    port: int
    authority: Path
    other: Path

    def open(self, host: str = "localhost", **options: Any) -> Store:
        url = f"postgresql://tls@{host}:{self.port}/postgres"
        return headrace.open(url, password=PASSWORD, retry_seconds=RETRY_SECONDS, **options)


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def _authority(directory: Path, name: str) -> Path:
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-days", "2"]
    _openssl("req", "-x509", *kind, "-subj", f"/CN={name}", "-keyout", key, "-out", certificate)
    return certificate


def _certify(directory: Path, authority: Path, host: str) -> None:
    """Create the key and the certificate of a server in files ``server.key`` and ``server.crt``."""
    request, names = directory / "server.csr", directory / "names"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    _openssl("req", *kind, "-subj", f"/CN={host}", "-keyout", directory / "server.key", "-out", request)
    names.write_text(f"subjectAltName=DNS:{host}\n")
    signer: list[str | Path] = [
        "-CA",
        authority,
        "-CAkey",
        authority.with_suffix(".key"),
        "-CAcreateserial",
        "-extfile",
        names,
    ]
    _openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-out", directory / "server.crt")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    directory = tmp_path_factory.mktemp("tls")
    authority, other = _authority(directory, "authority"), _authority(directory, "other")
    _certify(directory, authority, "localhost")
    assert PROGRAMS is not None
    server = PostgresServer.start(PROGRAMS)
    try:
        data = server.root / "data"
        owner = data.stat()
        for name in ("server.key", "server.crt"):
            shutil.copy(directory / name, data / name)
            (data / name).chmod(0o600)
            os.chown(data / name, owner.st_uid, owner.st_gid)
        with psycopg.connect(host="127.0.0.1", port=server.port, user=USER, dbname="postgres", autocommit=True) as root:
            root.execute(sql.SQL("CREATE ROLE tls LOGIN PASSWORD {}").format(PASSWORD))
            root.execute("CREATE TABLE t (id int PRIMARY KEY)")
            root.execute("GRANT SELECT ON t TO tls")
            rules = data / "pg_hba.conf"
            rules.write_text(
                "hostssl all tls 127.0.0.1/32 scram-sha-256\nhost all tls all reject\n" + rules.read_text()
            )
            root.execute("ALTER SYSTEM SET ssl = on")
            root.execute("SELECT pg_reload_conf()")
        yield TlsServer(server.port, authority, other)
    finally:
        server.remove()


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))


def read(store: Store) -> int:
    """Read with both drivers: psycopg for names, ADBC for rows."""
    with store:
        assert store.tables() == ["t"]
        rows: int = store.table("t").scan().read_all().num_rows
        return rows


def error_of(store: Store) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        read(store)
    assert "t0p-secret" not in f"{caught.value} {caught.value!r} {vars(caught.value)} {store!r} {vars(store)}"
    return caught.value


@pytest.mark.parametrize("mode", ["prefer", "require", "verify-ca", "verify-full"])
def test_rows_are_read_over_tls_in_all_modes(tls: TlsServer, mode: str) -> None:
    assert read(tls.open(sslmode=mode, sslrootcert=str(tls.authority))) == 0


def test_without_tls_the_server_refuses_the_user_at_once(tls: TlsServer) -> None:
    error = error_of(tls.open(sslmode="disable"))
    assert isinstance(error, OptionError)
    assert "pg_hba.conf" in str(error)


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_a_certificate_of_another_authority_is_an_error_at_once(tls: TlsServer, mode: str) -> None:
    error = error_of(tls.open(sslmode=mode, sslrootcert=str(tls.other)))
    assert isinstance(error, StoreError)
    assert "certificate verify failed" in str(error)
    assert "sslrootcert" in str(error)


def test_a_certificate_of_another_host_is_an_error_at_once(tls: TlsServer) -> None:
    assert read(tls.open("127.0.0.1", sslmode="verify-ca", sslrootcert=str(tls.authority))) == 0
    error = error_of(tls.open("127.0.0.1", sslmode="verify-full", sslrootcert=str(tls.authority)))
    assert isinstance(error, StoreError)
    assert "does not match host name" in str(error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sslmode": "verify-full"}, "root certificate file"),
        ({"sslmode": "verify-full", "sslrootcert": "/nowhere/ca.crt"}, "root certificate file"),
        ({"sslmode": "nonsense"}, "invalid sslmode value"),
        ({"channel_binding": "nonsense"}, "channel_binding"),
    ],
)
def test_missing_files_and_invalid_modes_are_errors_at_once(
    tls: TlsServer, options: dict[str, str], message: str
) -> None:
    assert message in str(error_of(tls.open(**options)))


def test_a_service_names_the_server_the_certificate_and_the_password(
    tls: TlsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = tmp_path / "services"
    lines = ["[shop]", "host=localhost", f"port={tls.port}", "dbname=postgres", "user=tls", f"password={PASSWORD}"]
    lines += ["sslmode=verify-full", f"sslrootcert={tls.authority}"]
    services.write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    assert read(headrace.open("postgresql://", service="shop", retry_seconds=RETRY_SECONDS)) == 0
    error = error_of(headrace.open("postgresql://", service="nothing", retry_seconds=RETRY_SECONDS))
    assert "service" in str(error)
    monkeypatch.setenv("PGSERVICE", "shop")
    assert read(headrace.open("postgresql://", retry_seconds=RETRY_SECONDS)) == 0


@pytest.fixture
def lake_schema(tls: TlsServer) -> Iterator[str]:
    """A schema that the other tests, which share the database, do not see."""
    with psycopg.connect(host="127.0.0.1", port=tls.port, user=USER, dbname="postgres", autocommit=True) as root:
        root.execute("CREATE SCHEMA lake AUTHORIZATION tls")
        root.execute("GRANT CREATE ON DATABASE postgres TO tls")
        yield "lake"
        root.execute("DROP SCHEMA lake CASCADE")


def test_an_iceberg_catalog_is_used_over_tls_with_a_password_that_nothing_shows(
    tls: TlsServer, tmp_path: Path, lake_schema: str
) -> None:
    """The connections of SQLAlchemy have the same parameters as those of the store."""
    url = f"iceberg+postgresql://tls@localhost:{tls.port}/postgres"
    options = {"password": PASSWORD, "warehouse": str(tmp_path), "schema": lake_schema, "retry_seconds": 0}
    for right in ({"sslmode": "verify-full", "sslrootcert": str(tls.authority)}, {"sslmode": "require"}):
        with headrace.open(url, create=True, **options, **right) as store:
            table = store.create_table("t", {"id": "long"}, "id", exist_ok=True)
            table.put({"id": 1})
            publisher = store.publisher(str(right))
            staged = publisher.stage(0, pa.Table.from_pylist([{"id": 2}]).to_batches(), table="t", change=RowChange.PUT)
            assert publisher.publish(0, [Write("t", RowChange.PUT, tuple(staged))])
            assert [row["id"] for row in table] == [1, 2]
            assert isinstance(store, IcebergDatabaseStore)
            catalog = store._catalog_tables._catalog()
            shown = f"{store!r} {store.url} {vars(store)} {catalog!r} {catalog.engine!r} {catalog.properties}"
            assert "t0p" not in shown
            assert "t0p" not in f"{vars(catalog.load_table('default.t'))} {vars(catalog.load_table('default.t').io)}"
    for wrong in ({"sslmode": "disable"}, {"sslmode": "verify-full", "sslrootcert": str(tls.other)}):
        with pytest.raises(HeadraceError) as caught:
            headrace.open(url, create=True, **options, **wrong)
        assert "t0p" not in f"{caught.value} {caught.value!r}"

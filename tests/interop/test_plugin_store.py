"""A store of another package works wherever headrace's own stores do, and a broken package breaks nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks_of, claimed

PACKAGE = Path(__file__).parents[1] / "plugin_store"
RECIPE = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text().partition("## A new store")[2].partition("\n## ")[0]
BROKEN = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "headrace-broken"
version = "1.0"

[project.entry-points."headrace.stores"]
broken = "headrace_broken:OPENING"
"""


def installed(package: Path, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(package)]
    subprocess.run(command, check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A path for Python with the packages: a good one, and one that cannot be imported."""
    target = tmp_path_factory.mktemp("site")
    installed(PACKAGE, target)
    broken = tmp_path_factory.mktemp("broken")
    (broken / "headrace_broken").mkdir()
    (broken / "headrace_broken" / "__init__.py").write_text("import no_such_module\n")
    (broken / "pyproject.toml").write_text(BROKEN)
    installed(broken, target)
    return os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])


def run(path: str, *command: str, directory: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=500)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


def headrace(path: str, directory: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return run(path, sys.executable, "-m", "headrace.cli.main", *arguments, directory=directory, check=check)


def test_commands_find_the_store_and_the_command_of_the_package(path: str, tmp_path: Path) -> None:
    url = f"parquet://{tmp_path}/data"
    run(path, sys.executable, "-c", f"import headrace; headrace.open({url!r}, create=True)", directory=tmp_path)
    headrace(path, tmp_path, "table", "create", "t", "-c", "id=long", "-c", "s=string", "-k", "id", "-s", url)
    (tmp_path / "rows.csv").write_text("id,s\n1,one\n2,two\n")
    headrace(path, tmp_path, "load", "rows.csv", "--table", "t", "-s", url)
    counted = headrace(path, tmp_path, "query", "SELECT count(*) AS n FROM t", "-s", url, "--json")
    assert '"n": 2' in counted.stdout
    files = json.loads(headrace(path, tmp_path, "parquet-files", "-s", url, "--json").stdout)
    assert [each["table"] for each in files] == ["t"]
    refused = headrace(path, tmp_path, "tunnel", "create", "t", "x", "-s", url, check=False)
    assert refused.returncode == 1
    assert "no tunnels" in refused.stderr
    assert "parquet-files" in headrace(path, tmp_path, "--help").stdout
    assert "it can be opened, and shows 1 tables" in headrace(path, tmp_path, "doctor", "-s", url, check=False).stdout


_SPARK = """
import headrace
spark = headrace.session("plug-in")
store = headrace.open(URL, create=True)
table = store.create_table("people", {"id": "long", "name": "string"}, "id")
table.put([{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}])
rows = spark.read.format("headrace").options(store=URL, table="people", parquetCompression="snappy").load()
assert [row.name for row in rows.orderBy("id").collect()] == ["ada", "bob"]
sql = headrace.sql(spark, "workspace")
sql.run(f"CREATE TABLE people USING headrace OPTIONS (store = '{URL}', table = 'people')")
assert sql.run("SELECT count(*) FROM people")[0].fetch()[0][0] == 2
with headrace.open("shop", create=True) as shop:
    orders = shop.create_table("orders", {"id": "long", "user": "string"}, "id", pre_images=True)
    orders.put([{"id": 1, "user": "ada"}, {"id": 2, "user": "ada"}, {"id": 3, "user": "bob"}])
    shop.create_tunnel("orders", "stats")
store.create_table("totals", {"user": "string", "orders": "long"}, "user")
now = spark.readStream.format("headrace").options(store="shop", tunnel="stats", readAs="table").load()
query = headrace.follow(
    spark, "SELECT user, count(*) AS orders FROM now GROUP BY user", scans={"now": now}, store=URL, table="totals",
    checkpoint="checkpoint", trigger={"availableNow": True})
query.start().awaitTermination()
assert store.table("totals").scan().read_all().to_pylist() == [
    {"user": "ada", "orders": 2}, {"user": "bob", "orders": 1}]
"""


def test_spark_and_sql_read_and_write_the_store(path: str, tmp_path: Path) -> None:
    code = _SPARK.replace("URL", repr(f"parquet://{tmp_path}/data"))
    run(path, sys.executable, "-W", "ignore", "-c", code, directory=tmp_path)


def test_a_package_that_cannot_be_imported_is_named_and_breaks_nothing_else(path: str, tmp_path: Path) -> None:
    code = "import headrace; headrace.open('shop', create=True).close(); headrace.open('broken://x')"
    done = run(path, sys.executable, "-c", code, directory=tmp_path, check=False)
    assert (tmp_path / "shop").is_dir()
    assert "headrace.stores broken of package headrace-broken cannot be used: ModuleNotFoundError" in done.stderr
    assert "unknown kind of store; received: broken://" in done.stderr
    found = headrace(path, tmp_path, "doctor", "--json", check=False).stdout
    assert "headrace-broken" in found


def conformance(path: str, directory: Path, *arguments: str) -> str:
    """Run the command of the recipe in the directory of a package; return its output."""
    (command,) = (block.text.splitlines()[-1] for block in blocks_of(RECIPE) if block.language == "sh")
    done = run(path, sys.executable, "-m", *shlex.split(command), *arguments, directory=directory, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_recipe_and_the_page_quote_the_package() -> None:
    files = [file.read_text() for file in PACKAGE.rglob("*") if file.suffix in (".py", ".toml")]
    quotes = [*blocks_of(RECIPE), *claimed("docs/store-packages.md", "tests/interop/test_plugin_store.py")]
    code = [block for block in quotes if block.language != "sh"]
    assert [block.language for block in code] == ["toml", "python", "python", "python"]
    assert [block.text for block in code if not any(block.text in file for file in files)] == []


def test_the_store_passes_the_conformance_tests(path: str, tmp_path: Path) -> None:
    package = Path(shutil.copytree(PACKAGE, tmp_path / "package"))
    output = conformance(path, package, "-rfEs", "-q", f"--basetemp={tmp_path}/stores")
    passed, skipped = map(int, re.search(r"(\d+) passed, (\d+) skipped", output).groups())  # type: ignore[union-attr]
    assert min(passed, skipped) > 150
    reasons = re.findall(r"^SKIPPED \[\d+\] .*?: (.*)$", output, re.MULTILINE)
    assert {reason.partition(" lacks ")[0] for reason in reasons} == {"the store"}


def test_other_processes_open_the_store_of_a_test(path: str, tmp_path: Path) -> None:
    code = (PACKAGE / "conftest.py").read_text().replace("parquet://{directory}", "{directory}")
    (tmp_path / "conftest.py").write_text(code)
    output = conformance(path, tmp_path, "-q", "-k", "processes_that_share_a_consumer or killed_publisher")
    assert " 2 passed" in f" {output.splitlines()[-1]}"

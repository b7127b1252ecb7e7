"""The conformance tests of stores: the promises of `headrace.ports`, for any package that has a store.

The package installs ``headrace[testing]``. Beside its ``pyproject.toml``, a ``conftest.py`` names the place of a test's
store:

    @pytest.fixture
    def place(tmp_path: Path) -> Place:
        return Place("parquet://{directory}/store", tmp_path)

``pytest --pyargs headrace.testing.suite`` runs all tests that the store's capabilities allow, and skips others.
"""

from headrace.testing.capabilities import Traits
from headrace.testing.place import Place

__all__ = ["Place", "Traits"]

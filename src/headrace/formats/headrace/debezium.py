"""Option ``changeFormat``: the rows of a tunnel of several tables as change events of Debezium."""

from __future__ import annotations

from headrace.errors import OptionError
from headrace.formats.headrace.read_as import reads_table
from headrace.model.tables.json_forms import Decimals, JsonForm
from headrace.options.settings import Settings

COLUMNS, DEBEZIUM = "columns", "debezium"
CHANGE_FORMATS = (COLUMNS, DEBEZIUM)


def json_form(settings: Settings) -> JsonForm | None:
    """Return the form of the rows for ``changeFormat=debezium``; None for other formats."""
    if settings.get("changeFormat") != DEBEZIUM:
        return None
    return JsonForm(debezium=True, decimals=Decimals(settings.get("decimalHandlingMode")))


def check_options(settings: Settings) -> None:
    """Raise `OptionError` if the options of a stream exclude each other."""
    if json_form(settings) is not None and settings.get("rows") is not None:
        raise OptionError(
            "options changeFormat=debezium and rows are both set",
            received=f"rows={settings.get('rows')}",
            valid="one of them",
        )
    if json_form(settings) is not None and reads_table(settings):
        raise OptionError(
            "options changeFormat=debezium and readAs=table are both set",
            valid="one of them",
            remedy="leave out readAs: events have the old row if the tables have REPLICA IDENTITY FULL",
        )

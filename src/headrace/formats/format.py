"""`Format`: everything in which one data source format differs from another, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import OptionError
from headrace.formats.location import Location
from headrace.options.option import Option
from headrace.options.settings import Settings
from headrace.stores.opening import CheckpointScheme, are_texts


@dataclass(frozen=True)
class RowsPerWrite:
    """The limit of rows in one write of a task.

    Attributes:
        option: the format's option for it.
        setting: the Spark setting that applies if the option is not set.
        default: the number of rows if neither is set.
    """

    option: str
    setting: str
    default: int

    def read(self, settings: Settings, spark_setting: Callable[[str], str | None]) -> int:
        """Return the limit.

        Args:
            settings: the options.
            spark_setting: returns the text of a Spark setting; None if it is not set.

        Raises:
            OptionError: the option or the setting is not a positive whole number.
        """
        rows: int | None = settings.get(self.option)
        if rows is not None:
            return rows
        text = spark_setting(self.setting)
        if text is None:
            return self.default
        if not text.strip().isdecimal() or int(text) == 0:
            raise OptionError(
                f"the Spark setting {self.setting} cannot be read",
                received=repr(text),
                valid="a positive whole number of rows",
            )
        return int(text)


@dataclass(frozen=True, eq=False)
class Format:
    """A data source format: a set of option names and columns, over the stores.

    Attributes:
        name: the name for ``spark.read.format(…)`` and ``USING``, in lower case.
        options: the options.
        add_environment: returns options with the store, access key or token that the environment names, for options
            that are not set. Names of options are in lower case.
        environment: prefixes of the names of the environment variables that ``add_environment`` and the store read.
        find: returns the store, and the table or queue, that the options name.
        row_change_option: the option that says how rows are written into a table.
        channel_limit_options: the options that limit the rows of a channel or partition in a batch; the first one
            that is set applies.
        batch_limit_option: the option that limits the rows in a batch.
        tunnel_option: the option that names a tunnel; None if the format reads no tunnels.
        queue_option: the option that names a queue in ``CREATE QUEUE``; None if the format has no queues.
        consumer_option: the option that names a consumer; None if the format has no queues.
        needs_consumer: a stream needs a consumer.
        key_option: the option with the columns that choose the partition of a sink queue; None if there is none.
        bad_rows_option: the option that says what happens to rows that a table refuses; None if they fail the batch.
        missing_columns_are_null: a batch read may name columns that the table does not have; they are null.
        rows_per_write: the limit of rows in one write; None for no limit.
        follows_tables: returns whether a stream with these options, as the user wrote them, reads a table as a table.
        checkpoint_scheme: the scheme of checkpoints in the format's stores; None if there is none.
        schemes_without_files: the schemes that users write for the format's stores, if these have no files.

    Raises:
        TypeError: the name, the options or the environment have another type.
    """

    name: str
    options: tuple[Option, ...]
    add_environment: Callable[[dict[str, str]], dict[str, str]]
    environment: tuple[str, ...]
    find: Callable[[Settings], Location]
    row_change_option: str
    channel_limit_options: tuple[str, ...]
    batch_limit_option: str
    tunnel_option: str | None = None
    queue_option: str | None = None
    consumer_option: str | None = None
    needs_consumer: bool = False
    key_option: str | None = None
    bad_rows_option: str | None = None
    missing_columns_are_null: bool = False
    rows_per_write: RowsPerWrite | None = None
    follows_tables: Callable[[Mapping[str, str]], bool] = lambda _: False
    checkpoint_scheme: CheckpointScheme | None = None
    schemes_without_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # A package of somebody else declares it, without a type checker perhaps.
        if not isinstance(self.name, str) or not self.name or self.name != self.name.lower():
            raise TypeError(f"the name of a format must be a text in lower case, and not {self.name!r}")
        if not isinstance(self.options, tuple) or not all(isinstance(each, Option) for each in self.options):
            raise TypeError(f"the options of format {self.name} must be a tuple of Option values")
        # A text would be the prefixes of its letters, and so of variables with any secrets.
        if not are_texts(self.environment):
            raise TypeError(f"environment of format {self.name} must be a tuple of texts that are not empty")

    @property
    def has_queues(self) -> bool:
        """Whether the format reads and writes queues."""
        return self.queue_option is not None

    def with_environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return options, names in lower case, with the environment's store, access key or token where not set.

        To be called where the user sets the options: tasks may run in another environment.
        """
        return self.add_environment({name.lower(): value for name, value in given.items()})

    def settings(self, given: Mapping[str, str]) -> Settings:
        """Return the typed values of options."""
        return Settings(self.options, given)

    def locate(self, given: Mapping[str, str]) -> Location:
        """Return the store, and the table or queue, that options and the environment name.

        Raises:
            OptionError: an option is missing, or its value is not valid.
        """
        return self.find(self.settings(self.with_environment(given)))

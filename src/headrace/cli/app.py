"""The options that all commands share, and the store that they open."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.output import ConsoleOutput, JsonOutput, Output
from headrace.errors import OptionError
from headrace.support.cached import cached_property
from headrace.support.start_up import keep_pandas_out

if TYPE_CHECKING:
    from headrace.ports import Store

_NO_LIMIT = 10_000
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class App:
    """The values of the options that all commands share.

    Attributes:
        store_options: texts ``name=value`` for options of the store.
        other_options: those of another store.
        error_code: the exit code of an error. A command that has another meaning for 1 sets it.
        owns_process: whether the command is all that this process does.
    """

    json: bool = False
    debug: bool = False
    store_url: str | None = None
    store_options: tuple[str, ...] = ()
    other_options: tuple[str, ...] = ()
    error_code: int = 1
    owns_process: bool = False

    @cached_property
    def output(self) -> Output:
        return JsonOutput() if self.json else ConsoleOutput()

    def end(self) -> None:
        """End the output, if there is one: a command that prints only its help has none."""
        output = vars(self).get("output")
        if isinstance(output, Output):
            output.stop_waiting()

    def store(self, *, create: bool = False) -> Store:
        """Open the store of ``--store`` or HEADRACE_STORE, for a command that needs no Spark.

        Raises:
            OptionError: neither is set.
        """
        if self.store_url is None:
            raise OptionError(
                "no store is named",
                valid="a path or a URL",
                remedy="give --store, or set the environment variable HEADRACE_STORE",
            )
        if self.owns_process:
            keep_pandas_out()
        self.output.start_waiting("Waiting for the store")
        return self.open_store(self.store_url, create=create)

    def secrets(self) -> set[str]:
        """Return the secrets in the options of stores, which no message may have."""
        from headrace.options.secrets import secret_values

        pairs = [pair.partition("=") for pair in (*self.store_options, *self.other_options)]
        return {secret for name, _, value in pairs for secret in secret_values({name: value})}

    def store_extras(self) -> list[tuple[str, ...]]:
        """Return what the store of ``--store`` needs, for `headrace.support.extras.check_extras`; empty without one."""
        from headrace.stores.registry import extra_of

        return [] if self.store_url is None else [extra_of(self.store_url)]

    def open_store(self, url: str, *, create: bool = False) -> Store:
        """Open a store with the options of `store_options`."""
        import headrace
        from headrace.options.names import check_names
        from headrace.stores.registry import opening_of

        options = parse_pairs(self.store_options, "--store-option")
        if options:
            # Before the call: `create` and `url` are no options of a store.
            opening = opening_of(url)
            check_names(opening.what, options, [each.name for each in opening.options])
        return headrace.open(url, create=create, **options)


class CommandGroup(click.Group):
    """A group whose help has the first sentence of each command in full."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, command) for name, command in sorted(self.commands.items()) if not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_NO_LIMIT)) for name, command in commands])

    def store_command(self, name: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
        """Return a decorator for a command of the group that opens a store."""

        def decorate(function: Callable[..., None]) -> click.Command:
            return self.command(name, **settings)(store_option(with_app(function)))

        return decorate


pass_app = click.make_pass_decorator(App, ensure=True)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    # The group and the command have the same option. The default of one must not override the value of the other.
    if value:
        setattr(context.ensure_object(App), str(parameter.name), value)


def common_options(command: Command) -> Command:
    """Add ``--json`` and ``--debug``."""
    for option in (
        click.option("--debug", is_flag=True, callback=_remember, expose_value=False, help="Show tracebacks and logs."),
        click.option("--json", is_flag=True, callback=_remember, expose_value=False, help="Print JSON."),
    ):
        command = option(command)
    return command


def with_app(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the `App` to a command, and add ``--json`` and ``--debug``."""
    return common_options(pass_app(command))


_STORE_OPTIONS = click.option(
    "--store-option",
    "store_options",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_remember,
    expose_value=False,
    help="An option of the store, such as schema=own for PostgreSQL. Repeatable.",
)


def store_option(command: Command) -> Command:
    """Add ``--store`` and ``--store-option``."""
    return click.option(
        "-s",
        "--store",
        "store_url",
        metavar="STORE",
        callback=_remember,
        expose_value=False,
        help="The store: a path or a URL.  [env var: HEADRACE_STORE]",
    )(_STORE_OPTIONS(command))


def stores_option(command: Command) -> Command:
    """Add ``--store`` for any number of stores, passed as ``urls``, and ``--store-option``."""
    return click.option(
        "-s",
        "--store",
        "urls",
        metavar="STORE",
        multiple=True,
        help="A store: a path or a URL. Repeatable.  [env var: HEADRACE_STORE]",
    )(_STORE_OPTIONS(command))


def parse_pairs(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse ``name=value`` texts.

    Raises:
        OptionError: a text has no ``=``, or a name occurs twice.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            # The text behind the name can be a secret.
            shown = re.split(r"[^\w.-]", pair, maxsplit=1)[0]
            raise OptionError(f"option {option} takes NAME=VALUE", received=repr(shown))
        if name in values:
            raise OptionError(f"option {option} has a name twice", received=repr(name))
        values[name] = value
    return values

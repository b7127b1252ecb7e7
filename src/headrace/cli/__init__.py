"""The command line. Commands print through `headrace.cli.output` only, and each has a JSON form."""

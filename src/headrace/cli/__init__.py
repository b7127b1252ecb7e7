"""The command line. Commands print only through `headrace.cli.output`, as text or as JSON."""

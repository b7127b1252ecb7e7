"""What every store promises: written against `headrace.ports` only, and run over every store in `stores.STORES`."""

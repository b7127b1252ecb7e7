"""Options of stores and formats as values: their names, their types, and the texts that users give."""

"""Tables: their operations, and the settings that only Tablestore has."""

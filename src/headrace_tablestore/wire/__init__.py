"""The protocol of Tablestore, for clients and servers: messages, signatures, tokens, errors."""

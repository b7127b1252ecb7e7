"""What travels between Tablestore's clients and its service, for both sides: messages, signatures, tokens, errors."""

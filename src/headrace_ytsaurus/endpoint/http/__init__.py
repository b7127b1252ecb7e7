"""The endpoint's HTTP: requests, responses, their encodings."""

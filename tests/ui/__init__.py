"""Tests of the web page: requests over HTTP, and a real browser."""

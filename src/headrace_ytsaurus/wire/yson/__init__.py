"""YSON, the notation of YTsaurus: documents through its client, rows by numpy straight to and from Arrow."""

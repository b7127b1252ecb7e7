"""``headrace mcp``: the commands that look at stores and streams, as tools for a client of the Model Context Protocol.

1. `command` is the command. It checks that the packages of the extra ``mcp`` are installed before it imports the rest.
2. `server` offers tools by the official SDK, over standard input and output. Errors of headrace are results with the
   parts of their messages.
3. `reading` has the tools that change nothing, `writing` those of ``--allow``. They call the functions of the other
   commands and of the web page.
4. `sources` opens stores, and `limits` cuts results to a size that a client can read.
"""

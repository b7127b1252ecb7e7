"""Cypress: the tree of nodes, its types and its commands."""

"""Cypress in the store: versioned entries of nodes, and the contents of files and static tables."""

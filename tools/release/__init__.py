"""A release: ``make release`` builds, checks and tries what would be published, in dist/. It publishes nothing."""

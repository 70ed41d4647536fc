"""The authors' own tools for tests: small worlds built by hand, with every number in sight."""

from echo2.testing.worlds import equal_workers, one_site, small_world

__all__ = ["equal_workers", "one_site", "small_world"]

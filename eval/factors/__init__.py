"""What features know of each factor of a composition, and what the composition promises of it."""

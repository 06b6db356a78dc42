"""The paper's theorem on variance: as printed, as derived in docs/theorem.md, and simulated."""

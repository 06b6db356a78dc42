"""What the paper's theorem on variance says, beside what can be derived and what is simulated; see docs/theorem.md."""

"""How well features encode each factor, compared with what the composition promises."""

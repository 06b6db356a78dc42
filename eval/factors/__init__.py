"""How far each factor moves the features, and how well it can be read off them."""
